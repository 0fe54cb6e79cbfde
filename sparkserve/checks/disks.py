"""Disks: where packed rows and copies land, and how fast small rows are read."""

from __future__ import annotations

from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.scene import Scene
from sparkserve.facts.disk_speed import DiskSpeed
from sparkserve.facts.exports import CopyFailure
from sparkserve.facts.filesystems import NETWORKED, Filesystem, Filesystems, is_below
from sparkserve.units import GIB, format_bytes

_PACKED_GIB = {3: 66, 4: 50, 8: 26}
"""Free space for one rank's packed rows by tp; 50 is upstream's, 66 and 26 are [proposal]."""
_IOPS = 50_000
"""[proposal] at queue depth 64; a GB10 reads about 112,000 (spec: preflight 3.4)."""


def _packed_space(scene: Scene) -> Iterator[Judgement]:
    wanted = scene.wanted
    path = wanted.engram_dir
    if path is None or not path.startswith("/") or scene.wish is not None:
        # A live node is asked for the very file system and size (PCK_* and DISK.FREE).
        return
    need_gib = _PACKED_GIB.get(wanted.tp or wanted.nodes or 4, 50)
    for place, fact in scene.each(Filesystems):
        found = fact.holding(path)
        if found is None or found.available_bytes is None:
            continue
        free = format_bytes(found.available_bytes)
        if found.available_bytes >= need_gib * GIB:
            yield passed(place, f"engram_dir {path} is on {found.target} with {free} free")
            continue
        best = _roomiest(fact)
        other = best is not None and best.target != found.target
        yield Judgement(
            place, "fail",
            observed=f"engram_dir {path} is on {found.target} with {free} free"
            + (f", not on {best.target} with {_free(best)}" if best and other else ""),
            expected=f"at least {need_gib} GiB free for one rank's packed rows",
            fix=f"set engram_dir below {best.target}" if best and other else f"free {found.target}",
        )  # fmt: skip


def _free(filesystem: Filesystem) -> str:
    return format_bytes(filesystem.available_bytes or 0)


def _roomiest(fact: Filesystems) -> Filesystem | None:
    known = [one for one in fact.filesystems if one.available_bytes is not None]
    return max(known, key=lambda one: one.available_bytes or 0, default=None)


def _parent(scene: Scene) -> Iterator[Judgement]:
    for place, failure, _ in scene.seen(CopyFailure):
        if failure.path is None:
            continue
        around = [
            (where, one)
            for where, fact, _ in scene.seen(Filesystems)
            for one in fact.filesystems
            if one.path not in (None, "/") and is_below(failure.path, one.path or "/")
        ]
        stray = [(w, one) for w, one in around if not is_below(one.target, one.path or "/")
                 and len(one.target) < len(one.path or "")]  # fmt: skip
        for where, one in stray:
            yield Judgement(
                where, "fail",
                observed=f"{one.path} is not a mount point on {where or 'the node'}: "
                f"{failure.path} would land on {one.target} ({one.source or 'the root disk'})",
                expected=f"a file system mounted at {one.path}",
                fix=f"on {where or 'the node'}: sudo mount {one.path} && mkdir -p {failure.path}",
                evidence=(failure.message,),
            )  # fmt: skip
        if not stray:
            yield Judgement(
                place, "fail", observed=f"{failure.tool} cannot make {failure.path}",
                expected="its parent folder on the receiver",
                fix=f"on the receiver: findmnt -T {failure.path}; mkdir -p {failure.path}",
                evidence=(failure.message,),
            )  # fmt: skip


def _local_disk(scene: Scene) -> Iterator[Judgement]:
    path = scene.wanted.engram_dir
    if path is None or not path.startswith("/"):
        return
    wish = scene.wish
    toy = wish is not None and (wish.engine.device == "cpu" or wish.engine.kind == "light")
    for place, fact in scene.each(Filesystems):
        found = fact.holding(path)
        if found is None or found.kind is None:
            continue
        if found.kind in NETWORKED or found.kind.startswith("fuse"):
            yield Judgement(
                place, "fail", observed=f"{path} is on {found.kind} ({found.source})",
                expected="a local disk", fix="set engram.directory to a folder on the node's NVMe",
            )  # fmt: skip
        elif found.kind in ("overlay", "overlayfs", "tmpfs", "ramfs"):
            yield Judgement(
                place, "fail", observed=f"{path} is on {found.kind}", expected="a local disk",
                severity="info" if toy else None,
                fix="set engram.directory to a folder on the node's NVMe",
            )  # fmt: skip
        else:
            yield passed(place, f"{path} is on {found.kind} ({found.source or found.target})")


def _speed(scene: Scene) -> Iterator[Judgement]:
    wish = scene.wish
    if wish is not None and wish.engram.directory is None:
        return
    for place, speed in scene.each(DiskSpeed):
        if speed.iops is None:
            yield Judgement(place, "skipped", observed=speed.reason or "nothing was measured")
            continue
        shown = f"{speed.iops} random reads of 4 KiB per second at queue depth {speed.queue_depth}"
        # Another depth has another bound, and what is no NVMe disk was not bought for this.
        comparable = (speed.queue_depth or 0) >= 32 and (wish is None or speed.is_nvme)
        if speed.iops >= _IOPS or not comparable:
            yield passed(place, shown)
        else:
            yield Judgement(
                place, "fail", observed=shown, expected=f"at least {_IOPS} at queue depth 64",
                fix="look for other load (iostat -x 1) and at the disk's health (nvme smart-log)",
            )  # fmt: skip


DISKS: tuple[Check, ...] = (
    Check(
        "DISK.ENGRAM", "STO_DISK_WRONG_FS", "Packed rows go to a disk with room", ("doctor",),
        "error", "hardware", (Filesystems,), _packed_space,
        why="the folder's name does not tell on which file system it lies",
        fix="set engram.directory to a folder on the large disk",
        symptom="Packing ends with 'No space left on device', or / is full.",
        text_only="on a live node DISK.FREE and the checks of packing ask for the very folder",
    ),
    Check(
        "DISK.PATH", "SSH_RSYNC_PARENT_MISSING", "Copies land on the disk that is meant",
        ("prepare",), "error", "hardware", (CopyFailure, Filesystems), _parent,
        why="where a disk is not mounted, a folder of its name lies on / and fills it",
        fix="findmnt -T FOLDER on the receiver",
        symptom="rsync: mkdir failed: No such file or directory; or the root disk fills up.",
        text_only="doctor copies nothing",
    ),
    Check(
        "NVME.LOCAL", "STO_NOT_LOCAL", "Engram rows lie on a local disk", ("doctor",), "error",
        "hardware", (Filesystems,), _local_disk,
        why="every token reads rows of 264 bytes at random, which a network share cannot serve",
        fix="pack to the node's own NVMe",
        symptom="Decoding is many times slower than published.",
    ),
    Check(
        "NVME.IOPS", "STO_SLOW_DISK", "The disk reads small rows fast enough", ("doctor",),
        "warning", "hardware", (DiskSpeed,), _speed,
        why="every token waits for some hundred random reads per layer",
        fix="iostat -x 1",
        symptom="Decoding is slow while GPU and fabric are idle.",
    ),
)  # fmt: skip
