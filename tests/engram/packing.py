"""Run the packer inside the test's process, and say by other means what must come out."""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Any

from sparkserve.engram.local_source import LocalFolder
from sparkserve.engram.pack import PackRun
from sparkserve.engram.reporter import Reporter
from sparkserve.engram.source import Folder
from sparkserve.engram.verify_job import VerifyRun
from sparkserve.model.pack import PackDone, PackEvent, PackJob, VerifyJob
from tests.engram.checkpoints import Checkpoint


class Run:
    """What a job said."""

    def __init__(self) -> None:
        self.events: list[PackEvent] = []
        self.stop = threading.Event()
        self.reporter = Reporter(self.events.append, self.stop)

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.event == kind]


def job_of(checkpoint: Checkpoint, out: Path, **fields: Any) -> PackJob:
    base = {"source": str(checkpoint.folder), "out": str(out), "tp": 1, "rank": 0}
    return PackJob.model_validate(base | {"reserve_gib": 0, "chunk_mib": 1} | fields)


def pack(job: PackJob, run: Run | None = None, folder: Folder | None = None) -> PackDone:
    run = run or Run()
    return PackRun(job, folder or LocalFolder(Path(job.source)), run.reporter).run()


def verify(job: VerifyJob, run: Run | None = None) -> PackDone:
    run = run or Run()
    folder = LocalFolder(Path(job.source)) if job.source is not None else None
    return VerifyRun(job, folder, run.reporter).run()


def columns_of(layout: str, rank: int, tp: int, columns: int) -> list[int] | None:
    """Whole columns of a rank, worked out without the product; None = the rows are cut evenly."""
    if layout == "strided":
        return [column for column in range(columns) if column % tp == rank]
    if layout == "columns" and columns % tp == 0:
        each = columns // tp
        return list(range(rank * each, rank * each + each))
    return None


def expected_file(checkpoint: Checkpoint, layer: int, layout: str, rank: int, tp: int) -> bytes:
    """The shard's file by the specification's words alone."""
    table = checkpoint.packed(layer)
    sizes = checkpoint.sizes[checkpoint.layer_ids.index(layer)]
    width = checkpoint.dim + checkpoint.dim // 32
    total = len(table) // width
    mine = columns_of(layout, rank, tp, len(sizes))
    if mine is None:
        start, end = total * rank // tp, total * (rank + 1) // tp
        rows = table[start * width : end * width]
    else:
        starts = [sum(sizes[:column]) for column in mine]
        rows = b"".join(
            table[start * width : (start + sizes[column]) * width]
            for start, column in zip(starts, mine, strict=True)
        )
        start = starts[0] if starts else 0
        end = start + len(rows) // width
    if layout == "strided":
        head = b"SPKENGS1" + struct.pack(
            f"<6Q{len(mine or ())}I",
            layer, rank, tp, len(rows) // width, width, len(mine or ()), *(mine or ()),
        )  # fmt: skip
    else:
        head = b"DSV41EN1" + struct.pack("<5Q", layer, start, end, total, width)
    return head.ljust(4096, b"\0") + rows


def shard_name(layer: int, layout: str, rank: int, tp: int) -> str:
    infix = ".strided" if layout == "strided" else ""
    return f"engram-l{layer}-r{rank}of{tp}{infix}.bin"


def leftovers(out: Path) -> list[str]:
    """What lies in a folder besides shards, manifests and lock files."""
    return sorted(
        path.name
        for path in out.iterdir()
        if path.is_file()
        and not path.name.endswith((".bin", ".lock"))
        and not (path.name.startswith("manifest-") and path.suffix == ".json")
    )
