"""Signs that a silent rank gets on: what its network takes in, and kernels that are compiled."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

_SYS = Path("/sys/class")
_FILES_LIMIT = 20_000
"""Files counted at most: the sign is that their number grows, not the number."""
_WORD_BYTES = 4
"""RDMA ports count received data in words of 32 bits."""
_HOME_CACHES = (".triton/cache", ".cache/flashinfer", ".cache/tilelang", ".cache/vllm",
                ".cache/torch_extensions", ".cache/tvm-ffi")  # fmt: skip


def received_bytes(sys_class: Path = _SYS) -> int | None:
    """Bytes that all network and RDMA ports took in, loopback left out; None = none is counted."""
    network = [
        _number(path)
        for path in sys_class.glob("net/*/statistics/rx_bytes")
        if path.parent.parent.name != "lo"
    ]
    rdma = [_number(path) for path in sys_class.glob("infiniband/*/ports/*/counters/port_rcv_data")]
    known = [n for n in network if n is not None]
    known += [n * _WORD_BYTES for n in rdma if n is not None]
    return sum(known) if known else None


def cache_dirs(root: Path, env: Mapping[str, str], home: Path) -> list[Path]:
    """Where an engine with this environment keeps what it compiles."""
    named = [Path(value) for name, value in env.items() if name.endswith("CACHE_DIR") and value]
    return list(dict.fromkeys([*named, root / "cache", *(home / name for name in _HOME_CACHES)]))


def cache_files(folders: Iterable[Path]) -> int:
    """How many files lie below some folders, counted up to ``_FILES_LIMIT``."""
    count = 0
    for folder in folders:
        for _, _, names in os.walk(folder):
            count += len(names)
            if count >= _FILES_LIMIT:
                return _FILES_LIMIT
    return count


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        # A port without a carrier, or one that went away.
        return None
