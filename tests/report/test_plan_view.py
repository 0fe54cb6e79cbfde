"""A dry run shows every step, where ranks differ, and no secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkserve.engine import spec
from sparkserve.engine.gid import GidChoice, Member
from sparkserve.model.engine_spec import EngineSpec
from sparkserve.model.plan import Plan
from sparkserve.model.rdma import Gid, RdmaPort
from sparkserve.planning import launch as planning
from sparkserve.planning.gids import GidPlan
from sparkserve.report.console import Answer
from sparkserve.report.plan_view import Difference, differences, dry_run_answer
from tests import golden, scenes

GOLDEN = Path(__file__).parent / "golden"
GUARD_KEY, API_KEY = "ab" * 32, "sk-hidden"


def planned(count: int) -> tuple[Plan, tuple[EngineSpec, ...]]:
    profile = scenes.profile(
        parallel={"tp": count},
        serving={"api_key_file": "~/key", "host": "0.0.0.0"},
        gate={"expect": "Paris"},
    )
    specs = spec.build(
        spec.Wanted(
            profile=profile,
            places=tuple(scenes.place(n) for n in range(1, count + 1)),
            adapters=(),
            run_id="dry-run",
            checkpoint_files={},
        )
    )
    secrets = planning.Secrets(guard_key=GUARD_KEY, api_key=API_KEY)
    return planning.build(profile, specs, [s.argv[0] for s in specs], secrets), specs


def text_of(answer: Answer) -> str:
    return "".join(f"{line.plain}\n" for line in answer.lines)


@pytest.mark.parametrize("count", [1, 3])
def test_dry_run(count: int) -> None:
    plan, specs = planned(count)
    text = text_of(dry_run_answer(plan, specs, verbosity=0))
    golden.check(GOLDEN / f"dry_run_{count}.txt", text)


def test_every_rank_is_written_out_when_asked() -> None:
    plan, specs = planned(3)
    text = text_of(dry_run_answer(plan, specs, verbosity=1))
    for rank in range(3):
        assert f"rank {rank} on spark{rank + 1}\n" in text
        assert f"--node-rank {rank}" in text


@pytest.mark.parametrize("verbosity", [0, 2])
def test_no_secret_is_shown_or_written(verbosity: int) -> None:
    plan, specs = planned(2)
    answer = dry_run_answer(plan, specs, verbosity=verbosity)
    shown = text_of(answer) + json.dumps(answer.data)
    assert GUARD_KEY not in shown
    assert API_KEY not in shown
    assert "guard.key (mode 0600, secret)" in shown


def test_dry_run_tells_each_nodes_gid_index_and_why() -> None:
    plan, specs = planned(2)
    rows = (Gid(index=5, gid=f"{'0000:' * 5}ffff:c0a8:000c", type="RoCE v2", netdev="net0"),)
    usable = Member(RdmaPort(device="roce0", gids=rows), (5, 7))
    gids = (
        GidPlan("spark1", "roce0", reason="no node has an RDMA device"),
        GidPlan(
            "spark2", "roce0", 5, "lowest of {5, 7}", GidChoice(5, "", (usable,)), remark="3 was"
        ),
    )
    answer = dry_run_answer(plan, specs, gids, verbosity=0)
    assert (
        """
  spark1  NCCL_IB_GID_INDEX is not set: no node has an RDMA device
  spark2  NCCL_IB_GID_INDEX=5: lowest of {5, 7}
    roce0 {5, 7}: 5 is RoCE v2 of 192.168.0.12 on net0
    3 was
"""
        in text_of(answer) + "\n"
    )
    assert [(one["node"], one["index"]) for one in answer.data["gid_indexes"]] == [
        ("spark1", None), ("spark2", 5),
    ]  # fmt: skip
    assert json.loads(json.dumps(answer.data))["gid_indexes"][1]["ports"] == [
        "roce0 {5, 7}: 5 is RoCE v2 of 192.168.0.12 on net0"
    ]


def test_programs_get_plan_ranks_and_differences() -> None:
    plan, specs = planned(2)
    data = json.loads(json.dumps(dry_run_answer(plan, specs, verbosity=0).data))
    assert [rank["node"] for rank in data["ranks"]] == ["spark1", "spark2"]
    assert data["differences"]["argv"] == {"--node-rank": ["0", "1"]}
    assert data["differences"]["env"]["SGLANG_HOST_IP"] == ["192.168.0.11", "192.168.0.12"]
    assert data["plan"]["verb"] == "launch"


def test_differences_are_named_after_option_or_variable() -> None:
    _, specs = planned(2)
    odd = specs[1].model_copy(
        update={
            "argv": (specs[1].argv[0], "-m", "other", *specs[1].argv[3:], "--only-here"),
            "env": {**specs[1].env, "ONLY_HERE": "1"},
        }
    )
    found = differences([specs[0], odd])
    assert Difference("argv[2]", ("sglang.launch_server", "other")) in found["argv"]
    assert Difference("--only-here", (None, "--only-here")) in found["argv"]
    assert Difference("ONLY_HERE", (None, "1")) in found["env"]


def test_equal_ranks_have_no_differences() -> None:
    _, specs = planned(1)
    assert differences([specs[0], specs[0]]) == {"argv": [], "env": []}
