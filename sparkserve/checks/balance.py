"""Whether the ranks of a serving run read about equally many Engram rows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from sparkserve.engram.balance import WARN_RATIO, imbalance
from sparkserve.model.finding import Finding
from sparkserve.model.node_state import RankStatus
from sparkserve.model.profile import Profile

_LEAST_ROWS = 10_000
"""A rank that read the most, and fewer than this, has answered a few short prompts only."""


def judge(profile: Profile, ranks: Sequence[RankStatus]) -> tuple[Finding, ...]:
    """A warning per layer whose busiest rank reads much more than its idlest.

    Returns:
        Nothing where a rank does not report, or where too little was read to tell.
    """
    reads = [rank.progress.engram_reads if rank.progress else None for rank in ranks]
    known = [by_layer for by_layer in reads if by_layer is not None]
    if len(known) < max(2, len(ranks)):
        return ()
    layers = sorted({layer for by_layer in known for layer in by_layer})
    rows_by_layer = {layer: [by_layer.get(layer, 0) for by_layer in known] for layer in layers}
    return tuple(
        _finding(profile, layer, rows)
        for layer, rows in rows_by_layer.items()
        if max(rows) >= _LEAST_ROWS and imbalance(rows) > WARN_RATIO
    )


def _finding(profile: Profile, layer: int, rows: Sequence[int]) -> Finding:
    told = ", ".join(f"rank {rank} {count:,}" for rank, count in enumerate(rows))
    strided = profile.engram.layout == "strided"
    pack = f"sparkserve pack --profile {shlex.quote(profile.name)}"
    return Finding(
        code="PCK_COLUMN_IMBALANCE",
        check_id="ENGRAM.BALANCE",
        title="ranks read about equally many Engram rows",
        node=None,
        outcome="fail",
        severity="warning",
        fault_class="engine",
        verdict="WARN",
        observed=f"layer {layer}: {told} rows read, ratio {imbalance(rows):.1f}",
        expected=f"a ratio of at most {WARN_RATIO:.0f}",
        why="every lookup ends in an exchange between the ranks, so all wait for the busiest one",
        fix="" if strided else f"{pack} --layout strided, then set engram.layout = strided",
    )
