"""What runs around every command: a time limit on the node itself, and a lifeline.

A program that was started over SSH without a terminal outlives its connection. So each
command runs under two guards that need nothing from the controller: coreutils' ``timeout``
ends its whole process group when the limit has passed, and, where stdin is not needed for
input, a watcher ends it as soon as stdin closes - because the caller cancelled, because the
connection was lost, or because the controller died.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

KILL_AFTER_S = 2
"""Between SIGTERM and SIGKILL of a program that has to end."""
_SIGNAL_BASE = 128
_LAST_SIGNAL = 64
SIGNAL_UNKNOWN_CODE = 1000
"""Stands for the exit code of a wrapper that was itself killed by a signal we were not told."""
SIGNAL_UNKNOWN = -128
"""What ``Result.exit_code`` holds then."""
_TIMED_OUT = (124, 137)
"""``timeout`` says 124, or 137 where SIGKILL was needed."""

# $1 = limit in seconds (0 = none), the rest = the program. `timeout` puts it into a process
# group of its own, passes SIGTERM on to that group and restores SIGINT, which shells ignore
# for background jobs. The program runs in the background because only `wait` lets a trap run.
_START = f"""\
limit=$1; shift
command -v timeout >/dev/null 2>&1 && set -- timeout -k {KILL_AFTER_S} "$limit" "$@"
stop=; child=; watcher=
trap 'stop=1; test -n "$child" && kill -TERM "$child" 2>/dev/null' TERM HUP
exec 3<&0
"""
# Again every second, and SIGKILL for the watcher: a signal that meets a child of a shell with
# traps just after its fork is lost.
_WATCH = """\
( trap - TERM HUP; read -r line <&3; while kill -TERM $$; do sleep 1; done ) >/dev/null 2>&1 &
watcher=$!
"""
# `timeout` ends as soon as its own child does: whoever of the group has not obeyed is left, and
# a signal that meets `timeout` inside its fork leaves its child.
_FINISH = """\
exec 3<&- </dev/null
wait "$child"; code=$?
while test -n "$stop" && kill -0 "$child" 2>/dev/null; do wait "$child"; done
case $stop$code in 1*|124|137)
  kill -TERM "-$child" && for turn in 1 2 3 4 5 6 7 8 9 10; do
    kill -0 "-$child" && sleep 0.2
  done
  kill -KILL "-$child"
esac 2>/dev/null
if test -n "$watcher"; then kill -KILL "$watcher"; wait "$watcher"; fi 2>/dev/null
exit "$code"
"""
_LIFELINE = _START + '"$@" </dev/null 3<&- &\nchild=$!\n' + _WATCH + _FINISH
_WITH_INPUT = _START + '"$@" <&3 3<&- &\nchild=$!\n' + _FINISH


def wrapped(argv: Sequence[str], *, limit_s: float | None, takes_input: bool) -> list[str]:
    """The argv of ``sh`` that runs a program under both guards.

    limit_s: seconds until it is ended; None = no limit.
    takes_input: whether stdin carries input; then there is no lifeline and only the limit ends
        a program that nobody waits for any more.
    """
    if not argv:
        raise ValueError("an empty argv runs nothing")
    if any("\0" in word for word in argv):
        raise ValueError("no argument of a program can hold a NUL byte")
    program = _WITH_INPUT if takes_input else _LIFELINE
    limit = "0" if limit_s is None else f"{max(limit_s, 0.001):.3f}"
    return ["sh", "-c", program, "sparkserve", limit, *argv]


def command_line(argv: Sequence[str]) -> str:
    """An argv as the one text that a POSIX login shell turns back into the same argv."""
    return shlex.join(argv)


def shown(argv: Sequence[str], *, limit_chars: int = 200) -> str:
    """An argv for messages: quoted, on one line, shortened."""
    text = shlex.join(argv).replace("\n", "\\n")
    return text if len(text) <= limit_chars else f"{text[: limit_chars - 1]}…"


def meaning(code: int, *, elapsed_s: float, limit_s: float | None) -> int | None:
    """Exit code as Result has it, from the shell's; None where the time limit ended it.

    A shell tells a signal as 128 + its number, which becomes the negative number. A program
    that itself exits with 129 to 192 cannot be told apart from a killed one.
    """
    if limit_s is not None and elapsed_s >= limit_s and code in _TIMED_OUT:
        return None
    if code == SIGNAL_UNKNOWN_CODE:
        return SIGNAL_UNKNOWN
    if _SIGNAL_BASE < code <= _SIGNAL_BASE + _LAST_SIGNAL:
        return _SIGNAL_BASE - code
    return code
