"""What earlier starts say: the engine's own lines about memory correct the plan.

SGLang prints GiB and calls them GB. ``avail mem`` is the system's available memory on this chip.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparkserve.model.base import Model
from sparkserve.planning.memory_types import MemoryPlan, MemoryWish

_CALCULATION = re.compile(r"bytes_per_full_token=(\d+(?:\.\d+)?)(.*?)full_token=(\d+)")
_FIGURE = re.compile(r"(\w+)=(\d+(?:\.\d+)?) GB")
_AVAILABLE = re.compile(r"avail mem=(\d+(?:\.\d+)?) ?GB")
_USAGE = re.compile(r"mem usage=(\d+(?:\.\d+)?) ?GB")
_GRAPHS_BEGIN = re.compile(r"Capture .{0,60}graph.{0,60} begin")
_GRAPHS_END = re.compile(r"Capture .{0,60}graph.{0,60} end")
_POOL = re.compile(r"max_total_num_tokens=(\d+)")


class RankLog(Model):
    """What one rank's log said about memory; None = not said."""

    before_gib: float | None = None
    """Available when the first weights began to load."""
    after_gib: float | None = None
    """Available when the last weights were loaded."""
    kv_bytes_per_token: float | None = None
    budget_gib: float | None = None
    fixed_gib: float | None = None
    """Pools of fixed size together, the sliding-window pool among them."""
    budget_tokens: int | None = None
    """Tokens that the budget held (``full_token``)."""
    pool_tokens: int | None = None
    """Tokens that the pool got (``max_total_num_tokens``)."""
    graphs_gib: float | None = None

    @property
    def loaded_gib(self) -> float | None:
        """What loading took."""
        if self.before_gib is None or self.after_gib is None:
            return None
        return self.before_gib - self.after_gib


class Learned(Model):
    """Figures of one earlier run: of several ranks the one that leaves the least."""

    run: str
    ranks: dict[str, RankLog]
    """By node or rank."""

    @property
    def loaded_gib(self) -> float | None:
        """Most that any rank loaded."""
        return _most([log.loaded_gib for log in self.ranks.values()])

    @property
    def graphs_gib(self) -> float | None:
        """Most that any rank's graphs took."""
        return _most([log.graphs_gib for log in self.ranks.values()])

    @property
    def kv_bytes_per_token(self) -> float | None:
        """Bytes of one token in the pool."""
        return _most([log.kv_bytes_per_token for log in self.ranks.values()])

    @property
    def fixed_gib(self) -> float | None:
        """Pools of fixed size."""
        return _most([log.fixed_gib for log in self.ranks.values()])

    @property
    def pool_tokens(self) -> int | None:
        """Tokens that the smallest pool got, or would have got."""
        told = [log.pool_tokens or log.budget_tokens for log in self.ranks.values()]
        known = [tokens for tokens in told if tokens is not None]
        return min(known) if known else None

    def apply(self, wish: MemoryWish) -> MemoryWish:
        """The wish with measured figures in place of published ones."""
        return wish.model_copy(
            update={
                "measured_load_gib": self.loaded_gib,
                "measured_graphs_gib": self.graphs_gib,
                "measured_kv_bytes": self.kv_bytes_per_token,
                "measured_swa_gib": self.fixed_gib,
                "measured_in": self.run,
            }
        )


class Difference(Model):
    """One figure as planned and as an earlier run had it."""

    title: str
    planned: float | None
    learned: float
    unit: str


def learn(run: str, texts: Mapping[str, str]) -> Learned | None:
    """Figures in the logs of a run; None where no log says any.

    texts: log by node or rank; lines of other kinds are passed over.
    """
    ranks = {place: _read(text) for place, text in texts.items()}
    told = {place: log for place, log in ranks.items() if log != RankLog()}
    return Learned(run=run, ranks=told) if told else None


def _read(text: str) -> RankLog:
    found: dict[str, float | int] = {}
    graphs_begin: float | None = None
    for line in text.splitlines():
        available = _AVAILABLE.search(line)
        gib = float(available[1]) if available else None
        if gib is not None and "Load weight begin" in line:
            if found.keys() - {"before_gib", "after_gib"}:
                # The engine was started once more: its pool had been there already.
                found.clear()
            # The draft's own load goes on from the target's.
            found.setdefault("before_gib", gib)
        elif gib is not None and "Load weight end" in line:
            found["after_gib"] = gib
        elif gib is not None and _GRAPHS_BEGIN.search(line):
            graphs_begin = gib
        elif _GRAPHS_END.search(line):
            usage = _USAGE.search(line)
            if usage is not None:
                found["graphs_gib"] = found.get("graphs_gib", 0.0) + float(usage[1])
            elif gib is not None and graphs_begin is not None:
                found["graphs_gib"] = found.get("graphs_gib", 0.0) + graphs_begin - gib
        found |= _calculation(line)
        if pool := _POOL.search(line):
            found["pool_tokens"] = int(pool[1])
    return RankLog.model_validate(found)


def _calculation(line: str) -> dict[str, float | int]:
    calculation = _CALCULATION.search(line)
    if calculation is None:
        return {}
    figures = {name: float(gib) for name, gib in _FIGURE.findall(calculation[2])}
    fixed = [gib for name, gib in figures.items() if name.endswith("_fixed")]
    told: dict[str, float | int] = {
        "kv_bytes_per_token": float(calculation[1]), "budget_tokens": int(calculation[3]),
    }  # fmt: skip
    if "available_bytes" in figures:
        told["budget_gib"] = figures["available_bytes"]
    if fixed:
        told["fixed_gib"] = sum(fixed)
    return told


def differences(plan: MemoryPlan, learned: Learned) -> tuple[Difference, ...]:
    """What the plan without the run's figures says, beside what the run said."""
    rank = plan.ranks[0]
    rows = (
        ("loaded", rank.loaded_gib, learned.loaded_gib, "GiB"),
        ("CUDA graphs", rank.gib("graphs"), learned.graphs_gib, "GiB"),
        ("pools of fixed size", plan.wish.swa_gib, learned.fixed_gib, "GiB"),
        ("KV per token", plan.wish.kv_bytes, learned.kv_bytes_per_token, "B"),
        ("KV pool", plan.pool_tokens, learned.pool_tokens, "tokens"),
    )
    return tuple(
        Difference(title=title, planned=planned, learned=told, unit=unit)
        for title, planned, told, unit in rows
        if told is not None
    )


def _most(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None
