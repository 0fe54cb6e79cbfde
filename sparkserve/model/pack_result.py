"""Packing and checking of a whole fleet: what each node will do, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sparkserve.errors import ExitCode
from sparkserve.model.base import Model
from sparkserve.model.engram_manifest import RowSpan
from sparkserve.model.finding import Finding
from sparkserve.model.layout import Layout
from sparkserve.model.pack import LayerResult

READY = "PACK.READY"
"""Check of what keeps a node from its part before anything is written."""


class ShardPlan(Model):
    """One file that a rank must have."""

    layer: int
    file: str
    ranges: tuple[RowSpan, ...]
    """Rows of the table, in file order."""
    file_bytes: int
    found: Literal["nothing", "part", "shard", "other"]
    """What lies there: ``part`` = of an interrupted pack; ``other`` = a file of another size."""
    write_bytes: int
    """What the disk must still give for it."""

    @property
    def rows(self) -> int:
        """Rows in the file."""
        return sum(span.end - span.start for span in self.ranges)


class RankPlan(Model):
    """What one node will do."""

    node: str
    rank: int
    tp: int
    layout: Layout
    python: str = ""
    root: str = ""
    source: str | None = None
    source_reason: str = ""
    """Why this source, or why none."""
    out: str = ""
    shards: tuple[ShardPlan, ...] | None = None
    """None = no config.json is known yet."""
    free_bytes: int | None = None
    reserve_bytes: int = 0
    findings: tuple[Finding, ...] = ()
    """What keeps the node from its part."""

    @property
    def needed_bytes(self) -> int | None:
        """What the disk must give, without the reserve; None where the shards are not known."""
        return None if self.shards is None else sum(shard.write_bytes for shard in self.shards)


class RankOutcome(Model):
    """How one rank's job ended."""

    node: str
    rank: int
    state: Literal["done", "failed", "interrupted"]
    layers: tuple[LayerResult, ...] = ()
    manifest: str | None = None
    """Path of the manifest on the node."""
    seconds: float = 0.0
    written_bytes: int = 0
    reader: str | None = None
    """Engine of the serving reader that compared rows; None = none ran."""
    finding: Finding | None = None
    """What it failed with."""
    exit_code: int = 0
    path: str | None = None
    """The file that the failure is about."""


class PackResult(Model):
    """What came of a pack; after a dry run there are only outcomes of nodes that cannot pack."""

    plans: tuple[RankPlan, ...]
    outcomes: tuple[RankOutcome, ...]
    """In rank order."""
    dry_run: bool
    interrupted: bool = False
    next_commands: tuple[str, ...] = ()
    """What to do with whole shards."""

    @property
    def exit_code(self) -> int:
        """The first failing rank's code; 130 after Ctrl-C."""
        return _exit_code(self.outcomes, interrupted=self.interrupted)


class ShardVerdict(Model):
    """One rank's shard of one layer, or a whole rank where no layer can be named."""

    node: str
    rank: int
    layer: int | None
    outcome: Literal["pass", "fail", "unknown"]
    checksums: Literal["pass", "fail", "unknown"]
    """Against the manifest."""
    against_source: Literal["sample", "full", "fail", "unknown"]
    """Through the reader that serves; ``unknown`` = there was no source to compare with."""
    compared_rows: int = 0
    reader: str | None = None
    reason: str = ""
    """Why it failed, or why it is unknown."""


class VerifyResult(Model):
    """What the nodes found."""

    verdicts: tuple[ShardVerdict, ...]
    """Rank by rank, layer by layer."""
    outcomes: tuple[RankOutcome, ...]
    interrupted: bool
    strict: bool
    """Whether unknown counts as failed."""

    @property
    def exit_code(self) -> int:
        """1 where a shard failed, or with strict is unknown; 3 where a node could not be asked."""
        judged = [outcome for outcome in self.outcomes if self._counts(outcome)]
        code = _exit_code(judged, interrupted=self.interrupted)
        unknown = any(verdict.outcome == "unknown" for verdict in self.verdicts)
        if code in (ExitCode.UNREACHABLE, ExitCode.INTERRUPTED, ExitCode.INTERNAL):
            return code
        return int(ExitCode.FINDINGS if code or (self.strict and unknown) else ExitCode.OK)

    def _counts(self, outcome: RankOutcome) -> bool:
        """Whether a rank's end is a failure: what could not be judged is unknown instead."""
        return any(v.outcome == "fail" for v in self.verdicts if v.rank == outcome.rank)


def _exit_code(outcomes: Sequence[RankOutcome], *, interrupted: bool) -> int:
    if interrupted:
        return int(ExitCode.INTERRUPTED)
    return next((outcome.exit_code for outcome in outcomes if outcome.exit_code), 0)
