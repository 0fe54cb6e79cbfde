"""TCP sockets that listen, and who holds them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading


class Listener(Model):
    """One listening TCP socket."""

    port: int
    address: str = ""
    pid: int | None = None
    """None: not shown, as for another user's process without root."""
    process: str | None = None


class Listeners(Fact):
    """Listening sockets of one place, as far as the command asked for them."""

    listeners: tuple[Listener, ...] = ()


_ENDPOINT = r"(?P<address>\[?[0-9a-fA-F.:%*\w]*\]?):(?P<port>\d{1,5})"
_SS = re.compile(rf"^(?:tcp\s+)?LISTEN\s+\d+\s+\d+\s+{_ENDPOINT}\s+\S+(?:\s+(?P<users>.*))?$")
_NETSTAT = re.compile(
    rf"^tcp6?\s+\d+\s+\d+\s+{_ENDPOINT}\s+\S+\s+LISTEN(?:\s+\d+\s+\d+)?(?:\s+(?P<owner>\S.*))?$"
)
_LSOF = re.compile(
    rf"^(?P<process>\S+)\s+(?P<pid>\d+)\s.*\bTCP\s+{_ENDPOINT}(?:->\S+)?\s*(?:\(LISTEN\))?$"
)


def listener(line: str) -> Listener | None:
    """One line of ``ss``, ``netstat`` or ``lsof``; None where it is no listening socket."""
    line = line.strip()
    if found := _SS.match(line):
        user = re.search(r'\("([^"]*)",pid=(\d+)', found["users"] or "")
        name, pid = (user[1], int(user[2])) if user else (None, None)
    elif found := _NETSTAT.match(line):
        owner = re.match(r"(\d+)/(\S+)", found["owner"] or "")
        name, pid = (owner[2].rstrip(":"), int(owner[1])) if owner else (None, None)
    elif found := _LSOF.match(line):
        name, pid = found["process"], int(found["pid"])
    else:
        return None
    return Listener(port=int(found["port"]), address=found["address"], pid=pid, process=name)


def _listeners(reading: Reading) -> Iterator[Listeners]:
    lines = [line for line in reading.text.splitlines() if line.strip()]
    found = [one for line in lines if (one := listener(line)) is not None]
    fuser = re.findall(r"(?m)^(\d{1,5})/tcp:\s+(\d+)", reading.text)
    found += [Listener(port=int(port), pid=int(pid)) for port, pid in fuser]
    header = any(re.match(r"\s*(?:State|Proto|Active|COMMAND|Netid)\b", line) for line in lines)
    # lsof and fuser end with 1 where nothing listens; then they print nothing.
    if not found and ((lines and not header) or reading.rc not in (None, 0, 1)):
        raise UnusableOutput(f"no list of sockets: {reading.text.strip()[:80] or 'no output'}")
    yield Listeners(listeners=tuple(dict.fromkeys(found)))


READERS: tuple[Reader, ...] = (
    Reader(
        "sockets.listeners", (Listeners,), _listeners,
        commands=(
            r"(?:sudo )?ss -(?=\w*l)(?=\w*t)\w+\b.*",
            r"(?:sudo )?ss (?=.*-\w*l)(?=.*-\w*t).*",
            r"(?:sudo )?netstat -(?=\w*l)\w+\b.*",
            r"(?:sudo )?lsof .*-i.*",
            r"(?:sudo )?fuser .*\d+/tcp.*",
        ),
    ),
)  # fmt: skip
ASKS: tuple[Ask, ...] = (
    Ask(
        # Only root is shown who holds the sockets of others.
        "sockets.listeners",
        lambda _: "if sudo -n true 2>/dev/null; then sudo -n ss -ltnpH; else ss -ltnpH; fi",
        command="ss -ltnpH",
    ),
)
