"""Services of the host that matter to a server that holds most of the memory; Wi-Fi; identity."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sparkserve.facts.command_form import END, RUN
from sparkserve.facts.keyed import parse_keyed
from sparkserve.facts.probe import Context, UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading


class Service(Model):
    """One unit of systemd, or one daemon by its process."""

    name: str
    """Without ``.service``."""
    is_active: bool | None = None


class Services(Fact):
    """Services as systemd or a list of processes names them."""

    services: tuple[Service, ...] = ()


class NfsServer(Fact):
    """Whether this node serves files to others."""

    threads: int | None = None
    """Threads of the kernel's NFS server; 0 = it does not serve."""
    exports: int | None = None
    """Number of exported paths; None = not said."""


class HostIdentity(Fact):
    """What must differ between two installations; equal values are a cloned disk."""

    machine_id: str | None = None
    ssh_keys: tuple[str, ...] = ()
    """Public host keys as ``type base64``, or fingerprints."""


class WifiState(Fact):
    """Wi-Fi interfaces and what keeps them up."""

    interfaces: tuple[str, ...] = ()
    connected: tuple[str, ...] = ()
    """Those with a carrier."""
    power_save: bool | None = None


class ClockState(Fact):
    """Whether a time server keeps the clock."""

    is_synchronised: bool


_UNIT = re.compile(r"^[\s●○×↻*]*([\w@:.\\-]+?)\.service\b\s*(.*)$")
_STATES = {"active": True, "inactive": False, "failed": False, "activating": True}


def _units(reading: Reading) -> Iterator[Services]:
    """``systemctl list-units``, ``systemctl status``, or ``systemctl list-unit-files``."""
    found = []
    text = reading.text
    for line in text.splitlines():
        if match := _UNIT.match(line):
            words = match[2].split()
            state = next((_STATES[word] for word in words if word in _STATES), None)
            if state is None and (active := re.search(r"(?m)^\s*Active: (\w+)", text)):
                state = _STATES.get(active[1])
            found.append(Service(name=match[1], is_active=state))
    found += [
        Service(name=name, is_active=False)
        for name in re.findall(r"(?m)^Unit (\S+?)(?:\.service)? could not be found", text)
    ]
    if not found and text.strip() and not re.search(r"\b0 (?:loaded )?units", text):
        raise UnusableOutput("no line of a service")
    yield Services(services=tuple(found))


def _is_active(reading: Reading) -> Iterator[Services]:
    """``systemctl is-active A B``: one word per name, in the same order."""
    asked = re.search(r"\bis-active ((?:[\w@.-]+ ?)+)", reading.command or "")
    names = [n for n in asked[1].split() if not n.startswith("-")] if asked else []
    words = reading.text.split()
    if not names or len(words) != len(names):
        raise UnusableOutput(f"{len(words)} words for {len(names)} services")
    services = (
        Service(
            name=n.removesuffix(".service"),
            is_active=_STATES.get(w, False if w == "unknown" else None),
        )
        for n, w in zip(names, words, strict=True)
    )
    yield Services(services=tuple(services))


_DAEMON = re.compile(r"(?:^|[\s/])([\w-]*(?:earlyoom|oomd|nohang|anti-oom|oom-?guard)[\w-]*)")


def _processes(reading: Reading) -> Iterator[Services]:
    """``pgrep -a`` and ``ps``: the daemons that are known to watch over memory."""
    lines = [line for line in reading.text.splitlines() if not re.search(r"\bgrep\b", line)]
    names = [name for line in lines for name in _DAEMON.findall(line)]
    found = (Service(name=name, is_active=True) for name in dict.fromkeys(names))
    yield Services(services=tuple(found))


def _nfsd(reading: Reading) -> Iterator[NfsServer]:
    text = reading.text.strip()
    if not re.fullmatch(r"\d{1,6}", text):
        raise UnusableOutput("not a number of threads")
    yield NfsServer(threads=int(text))


def _identity(reading: Reading) -> Iterator[HostIdentity]:
    text = reading.text
    ids = re.findall(r"(?m)^\s*(?:machine_id=|Machine ID: )?([0-9a-f]{32})\s*$", text)
    keys = re.findall(r"\b((?:ssh|ecdsa)-[\w-]+ AAAA[\w+/=]{20,})", text)
    prints = re.findall(r"\b(SHA256:[\w+/]{43})", text)
    if not ids and not keys and not prints:
        raise UnusableOutput("no machine id and no host key")
    yield HostIdentity(machine_id=ids[0] if ids else None, ssh_keys=tuple(keys or prints))


def _wifi(reading: Reading) -> Iterable[WifiState]:
    fields = parse_keyed(reading.text)
    if "interfaces" not in fields:
        raise UnusableOutput("no list of interfaces")
    told = fields.get("power_save", "")
    yield WifiState(
        interfaces=tuple(fields["interfaces"].split()),
        connected=tuple(fields.get("connected", "").split()),
        power_save=True if told == "on" else False if told == "off" else None,
    )


def _power_save(reading: Reading) -> Iterable[WifiState]:
    match = re.search(r"(?i)power save: (on|off)", reading.text)
    device = re.search(r"\biw (?:dev )?(\S+) get power_save", reading.command or "")
    if match is None:
        raise UnusableOutput("no line about power save")
    yield WifiState(interfaces=(device[1],) if device else (), power_save=match[1].lower() == "on")


def _nmcli(reading: Reading) -> Iterable[WifiState]:
    """``nmcli device``, as a table or as ``DEVICE:TYPE:STATE``."""
    rows = [re.split(r"[:\s]+", line.strip()) for line in reading.text.splitlines()]
    wireless = [row for row in rows if len(row) > 2 and row[1] == "wifi"]
    if not any(len(row) > 2 for row in rows):
        raise UnusableOutput("no line of a device")
    yield WifiState(
        interfaces=tuple(row[0] for row in wireless),
        connected=tuple(row[0] for row in wireless if row[2] == "connected"),
    )


_SYNCHRONISED = re.compile(
    r"(?im)^\s*(?:NTPSynchronized=|System clock synchronized: |NTP synchronized: )(yes|no)\s*$"
)


def _clock(reading: Reading) -> Iterable[ClockState]:
    text = reading.text.strip()
    if not text and reading.rc in (None, 0):
        # Nothing there that keeps time and could be asked.
        return
    words = ([text] if text in ("yes", "no") else None) or _SYNCHRONISED.findall(text)
    leap = re.search(r"(?m)^Leap status\s*: (Normal|Not synchronised)", text)
    if not words and leap is None:
        raise UnusableOutput("it does not say whether the clock is synchronised")
    yield ClockState(is_synchronised=words[0] == "yes" if words else leap is not None
                     and leap[1] == "Normal")  # fmt: skip


def _services_script(_: Context) -> str:
    return """\
if command -v systemctl >/dev/null 2>&1 && systemctl list-units --type=service --state=active \\
  --plain --no-legend 2>/dev/null; then :; else
  ps -e -o comm= 2>/dev/null | sort -u | sed 's/$/.service loaded active running process/'
fi
"""


def _nfsd_script(_: Context) -> str:
    return "cat /proc/fs/nfsd/threads 2>/dev/null || echo 0"


def _identity_script(_: Context) -> str:
    return """\
echo "machine_id=$(cat /etc/machine-id 2>/dev/null)"
cat /etc/ssh/ssh_host_*_key.pub 2>/dev/null || true
"""


def _clock_script(_: Context) -> str:
    # Without systemd nobody can say; chrony answers for itself.
    return """\
timedatectl show -p NTPSynchronized --value 2>/dev/null || chronyc tracking 2>/dev/null || true
"""


def _wifi_script(_: Context) -> str:
    return """\
all= up=
for path in /sys/class/net/*; do
  name=${path##*/}
  case "$name" in wl*) ;; *) [ -d "$path/wireless" ] || continue ;; esac
  all="$all $name"
  [ "$(cat "$path/carrier" 2>/dev/null)" = 1 ] && up="$up $name"
done
echo "interfaces=$all"
echo "connected=$up"
save=
for name in $up; do save=$(iw dev "$name" get power_save 2>/dev/null | sed 's/.*: //'); done
echo "power_save=$save"
"""


READERS: tuple[Reader, ...] = (
    Reader(
        "services.is_active", (Services,), _is_active,
        commands=(rf"{RUN}systemctl .*\bis-active .*",),
    ),
    Reader(
        "services.units", (Services,), _units,
        commands=(rf"{RUN}systemctl(?: .*)?\b(?:list-units|status)\b.*", rf"{RUN}systemctl",
            rf"{RUN}systemctl --(?:type|state)\S*.*", rf"{RUN}service --status-all.*"),
    ),
    Reader(
        "services.processes", (Services,), _processes,
        commands=(rf"{RUN}(?:pgrep|ps|pidof)\b.*(?:oom|nohang).*",),
    ),
    Reader(
        "services.nfsd", (NfsServer,), _nfsd,
        commands=(rf"{RUN}cat /proc/fs/nfsd/threads{END}",), paths=(r".*proc/fs/nfsd/threads",),
    ),
    Reader(
        "services.identity", (HostIdentity,), _identity,
        commands=(
            rf"{RUN}cat /etc/machine-id.*", rf"{RUN}cat /etc/ssh/ssh_host_.*",
            rf"{RUN}hostnamectl.*",
            rf"{RUN}ssh-keygen (?:-\w+ )*-lf? ?\S*ssh_host_.*",
        ),
        paths=(r".*etc/machine-id", r".*/ssh_host_\w+_key\.pub"), whats=(r"host identity",),
    ),
    Reader(
        "services.nmcli", (WifiState,), _nmcli,
        commands=(rf"{RUN}nmcli(?: -\S+ \S+)*(?: d\w*)?.*",),
    ),
    Reader(
        "services.clock", (ClockState,), _clock,
        commands=(rf"{RUN}timedatectl\b.*", rf"{RUN}chronyc tracking{END}"),
    ),
    Reader("services.wifi", (WifiState,), _wifi, whats=(r"wi-?fi state",)),
    Reader(
        "services.power_save", (WifiState,), _power_save,
        commands=(rf"{RUN}iw (?:dev )?\S+ get power_save",),
    ),
)  # fmt: skip
ASKS: tuple[Ask, ...] = (
    Ask(
        "services.units", _services_script,
        command="systemctl list-units --type=service --state=active --plain --no-legend",
    ),
    Ask("services.nfsd", _nfsd_script, command="cat /proc/fs/nfsd/threads"),
    Ask("services.identity", _identity_script, what="host identity"),
    Ask(
        "services.clock", _clock_script, command="timedatectl show -p NTPSynchronized --value",
    ),
    Ask("services.wifi", _wifi_script, what="wifi state"),
)  # fmt: skip
