"""What a run found: one JSON line at once for everything, so that a run cut short still tells.

A verdict is a sentence that must hold; a run passes when all do and none is missing.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """One expectation and how it came out."""

    stage: str
    says: str
    holds: bool
    detail: str = ""


@dataclass
class Results:
    """Collects records and verdicts from any thread."""

    out: Path
    began: float = field(default_factory=time.monotonic)
    verdicts: list[Verdict] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def elapsed_s(self) -> float:
        return round(time.monotonic() - self.began, 1)

    def note(self, stage: str, what: str, **data: Any) -> None:
        """Keep one record and print its short form."""
        record = {"at_s": self.elapsed_s(), "stage": stage, "what": what, **data}
        with self._lock:
            self.records.append(record)
            with (self.out / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            short = json.dumps({key: value for key, value in data.items() if key != "answers"})
            print(f"[{record['at_s']:6.1f} s] {stage}: {what} {short[:900]}", flush=True)

    def expect(self, stage: str, says: str, *, holds: bool, detail: str = "") -> None:
        """Keep one verdict."""
        self.verdicts.append(Verdict(stage, says, holds, detail))
        self.note(stage, "verdict", says=says, holds=holds, detail=detail)

    def missing(self, stage: str, says: str, why: str) -> None:
        """An expectation that could not be judged fails the run too."""
        self.expect(stage, says, holds=False, detail=f"not judged: {why}")

    @property
    def passed(self) -> bool:
        return bool(self.verdicts) and all(verdict.holds for verdict in self.verdicts)

    def write(self) -> None:
        """results.json: everything at once."""
        with self._lock:
            whole = {
                "passed": self.passed,
                "verdicts": [vars(verdict) for verdict in self.verdicts],
                "records": self.records,
            }
            text = json.dumps(whole, indent=1)
            (self.out / "results.json").write_text(text, encoding="utf-8")

    def summary(self) -> str:
        """The verdicts, failures last so that they stand at the end of the output."""
        lines = [
            f"{'ok  ' if verdict.holds else 'FAIL'} {verdict.stage}: {verdict.says}"
            + (f" ({verdict.detail})" if verdict.detail else "")
            for verdict in sorted(self.verdicts, key=lambda verdict: not verdict.holds)
        ]
        good = sum(verdict.holds for verdict in self.verdicts)
        return "\n".join([*lines, f"{good} of {len(self.verdicts)} expectations hold"])
