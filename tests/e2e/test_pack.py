"""Packing over SSH on simulated Sparks: the whole table, whatever happens on the way."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkserve.engram.ownership import Layout
from tests.e2e.fleet import Finished, Fleet
from tests.e2e.table_server import TableServer
from tests.engram.checkpoints import Checkpoint
from tests.engram.packing import expected_file
from tests.testbed.node import Node

pytestmark = pytest.mark.testbed

OUT = "/mnt/nvme/engram"
LAYERS = (1, 14)
PACKER = "sparkserve.node pack"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Two tables of 24 columns: about 9 MB each."""
    folder = tmp_path_factory.mktemp("checkpoint")
    return Checkpoint(folder, vocab_size=1409, heads=8).write()


@pytest.fixture
def tables(fleet: Fleet, checkpoint: Checkpoint) -> Iterator[TableServer]:
    server = TableServer(fleet.testbed, checkpoint.folder)
    yield server
    server.close()


def profile(fleet: Fleet, ranks: int, layout: Layout = "columns", **sections: Any) -> Path:
    engram = {"directory": OUT, "layout": layout}
    return fleet.profile(ranks, **({"engram": engram, "model": {"path": "v41"}} | sections))


def arguments(path: Path, *more: str | Path) -> tuple[str | Path, ...]:
    """A pack of one-MiB steps that needs no spare disk."""
    bounds = ("--reserve-gib", "0", "--chunk-mib", "1")
    return ("pack", "--cluster", "fleet", "--profile", path, "--json", *bounds, *more)


def pack(fleet: Fleet, path: Path, *more: str | Path) -> Finished:
    return fleet.run(*arguments(path, *more))


def result(finished: Finished) -> dict[str, Any]:
    """Data of the last event."""
    assert finished.events, finished.stderr
    data: dict[str, Any] = finished.events[-1]["data"]
    return data


def outcomes(finished: Finished) -> dict[str, str]:
    return {rank["node"]: rank["state"] for rank in result(finished)["ranks"]}


def actions(finished: Finished) -> set[str]:
    return {layer["action"] for rank in result(finished)["ranks"] for layer in rank["layers"]}


def digest_on(node: Node, path: str) -> str:
    return node.inside(["sha256sum", path]).stdout.split()[0]


def assert_packed(
    fleet: Fleet, checkpoint: Checkpoint, ranks: int, layout: Layout = "columns"
) -> None:
    """Every node holds exactly its rank's rows, and nothing half-done."""
    infix = ".strided" if layout == "strided" else ""
    for rank, node in enumerate(fleet.nodes[:ranks]):
        for layer in LAYERS:
            path = f"{OUT}/engram-l{layer}-r{rank}of{ranks}{infix}.bin"
            wanted = expected_file(checkpoint, layer, layout, rank, ranks)
            assert digest_on(node, path) == hashlib.sha256(wanted).hexdigest(), (node.name, layer)
        left = node.inside(["ls", OUT]).stdout.split()
        assert left == sorted([
            *(f"engram-l{layer}-r{rank}of{ranks}{infix}.bin" for layer in LAYERS),
            f"manifest-r{rank}of{ranks}{infix}.json",
        ])  # fmt: skip


def jobs_on(node: Node) -> list[str]:
    """What packing left of its orders."""
    found = node.inside(["sh", "-c", "ls /home/spark/sparkserve/state/pack 2>/dev/null || :"])
    return found.stdout.split()


@pytest.mark.parametrize(("ranks", "layout"), [(4, "columns"), (3, "strided")])
def test_ranks_pack_in_parallel_and_together_hold_the_table(
    fleet: Fleet, checkpoint: Checkpoint, tables: TableServer, ranks: int, layout: Layout
) -> None:
    path = profile(fleet, ranks, layout)
    packed = pack(fleet, path, "--source", tables.url, "--verify", "none")
    assert packed.code == 0, packed.error
    assert_packed(fleet, checkpoint, ranks, layout)
    assert actions(packed) == {"packed"}
    rates = [e["data"] for e in packed.events if e["kind"] == "progress"]
    assert {e["node"] for e in packed.events if e["kind"] == "progress"} == {
        f"spark{n + 1}" for n in range(ranks)
    }
    assert all(0 <= rate["done_bytes"] <= rate["total_bytes"] for rate in rates)
    before = [node.inside(["stat", "-c", "%Y %i", OUT]).stdout for node in fleet.nodes[:ranks]]
    again = pack(fleet, path, "--source", tables.url, "--verify", "none")
    assert (again.code, actions(again)) == (0, {"kept"})
    assert before == [n.inside(["stat", "-c", "%Y %i", OUT]).stdout for n in fleet.nodes[:ranks]]
    assert [jobs_on(node) for node in fleet.nodes[:ranks]] == [[]] * ranks


def test_killed_packer_lets_the_others_finish_and_goes_on_where_it_was(
    fleet: Fleet, checkpoint: Checkpoint, tables: TableServer
) -> None:
    path = profile(fleet, 3)
    tables.hold(3 << 20)
    running = fleet.start(*arguments(path, "--source", tables.url, "--verify", "none"))
    tables.wait_held(3)
    assert fleet.nodes[1].kill(PACKER) > 0
    tables.go()
    ended = running.finish()
    assert (ended.code, outcomes(ended)) == (
        1, {"spark1": "done", "spark2": "failed", "spark3": "done"},
    )  # fmt: skip
    (failed,) = [rank for rank in result(ended)["ranks"] if rank["state"] == "failed"]
    assert "without a last word" in failed["finding"]["observed"]
    again = pack(fleet, path, "--source", tables.url, "--verify", "none")
    assert (again.code, actions(again)) == (0, {"kept", "packed", "resumed"})
    assert_packed(fleet, checkpoint, 3)


def test_lost_connection_is_opened_again_and_the_same_command_ends_well(
    fleet: Fleet, checkpoint: Checkpoint, tables: TableServer
) -> None:
    path = profile(fleet, 2)
    tables.hold(3 << 20)
    running = fleet.start(*arguments(path, "--source", tables.url, "--verify", "none"))
    tables.wait_held(2)
    assert fleet.nodes[1].kill("^sshd: spark") > 0
    running.wait_event(kind="notice", message="spark2: the connection was lost; trying again")
    tables.go()
    ended = running.finish()
    assert ended.code == 0, ended.error
    assert_packed(fleet, checkpoint, 2)
    assert [jobs_on(node) for node in fleet.nodes[:2]] == [[], []]


def test_dark_link_is_outlived_by_the_packer_on_the_node(
    fleet: Fleet, checkpoint: Checkpoint, tables: TableServer
) -> None:
    """The node does not know that nobody listens: what it does meanwhile is not lost."""
    path = profile(fleet, 2)
    tables.hold(3 << 20)
    running = fleet.start(*arguments(path, "--source", tables.url, "--verify", "none"))
    tables.wait_held(2)
    with fleet.nodes[1].blackhole():
        tables.go()
        running.wait_event(kind="notice", message="spark2: the connection was lost; trying again")
    ended = running.finish()
    assert ended.code == 0, ended.error
    assert_packed(fleet, checkpoint, 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_controller_that_ends_takes_the_packers_with_it_and_loses_no_work(
    fleet: Fleet, checkpoint: Checkpoint, tables: TableServer, number: signal.Signals
) -> None:
    path = profile(fleet, 3)
    tables.hold(3 << 20)
    running = fleet.start(*arguments(path, "--source", tables.url, "--verify", "none"))
    tables.wait_held(3)
    running.interrupt(number)
    ended = running.finish()
    fleet.wait_silent(*fleet.nodes[:3], what="no packer is left")
    if number == signal.SIGINT:
        assert ended.code == 130
        assert result(ended)["interrupted"]
        assert set(outcomes(ended).values()) == {"interrupted"}
    tables.go()
    again = pack(fleet, path, "--source", tables.url, "--verify", "none")
    assert again.code == 0, again.error
    assert "resumed" in actions(again)
    assert_packed(fleet, checkpoint, 3)
    assert [jobs_on(node) for node in fleet.nodes[:3]] == [[], [], []]


def test_second_pack_is_refused_and_the_first_goes_on(
    fleet: Fleet, checkpoint: Checkpoint, tables: TableServer
) -> None:
    path = profile(fleet, 2)
    tables.hold(3 << 20)
    running = fleet.start(*arguments(path, "--source", tables.url, "--verify", "none"))
    tables.wait_held(2)
    second = pack(fleet, path, "--source", tables.url, "--verify", "none")
    assert second.code == 2
    assert {rank["finding"]["code"] for rank in result(second)["ranks"]} == {"PCK_LOCKED"}
    tables.go()
    assert running.finish().code == 0
    assert_packed(fleet, checkpoint, 2)


def test_full_disk_and_absent_node_are_named_and_the_others_finish(
    fleet: Fleet, checkpoint: Checkpoint, tables: TableServer
) -> None:
    path = profile(fleet, 4)
    options = ("--source", tables.url, "--verify", "none")
    fleet.nodes[3].stop()
    with fleet.nodes[1].fill("/mnt/nvme", leave_kib=1024):
        ended = pack(fleet, path, *options)
    assert outcomes(ended) == {
        "spark1": "done", "spark2": "failed", "spark3": "done", "spark4": "failed",
    }  # fmt: skip
    found = {r["node"]: r["finding"] for r in result(ended)["ranks"] if r["finding"]}
    assert {node: finding["code"] for node, finding in found.items()} == {
        "spark2": "PCK_NO_SPACE", "spark4": "NET_UNREACHABLE",
    }  # fmt: skip
    assert ended.code == 4
    assert fleet.nodes[1].inside(["ls", "/mnt/nvme"]).stdout.split() == []
    fleet.nodes[3].start()
    again = pack(fleet, path, *options)
    assert again.code == 0, again.error
    assert_packed(fleet, checkpoint, 4)


def test_token_reaches_the_nodes_and_nothing_else(
    fleet: Fleet, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    tables = TableServer(fleet.testbed, checkpoint.folder, token="hf_Secret123")
    try:
        path = profile(fleet, 2)
        without = pack(fleet, path, "--source", tables.url, "--verify", "none")
        assert without.code == 3
        assert {r["finding"]["code"] for r in result(without)["ranks"]} == {"PCK_SOURCE_REFUSED"}
        secret = tmp_path / "token"
        secret.write_text("hf_Secret123\n")
        options = ("--source", tables.url, "--verify", "none", "--token-file", secret)
        secret.chmod(0o644)
        assert "has mode 0644, expected 0600" in pack(fleet, path, *options).error
        secret.chmod(0o600)
        tables.hold(3 << 20)
        running = fleet.start(*arguments(path, *options))
        tables.wait_held(2)
        assert [jobs_on(node) for node in fleet.nodes[:2]] == [[], []], "read and gone"
        commands = [p.command for node in fleet.nodes for p in node.processes()]
        assert not [command for command in commands if "hf_Secret123" in command]
        tables.go()
        ended = running.finish()
        assert ended.code == 0, ended.error
        assert "hf_Secret123" not in ended.stdout + ended.stderr
        assert [jobs_on(node) for node in fleet.nodes[:2]] == [[], []]
        assert_packed(fleet, checkpoint, 2)
    finally:
        tables.close()


def test_launch_wants_the_shards_and_verify_finds_a_flipped_bit(
    fleet: Fleet, checkpoint: Checkpoint, tables: TableServer
) -> None:
    path = profile(fleet, 2)
    dry = ("launch", "--cluster", "fleet", "--profile", path, "--json", "--dry-run")
    refused = fleet.run(*dry)
    assert refused.code == 4
    assert "no packed Engram rows" in refused.error
    assert pack(fleet, path, "--source", tables.url, "--verify", "none").code == 0
    assert fleet.run(*dry).code == 0
    check = ("verify", "--engram", "--cluster", "fleet", "--profile", path, "--json")
    good = fleet.run(*check)
    assert good.code == 0, good.error
    assert {shard["checksums"] for shard in result(good)["shards"]} == {"pass"}
    assert fleet.run(*check, "--strict").code == 1, "there is no source to compare with"
    shard = f"{OUT}/engram-l14-r1of2.bin"
    offset = 4096 + 264 * 5000 + 17
    fleet.nodes[1].inside(
        ["python3", "-c", "import sys; f = open(sys.argv[1], 'r+b'); f.seek(int(sys.argv[2]));"
         "b = f.read(1); f.seek(-1, 1); f.write(bytes([b[0] ^ 1]))", shard, str(offset)]
    )  # fmt: skip
    found = fleet.run(*check, "--source", tables.url, "--full")
    assert found.code == 1
    (bad,) = [v for v in result(found)["shards"] if v["outcome"] == "fail"]
    assert (bad["node"], bad["layer"]) == ("spark2", 14)
    assert f"at byte {offset}" in bad["reason"]
    assert "row 5000" in bad["reason"]
    assert fleet.run(*check).code == 1, "the manifest's checksums find it too"
