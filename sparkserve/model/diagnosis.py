"""What ``doctor`` hands back: findings, what nobody could read, and how the command ends."""

from __future__ import annotations

from sparkserve.errors import ExitCode
from sparkserve.model.base import Model
from sparkserve.model.cluster import Cluster
from sparkserve.model.finding import FaultClass, Finding
from sparkserve.model.reading import Reading

_EXIT_CODES: dict[FaultClass, ExitCode] = {
    "reach": ExitCode.UNREACHABLE,
    "hardware": ExitCode.UNFIT,
    "memory": ExitCode.MEMORY,
}
"""By weight: the first class that failed decides; every other class ends with 1."""


class Unread(Model):
    """One text that was not judged."""

    label: str
    """Where it comes from, in words."""
    node: str | None = None
    command: str | None = None
    path: str | None = None
    what: str | None = None
    reason: str
    """Why nobody judged it."""


class Bundle(Model):
    """Texts as they lie in a folder, and those that could not be taken from it."""

    readings: tuple[Reading, ...]
    unread: tuple[Unread, ...] = ()


class DoctorResult(Model):
    """What came of judging a cluster or a set of texts."""

    findings: tuple[Finding, ...]
    unread: tuple[Unread, ...] = ()
    cluster: Cluster | None = None
    """The nodes that were asked; None where texts were judged."""
    profile: str | None = None
    """Name of the profile that was compared with; None where none is known."""
    strict: bool = False
    """Whether warnings and unknowns count as failed."""

    @property
    def judged(self) -> bool:
        """Whether at least one check came to a verdict."""
        return any(finding.outcome in ("pass", "fail") for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0 where nothing failed; 3, 4, 5 by the worst class that did, else 1.

        Only errors count, with ``strict`` warnings and unknowns too. Where no check came to a
        verdict, nothing is known to be well: 1.
        """
        failed = {finding.fault_class for finding in self.findings if finding.blocks}
        for fault_class, code in _EXIT_CODES.items():
            if fault_class in failed:
                return int(code)
        doubtful = self.strict and any(
            finding.outcome == "unknown"
            or (finding.outcome == "fail" and finding.severity == "warning")
            for finding in self.findings
        )
        return int(ExitCode.FINDINGS if failed or doubtful or not self.judged else ExitCode.OK)
