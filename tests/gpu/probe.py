"""What the machine is: one JSON object. Run as a script in a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

_PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "numpy",
    "sglang",
    "sglang-kernel",
    "flashinfer-python",
)


def direct_io(folder: Path) -> str:
    """Whether files in the folder can be read past the page cache."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(bytes(1 << 16))
        file.flush()
        try:
            os.close(os.open(file.name, os.O_RDONLY | os.O_DIRECT))
        except OSError as error:
            return str(error)
    return "ok"


def output(*command: str) -> str:
    """First lines a command says, or why it said nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        return str(error)
    return (done.stdout or done.stderr).strip()[:400]


def row_store(folder: Path) -> dict[str, str]:
    """Which engines of the row store work here."""
    from sparkserve_native.row_store import RowFile, RowStore, Segment, StoreOptions

    path = folder / "probe.rows"
    path.write_bytes(bytes(264 * 64))
    file = RowFile(str(path), 0, 64, 256, 8, 64, (Segment(0, 64, 0),))
    found = {}
    for engine in ("auto", "io_uring", "pread"):
        try:
            with RowStore(file, StoreOptions(engine=engine)) as store:
                stats = store.stats()
                found[engine] = (
                    f"{store.engine} {store.engine_reason} direct_io={stats.direct_io} "
                    f"alignment={stats.alignment_bytes}"
                )
        except OSError as error:
            found[engine] = str(error)
    return found


def main() -> None:
    import torch

    folder = Path.cwd()
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "missing"
    facts: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "driver": output(
            "nvidia-smi",
            "--query-gpu=driver_version,clocks.sm,memory.total",
            "--format=csv,noheader",
        ),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "versions": versions,
        "compilers": [output("nvcc", "--version")[-80:], output("g++", "--version")[:60]],
        "filesystem": output("findmnt", "-no", "FSTYPE,SOURCE,OPTIONS", "-T", str(folder))[:200],
        "direct_io": direct_io(folder),
    }
    try:
        facts["row_store"] = row_store(folder)
    except Exception as error:
        facts["row_store"] = f"{type(error).__name__}: {error}"
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
