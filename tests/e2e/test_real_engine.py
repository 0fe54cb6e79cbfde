"""Real SGLang under sparkserve: one rank on this machine, two ranks on two nodes over SSH."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkserve.paths import config_dir
from tests.e2e.fleet import Fleet, Local
from tests.testbed.plugin import MakeTestbed

pytestmark = pytest.mark.engine


def tiny_sections(root: Path) -> dict[str, object]:
    """The tiny Engram model, served by the CPU engine with rows from packed files."""
    return {
        "name": "tiny-engram",
        "model": {
            "path": str(root / "checkpoints" / "tiny-engram"),
            "served_name": "tiny-engram",
            "external_package": "sparkserve.sim.demo_model",
        },
        "engine": {
            "kind": "sglang",
            "version": "0.5.23",
            "python": sys.executable,
            "device": "cpu",
            "shim": "cpu",
            "extra_args": ["--sleep-on-idle", "--skip-server-warmup"],
        },
        "context": {"length_tokens": 1024, "kv_tokens": 4096, "mem_fraction_static": 0.1},
        "engram": {"directory": str(root / "engram" / "tiny-engram")},
        # Random weights answer nothing sensible; what they prove here is the way there.
        "gate": {"prompt": "hello", "max_tokens": 8, "plausible": False},
        "adapters": {"engram_rows": {}},
        "limits": {"no_progress_s": 240},
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    made = Local(tmp_path)
    yield made
    made.close()


def test_one_local_rank_serves_rows_reports_and_stops(local: Local, tiny_root: Path) -> None:
    sections = tiny_sections(tiny_root)
    sections["serving"] = {"port": free_port()}
    launched = local.launch(**sections)
    assert launched.code == 0, launched.error
    status = local.status()
    assert (status["outcome"], status["healthy"]) == ("serving", True)
    assert status["ranks"][0]["progress"]["engram_rows"] > 0
    reports = [e["data"] for e in launched.events if e["kind"] == "report"]
    (scheduler,) = [r for r in reports if r["role"] == "scheduler"]
    assert [a["name"] for a in scheduler["adapters"]] == ["engram_rows"]
    assert scheduler["engine_version"] == "0.5.23"
    assert local.run("chat", "--max-tokens", "4", "hi").code == 0
    assert local.run("stop").code == 0
    assert local.status()["outcome"] == "stopped"


def test_corrupt_shard_refuses_before_anything_starts_with_path_fix_and_exit_4(
    local: Local, tiny_root: Path
) -> None:
    rows = local.folder / "rows"
    rows.mkdir()
    for path in (tiny_root / "engram" / "tiny-engram").glob("*of1.bin"):
        content = path.read_bytes()
        (rows / path.name).write_bytes(content if "l0" in path.name else content[:-1])
    sections = tiny_sections(tiny_root)
    sections["serving"] = {"port": free_port()}
    sections["engram"] = {"directory": str(rows)}
    launched = local.launch(**sections)
    assert launched.code == 4
    assert "engram-l1-r0of1.bin" in launched.error
    assert "sparkserve pack" in launched.error
    assert not [event for event in launched.events if event["kind"] == "step"]


@pytest.mark.testbed
def test_two_ranks_over_ssh_serve_lose_one_and_stop(
    make_testbed: MakeTestbed, tiny_root: Path, tmp_path: Path
) -> None:
    config_dir().mkdir(parents=True)
    fleet = Fleet(make_testbed(nodes=2, binds=(str(tiny_root),)), tmp_path)
    try:
        sections = {**tiny_sections(tiny_root), "parallel": {"tp": 2}}
        profile = fleet.write_profile(sections)
        launched = fleet.run("launch", "--cluster", "fleet", "--profile", profile, "--json")
        assert launched.code == 0, launched.error
        status = fleet.status()
        assert [rank["state"] for rank in status["ranks"]] == ["running", "running"]
        # Each rank opens and serves only the rows it owns.
        assert all(rank["progress"]["engram_rows"] > 0 for rank in status["ranks"])
        reports = [e["data"] for e in launched.events if e["kind"] == "report"]
        deciding = {r["rank"]: r for r in reports if r["role"] == "scheduler"}
        assert set(deciding) == {0, 1}
        assert deciding[0]["adapters"] == deciding[1]["adapters"]
        assert fleet.run("chat", "--max-tokens", "4", "hi").code == 0
        lines = fleet.run("logs", "spark2", "--json").events
        assert any("Load weight end" in line["line"] for line in lines)
        killed_at_s = time.time()
        assert fleet.nodes[1].kill("sglang") > 0
        fleet.wait_silent()
        states = [
            json.loads(
                node.inside(
                    ["sh", "-c", "cat /home/spark/sparkserve/state/runs/*/state.json"]
                ).stdout
            )
            for node in fleet.nodes
        ]
        assert [state["origin_rank"] for state in states] == [1, 1]
        ends = [state["at_s"] for state in states]
        assert max(ends) - killed_at_s < 2.0
        ended = fleet.status()
        assert ended["outcome"] == "failed"
        assert "engine" in ended["ranks"][1]["reason"]
        assert fleet.run("stop").code == 0
    finally:
        fleet.close()
