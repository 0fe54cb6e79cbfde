"""The all-reduce: what a launch would give each rank, and real ranks that exchange."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sparkserve.planning import all_reduce as planning
from tests.ports import free_port
from tests.scenes import place, profile


def test_each_rank_gets_the_network_of_its_launch_and_nothing_else() -> None:
    wish = profile(parallel={"tp": 2}, fabric={"nccl": {"NCCL_NET": "IB"}})
    places = (place(1), place(2, gid_index=5))
    first, second = planning.all_reduce(wish, places)
    assert (first.node, second.node) == ("spark1", "spark2")
    assert "NCCL_NET=IB" in first.command
    assert "NCCL_IB_GID_INDEX=5" in second.command
    assert "NCCL_IB_GID_INDEX" not in first.command
    assert "SGLANG" not in first.command
    assert f"192.168.0.11:{planning.PORT}" in second.command
    assert max(planning.SIZES_BYTES) <= 256 << 20


def test_real_ranks_sum_right_and_rank_0_prints_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "PORT", free_port())
    monkeypatch.setattr(planning, "SIZES_BYTES", (1 << 20, 4 << 20))
    here = {"address": "127.0.0.1", "interface": "lo", "python": sys.executable}
    tests = planning.all_reduce(profile(parallel={"tp": 2}), (place(1, **here), place(2, **here)))
    ranks = [
        subprocess.Popen(["sh", "-c", test.command], stdout=subprocess.PIPE, text=True)
        for test in tests
    ]
    answers = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    backend, *rows = answers[0].splitlines()
    assert backend == "backend gloo"
    assert [row.split()[0] for row in rows] == ["1048576", "4194304"]
    assert [row.split()[-1] for row in rows] == ["0", "0"]
    assert answers[1].splitlines() == ["backend gloo"]
