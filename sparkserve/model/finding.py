"""Findings: what a check concluded, with the measurement that proves it."""

from __future__ import annotations

from typing import Literal

from sparkserve.errors import ExitCode
from sparkserve.model.base import Model

Outcome = Literal["pass", "fail", "unknown", "skipped"]
Severity = Literal["error", "warning", "info"]
FaultClass = Literal["config", "reach", "hardware", "memory", "engine"]
"""What kind of trouble a failing check is; it decides the exit code."""

_EXIT_CODES: dict[FaultClass, ExitCode] = {
    "config": ExitCode.CONFIG,
    "reach": ExitCode.UNREACHABLE,
    "hardware": ExitCode.UNFIT,
    "memory": ExitCode.MEMORY,
    "engine": ExitCode.NOT_READY,
}


class Finding(Model):
    """One judgement of one check about one node (or about the cluster: node None)."""

    code: str
    """Vocabulary of the public failure cases, such as ``ENG_PORT_BUSY``."""
    check_id: str
    """Stable id of the check, such as ``PORT.FREE``."""
    title: str
    node: str | None
    outcome: Outcome
    severity: Severity
    fault_class: FaultClass = "hardware"
    verdict: str
    """One word: PASS, INFO, WARN, FAIL, UNKNOWN, SKIPPED or the decision of the stage."""
    observed: str = ""
    expected: str = ""
    why: str = ""
    fix: str = ""
    evidence: tuple[str, ...] = ()

    @property
    def blocks(self) -> bool:
        """Whether a launch must not go on: a failed check of severity error."""
        return self.outcome == "fail" and self.severity == "error"

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of a run that ends with this finding."""
        return _EXIT_CODES[self.fault_class] if self.blocks else ExitCode.OK
