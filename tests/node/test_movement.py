"""Signs of life of a rank that logs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkserve.model.node_state import Progress
from sparkserve.node import movement

MIB = 1 << 20


def counters(at_s: float, **values: int | None) -> Progress:
    base = {"log_bytes": 0, "read_bytes": 0, "cpu_s": 0, "rss_bytes": 0,
            "memory_available_bytes": 0, "processes": 1}  # fmt: skip
    return Progress.model_validate({"at_s": at_s, **base, **values})


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_network_and_rdma_are_added_and_loopback_is_left_out(tmp_path: Path) -> None:
    put(tmp_path / "net/eth0/statistics/rx_bytes", "100\n")
    put(tmp_path / "net/lo/statistics/rx_bytes", "7777\n")
    put(tmp_path / "infiniband/rocep1s0f0/ports/1/counters/port_rcv_data", "50\n")
    put(tmp_path / "net/eth1/statistics/rx_bytes", "no figure\n")
    assert movement.received_bytes(tmp_path) == 100 + 4 * 50


def test_node_that_counts_nothing_is_unknown(tmp_path: Path) -> None:
    assert movement.received_bytes(tmp_path) is None


def test_files_below_all_caches_are_counted(tmp_path: Path) -> None:
    put(tmp_path / "root/cache/a/k.so", "")
    put(tmp_path / "home/.triton/cache/x/y.ptx", "")
    put(tmp_path / "tl/z", "")
    env = {"TILELANG_CACHE_DIR": str(tmp_path / "tl"), "PATH": "/bin", "X_CACHE_DIR": ""}
    folders = movement.cache_dirs(tmp_path / "root", env, tmp_path / "home")
    assert movement.cache_files(folders) == 3


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ({"read_bytes": 1}, {"read_bytes": 2}, True),
        ({"cache_files": 4}, {"cache_files": 5}, True),
        ({"cache_files": None}, {"cache_files": 5}, False),
        ({"received_bytes": 0}, {"received_bytes": 2 * MIB}, True),
        ({"received_bytes": 0}, {"received_bytes": 2 * MIB - 1}, False),
        ({"received_bytes": None}, {"received_bytes": 9 * MIB}, False),
        ({}, {}, False),
    ],
)
def test_reading_compiling_and_real_traffic_are_progress(
    before: dict[str, int | None], after: dict[str, int | None], moved: bool
) -> None:
    assert counters(12.0, **after).moved_since(counters(10.0, **before)) is moved
