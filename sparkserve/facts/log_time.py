"""When and by which rank a log line was written, in the forms that engines and runtimes use."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

YEARLESS = 1904
"""Year that stands for "not said" (a leap year before any log)."""

_FULL = re.compile(
    r"(?P<year>(?:19|20)\d\d)-(?P<month>\d\d)-(?P<day>\d\d)[T ]"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<part>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_SHORT = re.compile(
    r"\b(?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:[.,](?P<part>\d{1,9}))?"
)
_GLOG = re.compile(
    r"(?:^|\[)[IWEF](?P<month>\d{1,2})(?P<day>\d\d) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<part>\d{1,9}))?"
)
_SYSLOG = re.compile(
    r"^(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<day>\d{1,2}) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<part>\d{1,9}))?"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_HEAD = 120
"""A time further into the line belongs to what the line says, not to the line."""
_RANK = re.compile(
    r"\bTP(?P<tp>\d{1,2})\b(?=[^\]]{0,20}\])|(?i:\[rank ?(?P<bracket>\d{1,2})\])"
    r"|(?i:^\S{0,40} ?\brank[ _-]?(?P<word>\d{1,2})\b)"
)


def time_of(line: str) -> datetime | None:
    """The time that stands in front of a line, in UTC; None where it has none.

    A time without a zone counts as UTC. A form without a year gets ``YEARLESS``.
    """
    head = line[:_HEAD]
    for form in (_FULL, _GLOG, _SYSLOG, _SHORT):
        if found := form.search(head):
            return _time(found.groupdict())
    return None


def rank_of(line: str) -> int | None:
    """The rank that a line names as its own, such as ``TP1]``, ``[rank1]`` and ``rank1 ...``."""
    found = _RANK.search(line[:_HEAD])
    if found is None:
        return None
    return int(next(text for text in found.groups() if text is not None))


def _time(fields: dict[str, str | None]) -> datetime | None:
    name = fields.get("name")
    month = _MONTHS.index(name) + 1 if name else int(fields["month"] or 0)
    part = (fields.get("part") or "0").ljust(6, "0")[:6]
    try:
        at = datetime(
            int(fields.get("year") or YEARLESS), month, int(fields["day"] or 0),
            int(fields["hour"] or 0), int(fields["minute"] or 0), int(fields["second"] or 0),
            int(part), tzinfo=_zone(fields.get("zone")),
        )  # fmt: skip
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        # Digits in the form of a time that are none.
        return None


def _zone(text: str | None) -> timezone:
    if text is None or text == "Z":
        return UTC
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)
