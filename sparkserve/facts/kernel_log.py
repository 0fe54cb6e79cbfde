"""Lines of the kernel: dmesg and journal, of this boot and of the one before."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.facts.command_form import RUN
from sparkserve.facts.probe import Context, UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.model.reading import Reading

_NOT_ALLOWED = re.compile(
    r"Operation not permitted|insufficient permissions|Permission denied|command not found"
    r"|not seeing messages from other users|a password is required",
    re.IGNORECASE,
)
_JOURNAL_REMARK = re.compile(r"-- (?:No entries|Logs begin|Journal begins|Boot|Reboot)\b.*")
_NO_SUCH_BOOT = re.compile(
    r"no persistent journal|No journal boot entry|Data from the specified boot|Failed to determine",
    re.IGNORECASE,
)
_KEEP_LINES = 4000


class KernelLog(Fact):
    """What the kernel wrote since it started, as far as it was kept."""

    lines: tuple[str, ...] = ()
    """In order, with their time stamps as they stand; none = the log was read and is empty."""


class PreviousKernelLog(Fact):
    """What the kernel wrote during the boot before this one."""

    lines: tuple[str, ...] = ()


# A time in brackets, a date of syslog or ISO, or the name of what speaks and a colon.
_KERNEL_LINE = re.compile(
    r"^\s*(?:<\d+>)?\[[\w\s.:,+-]{3,40}\]|^\s*[A-Z][a-z]{2} [ \d]\d \d\d:|^\s*\d{4}-\d\d-\d\d[T ]"
    r"|\bkernel\b|^\s*[\w./()-]{2,40}(?: [\w.:-]{3,40}){0,3}:|^\s*-- "
)


def _lines(text: str) -> tuple[str, ...]:
    found = [line.rstrip() for line in text.splitlines() if line.strip()]
    if found and all(_NOT_ALLOWED.search(line) for line in found):
        raise UnusableOutput(f"the kernel's log may not be read: {found[0].strip()[:200]}")
    if found and any(_NO_SUCH_BOOT.search(line) for line in found[:3]):
        raise UnusableOutput(f"that boot's log was not kept: {found[0].strip()[:200]}")
    lines = tuple(line for line in found if not _JOURNAL_REMARK.fullmatch(line))
    if lines and not any(_KERNEL_LINE.search(line[:400]) for line in lines):
        raise UnusableOutput(f"no line of a kernel's log: {lines[0].strip()[:200]}")
    return lines


def _failed(reading: Reading) -> None:
    if reading.rc not in (None, 0, 1):
        last = reading.text.strip().splitlines()[-1:] or ["no output"]
        raise UnusableOutput(f"exit {reading.rc}: {last[0][:200]}")


def _this_boot(reading: Reading) -> Iterator[KernelLog]:
    _failed(reading)
    yield KernelLog(lines=_lines(reading.text))


def _boot_before(reading: Reading) -> Iterator[PreviousKernelLog]:
    _failed(reading)
    yield PreviousKernelLog(lines=_lines(reading.text))


def _script(_: Context) -> str:
    return f"""\
if log=$(dmesg 2>/dev/null); then :
elif log=$(journalctl -k -b --no-pager -q 2>/dev/null) && [ -n "$log" ]; then :
else log=$(sudo -n dmesg 2>/dev/null) || log=$(dmesg 2>&1); fi
printf '%s\\n' "$log" | tail -n {_KEEP_LINES}
"""


def _script_before(_: Context) -> str:
    return f"journalctl -k -b -1 --no-pager -q 2>&1 | tail -n {_KEEP_LINES}"


_BEFORE = r"(?:-b ?-1|--boot[= ]-1)"
READERS: tuple[Reader, ...] = (
    Reader(
        "kernel_log.before", (PreviousKernelLog,), _boot_before,
        commands=(rf"{RUN}journalctl(?= .*{_BEFORE}).*",),
        whats=(r"(?:kernel log|journal|dmesg) of the (?:previous boot|boot before)",),
    ),
    Reader(
        "kernel_log.lines", (KernelLog,), _this_boot,
        commands=(
            rf"{RUN}dmesg(?:[ |'\"].*)?",
            rf"{RUN}journalctl(?!.*{_BEFORE})(?= .*(?:--dmesg|_TRANSPORT=kernel|-\w*k\w*\b)).*",
            rf"{RUN}(?:cat|tail|grep|zgrep|less) .*(?:kern\.log|/var/log/dmesg)\S*(?: .*)?",
        ),
        paths=(r".*(?:kern\.log|dmesg)(?:[.\d]*|\.txt|\.log)",),
        whats=(r"(?:kernel (?:log|messages|ring buffer)|dmesg|journalctl -k)\b.*",),
    ),
)  # fmt: skip
ASKS: tuple[Ask, ...] = (
    Ask("kernel_log.lines", _script, command="dmesg", format="log"),
    Ask("kernel_log.before", _script_before, command="journalctl -k -b -1", format="log"),
)
