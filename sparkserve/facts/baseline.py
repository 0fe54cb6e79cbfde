"""What a node was like at its best: after a reboot, idle, at the last good launch.

Thresholds that came from a few sites do not fit every kernel, so each node is also compared with
itself. The controller keeps one such record per node and hands it in as a reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from sparkserve.facts.kernel import HostVersions, versions_of
from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.facts.unified import Buddyinfo, Meminfo
from sparkserve.model.reading import Reading
from sparkserve.units import MIB

BASELINE = "node baseline"
"""``what`` of the reading that holds a node's record as JSON."""
FRESH_S = 1800.0
"""A node up for less was just rebooted: what is read then is its post-reboot value. [proposal]"""
_LARGE = 32 * MIB
_MIDDLE = 4 * MIB


class NodeBaseline(Fact):
    """A node's own record; None = never seen."""

    schema_version: Literal[1] = 1
    boot_id: str | None = None
    """Boot in which the blocks were counted."""
    large_blocks: float | None = None
    """Free memory in blocks of at least 32 MiB, counted in such blocks."""
    middle_blocks: float | None = None
    """The same for 4 MiB."""
    is_post_reboot: bool | None = None
    """Whether the blocks were counted soon after that boot."""
    best_available_bytes: int | None = None
    """Largest MemAvailable ever seen."""
    best_canary_ms: float | None = None
    served_with: dict[str, str] | None = None
    """Versions at the last launch that became ready, by name."""


class Seen(Fact):
    """What one look at a node gives for its record; nothing of it is judged."""

    versions: HostVersions | None = None
    memory: Meminfo | None = None
    buddyinfo: Buddyinfo | None = None
    canary_ms: float | None = None


def blocks_of(buddyinfo: Buddyinfo, page_bytes: int, block_bytes: int) -> float | None:
    """Free memory of zone Normal in blocks of at least ``block_bytes``, counted in such blocks.

    None where no zone Normal is there, or where the kernel keeps no list of such large blocks.
    Zone DMA does not count: the driver cannot use it.
    """
    normal = [zone.blocks for zone in buddyinfo.zones if zone.name == "Normal"]
    order = (block_bytes // page_bytes).bit_length() - 1
    if not normal or all(len(blocks) <= order for blocks in normal):
        return None
    return float(
        sum(
            count << (k - order)
            for blocks in normal
            for k, count in enumerate(blocks)
            if k >= order
        )
    )


def is_idle(memory: Meminfo) -> bool:
    """Whether no server holds the memory: at least half of it is available [proposal]."""
    if memory.available_bytes is None:
        return False
    total = memory.total_bytes if memory.total_bytes is not None else 128 << 30
    return memory.available_bytes >= total / 2


def updated(old: NodeBaseline | None, seen: Seen, *, became_ready: bool) -> NodeBaseline:
    """The record after one more look.

    Blocks: those of a look soon after a reboot replace all others; without one, the best of the
    same boot stands. A node in use changes nothing but ``served_with``.

    became_ready: whether this look belongs to a launch that became ready.
    """
    record = old or NodeBaseline()
    changes: dict[str, object] = {}
    memory = seen.memory
    if memory is not None and is_idle(memory) and memory.available_bytes is not None:
        changes["best_available_bytes"] = max(
            memory.available_bytes, record.best_available_bytes or 0
        )
        changes |= _blocks(record, seen)
    if seen.canary_ms is not None:
        changes["best_canary_ms"] = min(seen.canary_ms, record.best_canary_ms or seen.canary_ms)
    if became_ready and seen.versions is not None:
        changes["served_with"] = versions_of(seen.versions)
    return record.model_copy(update=changes)


def _blocks(record: NodeBaseline, seen: Seen) -> dict[str, object]:
    if seen.buddyinfo is None or seen.versions is None:
        return {}
    page = seen.versions.page_bytes or 4096
    large = blocks_of(seen.buddyinfo, page, _LARGE)
    middle = blocks_of(seen.buddyinfo, page, _MIDDLE)
    boot, uptime = seen.versions.boot_id, seen.versions.uptime_s
    fresh = uptime is not None and uptime < FRESH_S
    same = boot is not None and boot == record.boot_id
    known = record.middle_blocks is not None or record.large_blocks is not None
    if not fresh and known and (record.is_post_reboot or not same):
        return {}
    if same:
        large = _better(large, record.large_blocks)
        middle = _better(middle, record.middle_blocks)
    return {
        "boot_id": boot, "large_blocks": large, "middle_blocks": middle,
        "is_post_reboot": fresh or (same and bool(record.is_post_reboot)),
    }  # fmt: skip


def _better(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)


def _read(reading: Reading) -> Iterator[NodeBaseline]:
    if not reading.text.strip():
        raise UnusableOutput("an empty record")
    yield NodeBaseline.model_validate_json(reading.text)


READERS: tuple[Reader, ...] = (
    Reader("baseline.record", (NodeBaseline,), _read, whats=(BASELINE,)),
)
ASKS: tuple[Ask, ...] = ()
