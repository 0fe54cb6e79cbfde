"""Launch checks: silent on a healthy cluster, exact about each fault, honest about the unknown."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sparkserve.checks.check import judge
from sparkserve.checks.launch import LAUNCH
from sparkserve.checks.scene import Scene
from sparkserve.errors import ExitCode
from sparkserve.facts import checkpoint, host, memory, network, runtime, storage
from sparkserve.model.facts import NodeFacts, Unobserved
from sparkserve.model.finding import Finding
from tests.scenes import GIB, cluster, facts, profile


def findings(nodes: list[NodeFacts], **sections: Any) -> tuple[Finding, ...]:
    sections.setdefault("parallel", {"tp": len(nodes)})
    scene = Scene(profile(**sections), cluster(len(nodes)), {n.node: n for n in nodes})
    return judge(LAUNCH, scene)


def failing(nodes: list[NodeFacts], **sections: Any) -> list[Finding]:
    return [f for f in findings(nodes, **sections) if f.outcome == "fail"]


def with_files(*files: checkpoint.CheckpointFile, **changes: Any) -> checkpoint.CheckpointFacts:
    values = {"path": "/m", "files": files, "indexed": ()}
    return checkpoint.CheckpointFacts.model_validate(values | changes)


CONFIG = checkpoint.CheckpointFile(name="config.json", size_bytes=900)
SHARD = checkpoint.CheckpointFile(
    name="model-00001-of-00002.safetensors", size_bytes=10, declares_bytes=10
)


def test_healthy_cluster_passes_every_check() -> None:
    assert {f.outcome for f in findings([facts(n) for n in (1, 2, 3, 4)])} == {"pass"}


@pytest.mark.parametrize("probe_id", ["memory_meminfo", "network_ports", "storage_root"])
def test_unknown_is_neither_pass_nor_fail(probe_id: str) -> None:
    found = findings([facts(1, **{probe_id: Unobserved(reason="no such tool")})])
    (unknown,) = [f for f in found if f.outcome != "pass"]
    assert (unknown.outcome, unknown.observed) == ("unknown", "no such tool")
    assert not unknown.blocks


def test_taken_port_is_named_with_its_key_and_node() -> None:
    nodes = [facts(1), facts(2, network_ports=network.PortFacts(listening=(22, 8888)))]
    (finding,) = failing(nodes)
    assert (finding.code, finding.node) == ("ENG_PORT_BUSY", "spark2")
    assert finding.observed == "port 8888 (serving.port) is in use"
    assert finding.exit_code == ExitCode.CONFIG


def test_rendezvous_ports_matter_on_rank_0_only() -> None:
    busy = network.PortFacts(listening=(20000, 20900))
    assert failing([facts(1), facts(2, network_ports=busy)]) == []
    (finding,) = failing([facts(1, network_ports=busy), facts(2)])
    assert "20000 (fabric.dist_port)" in finding.observed
    assert "20900 (fabric.guard_port)" in finding.observed


def test_node_that_serves_already_is_refused_with_the_run() -> None:
    (finding,) = failing(
        [facts(1, runtime_holder=runtime.HolderFacts(run_id="20261130-a", guard_pid=7))]
    )
    assert finding.code == "ENG_ALREADY_SERVING"
    assert finding.fix == "sparkserve stop 20261130-a"


def test_low_memory_shows_both_figures_and_ends_with_5() -> None:
    low = memory.MemoryFacts(total_bytes=121 * GIB, available_bytes=90 * GIB, free_bytes=1 * GIB)
    (finding,) = failing([facts(1, memory_meminfo=low)], limits={"start_memory_gib": 115.5})
    assert (finding.observed, finding.expected) == (
        "MemAvailable 90.0 GiB",
        "at least 115.5 GiB",
    )
    assert finding.exit_code == ExitCode.MEMORY


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (with_files(files=None), "no directory /m"),
        (with_files(CONFIG), "no *.safetensors in /m"),
        (with_files(SHARD), "/m/config.json is missing or empty"),
        (
            with_files(CONFIG, SHARD, indexed=(SHARD.name, "model-00002-of-00002.safetensors")),
            "/m/model-00002-of-00002.safetensors is missing",
        ),
        (
            with_files(CONFIG, SHARD.model_copy(update={"size_bytes": 9})),
            "has 9 bytes, its header declares 10",
        ),
        (
            with_files(CONFIG, SHARD.model_copy(update={"declares_bytes": None})),
            "has no readable safetensors header",
        ),
    ],
)
def test_incomplete_checkpoint_is_described(
    files: checkpoint.CheckpointFacts, sentence: str
) -> None:
    (finding,) = failing([facts(1, checkpoint_files=files)])
    assert finding.code == "STO_MISSING_SHARD"
    assert sentence in finding.observed


def test_missing_model_is_mended_by_the_profiles_own_command() -> None:
    model = {"path": "m", "served_name": "m", "obtain": "make demo"}
    (finding,) = failing([facts(1, checkpoint_files=with_files(files=None))], model=model)
    assert finding.fix == "make demo"


def test_light_engine_needs_no_checkpoint() -> None:
    absent = facts(1, checkpoint_files=with_files(files=None))
    assert failing([absent], engine={"kind": "light"}) == []


def test_other_engine_version_than_the_profile_is_refused() -> None:
    old = runtime.PYTHON.read(facts(1)).model_copy(update={"sglang": "0.5.21"})
    (finding,) = failing([facts(1, runtime_python=old)])
    assert (finding.observed, finding.expected) == ("sglang 0.5.21", "sglang 0.5.23")
    assert finding.node == "spark1"


def test_different_versions_over_the_nodes_are_refused_even_where_none_is_demanded() -> None:
    old = runtime.PYTHON.read(facts(2)).model_copy(update={"sglang": "0.5.21"})
    (finding,) = failing([facts(1), facts(2, runtime_python=old)], engine={})
    assert finding.node is None
    assert finding.observed == "spark1 0.5.23, spark2 0.5.21"


def test_other_sparkserve_on_a_node_is_refused_with_both_versions() -> None:
    old = runtime.PYTHON.read(facts(2)).model_copy(update={"sparkserve": "0.0.1"})
    (finding,) = failing([facts(1), facts(2, runtime_python=old)])
    assert (finding.node, finding.observed) == ("spark2", "sparkserve 0.0.1")


def test_missing_interpreter_fails_with_its_path() -> None:
    gone = Unobserved(reason="exit 3: no interpreter at /x/python")
    (finding,) = failing([facts(1, runtime_python=gone)])
    assert finding.observed == "exit 3: no interpreter at /x/python"


def test_full_disk_and_unwritable_root_are_different_findings() -> None:
    full = storage.SpaceFacts(path="/srv", free_bytes=1000, total_bytes=GIB, writable=True)
    closed = full.model_copy(update={"free_bytes": GIB, "writable": False})
    assert "free on /srv" in failing([facts(1, storage_root=full)])[0].observed
    assert failing([facts(1, storage_root=closed)])[0].observed == "/srv is not writable"


def test_slow_answer_of_the_head_is_no_clock_skew_of_the_others() -> None:
    slow = facts(1)
    late = slow.collected_at + timedelta(seconds=12)
    slow = slow.model_copy(update={"collected_at": late, "elapsed_s": 12.0})
    assert failing([slow, facts(2), facts(3)]) == []


def test_clock_skew_warns_and_does_not_block() -> None:
    late = host.IDENTITY.read(facts(2))
    assert not isinstance(late, Unobserved)
    late = late.model_copy(update={"time_s": late.time_s + 30})
    (finding,) = failing([facts(1), facts(2, host_identity=late)])
    assert (finding.verdict, finding.node, finding.blocks) == ("WARN", "spark2", False)
    assert "30.0 s" in finding.observed


def test_wrong_clock_of_the_head_is_not_blamed_on_the_three_others() -> None:
    wrong = host.IDENTITY.read(facts(1))
    assert not isinstance(wrong, Unobserved)
    wrong = wrong.model_copy(update={"time_s": wrong.time_s - 45})
    (finding,) = failing([facts(1, host_identity=wrong), facts(2), facts(3), facts(4)])
    assert finding.node == "spark1"
    assert finding.observed == "clock differs by 45.0 s from most nodes'"
