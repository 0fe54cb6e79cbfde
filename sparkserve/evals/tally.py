"""Samples counted on two axes: what the answer was worth, and how its generation ended.

The reason why generation ended says nothing about the answer: a reply that hit the cap may hold a
complete one, and a clean stop may hold none. So content is scored first and split by reason after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Worth = Literal["correct", "wrong", "empty"]
WORTHS: tuple[Worth, ...] = ("correct", "wrong", "empty")


@dataclass(frozen=True)
class Scored:
    """One sample after scoring."""

    correct: bool
    finish: str
    """``stop``, ``length``, ``tool_calls`` or another reason; ``unknown`` where none is told."""
    extractable: bool | None = None
    """Whether an answer could be read from the text; None = nobody says."""
    uses_tools: bool = False
    """Whether calling a tool is a right way to answer this task."""

    @property
    def worth(self) -> Worth:
        """Its place on the first axis; an answer that nobody calls missing counts as given."""
        if self.correct:
            return "correct"
        return "empty" if self.extractable is False else "wrong"


@dataclass(frozen=True)
class Tally:
    """Counts of one set of samples."""

    cells: Counter[tuple[str, Worth]]
    """(reason of the end, worth) -> samples."""
    routed: int
    """Samples that ended in a call of a tool though their task has none: not attempted."""

    @classmethod
    def of(cls, samples: Iterable[Scored]) -> Tally:
        """Count samples."""
        listed = list(samples)
        routed = sum(one.finish == "tool_calls" and not one.uses_tools for one in listed)
        return cls(Counter((one.finish, one.worth) for one in listed), routed)

    @property
    def total(self) -> int:
        """All samples."""
        return self.cells.total()

    @property
    def correct(self) -> int:
        """Samples with the right answer, however they ended."""
        return sum(count for (_, worth), count in self.cells.items() if worth == "correct")

    @property
    def correct_at_cap(self) -> int:
        """Right answers that the cap cut after all: counting cap hits as failures loses them."""
        return self.cells["length", "correct"]

    @property
    def empty_at_stop(self) -> int:
        """Clean stops without an answer: counting stops as answers adds them."""
        return self.cells["stop", "empty"]

    @property
    def truncated(self) -> int:
        """Samples that the cap cut before an answer: to be run again at a larger one."""
        return self.cells["length", "empty"]

    @property
    def attempted(self) -> int:
        """Samples that were answered at all, rightly or wrongly."""
        return self.total - self.routed

    @property
    def pooled(self) -> float | None:
        """Share of right answers among all samples; None without samples."""
        return self.correct / self.total if self.total else None

    @property
    def conditional(self) -> float | None:
        """Share of right answers among those that were attempted; None where none was."""
        return self.correct / self.attempted if self.attempted else None

    def table(self) -> dict[str, dict[Worth, int]]:
        """Reason of the end -> worth -> samples, reasons by number of samples."""
        totals: Counter[str] = Counter()
        for (finish, _), count in self.cells.items():
            totals[finish] += count
        return {
            finish: {worth: self.cells[finish, worth] for worth in WORTHS}
            for finish, _ in totals.most_common()
        }
