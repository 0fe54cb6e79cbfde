"""What a node says about its rank: the guard's state file and the lines of ``node follow``.

Kept apart from the other nouns because the node plane writes it with plain JSON: a guard and a
follower must start in a fraction of a second.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparkserve.model.base import Model
from sparkserve.model.finding import Finding

GuardState = Literal["starting", "running", "stopping", "stopped", "failed", "refused"]
"""``refused``: the node already serves another run; nothing of this run was started there."""

FINAL_STATES: frozenset[str] = frozenset({"stopped", "failed", "refused"})


class RankState(Model):
    """``<run_dir>/state.json``: replaced atomically by the guard at every change."""

    run_id: str
    rank: int
    node: str
    state: GuardState
    at_s: float
    """Unix time of the change by the node's clock."""
    guard_pid: int
    guard_start_ticks: int
    """When the guard began, in clock ticks since boot: a pid alone may be another process now."""
    engine_pid: int | None = None
    exit_code: int | None = None
    """Of the engine; negative = killed by that signal."""
    reason: str = ""
    """Why the rank stopped or failed; empty while it runs."""
    origin_rank: int | None = None
    """Rank whose failure ended the run; equal to ``rank`` where it began here."""
    notice: str = ""
    """What the guard sees and does not end, such as a wedge; empty while all seems well."""


_TRAFFIC_BYTES_PER_S = 1 << 20
"""Least network traffic that means work: our own connections move a few KiB. [proposal]"""


class Progress(Model):
    """Counters of one rank; any of them growing means the rank is not stuck."""

    at_s: float
    log_bytes: int
    read_bytes: int
    """Bytes the rank's processes fetched from storage (``/proc/<pid>/io``)."""
    cpu_s: float
    rss_bytes: int
    memory_available_bytes: int
    processes: int
    engram_rows: int | None = None
    """Rows the Engram adapter served; None where no adapter reports."""
    engram_reads: dict[int, int] | None = None
    """The same by layer: different rows read from this rank's shard since the engine began."""
    received_bytes: int | None = None
    """What the node's network took in, Ethernet and RDMA, since it booted; None = not counted."""
    cache_files: int | None = None
    """Files in the caches of compiled kernels; None = not counted this time."""

    def moved_since(self, old: Progress) -> bool:
        """Whether the rank got on: it read, received more than our own words, or compiled.

        The log is not looked at: what it says decides whether its growth means anything.
        """
        if self.read_bytes > old.read_bytes:
            return True
        if None not in (self.cache_files, old.cache_files) and self.cache_files != old.cache_files:
            return True
        if self.received_bytes is None or old.received_bytes is None:
            return False
        least_bytes = _TRAFFIC_BYTES_PER_S * max(self.at_s - old.at_s, 0.1)
        return self.received_bytes - old.received_bytes >= least_bytes


class RankStatus(Model):
    """One rank as ``sparkserve status`` shows it."""

    node: str
    rank: int
    state: GuardState | Literal["unreachable", "absent", "serving"]
    """``absent``: the node answers but knows nothing of this run."""
    reason: str = ""
    origin_rank: int | None = None
    """Rank whose end ended this one; None while it runs, or where its guard cannot tell."""
    notice: str = ""
    """What its guard sees and does not end."""
    pid: int | None = None
    uptime_s: float | None = None
    progress: Progress | None = None
    last_line: str = ""


class RunStatus(Model):
    """A run as it stands now."""

    run_id: str
    profile: str
    outcome: str
    """Of the RunRecord, corrected by what the nodes say now."""
    endpoint_url: str | None
    healthy: bool | None
    """Whether /health of rank 0 answered 200; None where it could not be asked."""
    ready_s: float | None
    """From start to ready."""
    decode_tokens_per_s: float | None
    ranks: tuple[RankStatus, ...] = Field(default_factory=tuple)
    findings: tuple[Finding, ...] = ()
    """What its figures say about the run while it serves."""
