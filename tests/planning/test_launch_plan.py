"""The launch plan: files first, workers before the head, proof last, secrets marked."""

from __future__ import annotations

import pytest

from sparkserve.engine import spec
from sparkserve.model.plan import Plan, PutFile, StartGuard
from sparkserve.planning import launch
from tests.scenes import place, profile


def plan(count: int, *, api_key: str | None = None) -> Plan:
    wish = profile(parallel={"tp": count})
    specs = spec.build(
        spec.Wanted(wish, tuple(place(n + 1) for n in range(count)), (), "run-1", {})
    )
    secrets = launch.Secrets(guard_key="ab" * 32, api_key=api_key)
    return launch.build(wish, specs, ["/py"] * count, secrets)


def test_workers_start_before_the_head_and_after_all_files() -> None:
    assert [stage.title for stage in plan(4).stages] == [
        "write specs", "start workers", "start head", "wait for the engine", "ask a question",
    ]  # fmt: skip
    starts = [step.node for step in plan(4).steps if isinstance(step.action, StartGuard)]
    assert starts == ["spark2", "spark3", "spark4", "spark1"]


def test_single_node_has_no_workers_and_no_guard_key() -> None:
    made = plan(1)
    assert "start workers" not in [stage.title for stage in made.stages]
    assert [s.action.path for s in made.steps if isinstance(s.action, PutFile)] == [
        "/srv/sparkserve/state/runs/run-1/engine.json"
    ]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_number_of_stages_is_known_before_the_plan_is_made(ranks: int) -> None:
    assert launch.stage_count(ranks) == len(plan(ranks).stages)


def test_secrets_travel_in_files_of_mode_0600_only() -> None:
    made = plan(2, api_key='k"ey')
    secret = [s.action for s in made.steps if isinstance(s.action, PutFile) and s.action.secret]
    assert {action.path.rpartition("/")[2] for action in secret} == {"guard.key", "engine.yaml"}
    assert {action.mode for action in secret} == {0o600}
    others = made.model_copy(
        update={
            "stages": tuple(
                stage.model_copy(
                    update={
                        "steps": tuple(
                            s
                            for s in stage.steps
                            if not (isinstance(s.action, PutFile) and s.action.secret)
                        )
                    }
                )
                for stage in made.stages
            )
        }
    )
    assert "k" + '\\"ey' not in others.model_dump_json()
    assert "ab" * 32 not in others.model_dump_json()


def test_every_changing_step_says_how_to_undo_it_and_when_it_is_done() -> None:
    for step in plan(3).steps:
        assert step.done_when
        assert (step.undo is None) == (step.effect == "reads")
