"""``sparkserve doctor``: what is wrong, on which node, and what mends it."""

from __future__ import annotations

from collections.abc import Sequence

from sparkserve.checks.check import Check
from sparkserve.checks.diagnose import diagnose
from sparkserve.checks.registry import ALL
from sparkserve.errors import ConfigError
from sparkserve.model.diagnosis import Bundle, DoctorResult, Unread
from sparkserve.model.reading import Reading


def replay(bundle: Bundle, checks: Sequence[Check] = ALL, *, strict: bool = False) -> DoctorResult:
    """Judge texts without touching any machine.

    Raises:
        ConfigError: the bundle's own profile or cluster is of another version.
    """
    try:
        diagnosis = diagnose(bundle.readings, checks)
    except ValueError as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"the bundle's profile or cluster cannot be read: {first}") from error
    unread = (*bundle.unread, *(_unread(reading) for reading in diagnosis.unread))
    return DoctorResult(findings=diagnosis.findings, unread=unread, strict=strict)


def _unread(reading: Reading) -> Unread:
    return Unread(
        label=reading.label or reading.source,
        node=reading.node,
        command=reading.command,
        path=reading.path,
        what=reading.what,
        reason="no reader knows this kind of text",
    )
