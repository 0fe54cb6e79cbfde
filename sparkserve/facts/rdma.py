"""RDMA devices, ports and GID tables, from sysfs or from the usual tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sparkserve.facts.kernel import firmware_in
from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.facts.sysfs import files, is_absent, wherever
from sparkserve.model.rdma import ROCE_V1, ROCE_V2, Gid, RdmaPort, full_gid
from sparkserve.model.reading import Reading


class Rdma(Fact):
    """RDMA ports of one place."""

    ports: tuple[RdmaPort, ...] = ()
    listed: bool = False
    """Whether the reading lists every device of the place, so that a missing one is not there."""

    def merged(self, other: Rdma) -> Rdma:
        """Both readings; ports are joined by device and number, in order of sight."""
        known = {(port.device, port.port): port for port in self.ports}
        for port in other.ports:
            key = (port.device, port.port)
            known[key] = known[key].merged(port) if key in known else port
        return Rdma(ports=tuple(known.values()), listed=self.listed or other.listed)


class NoRdma(Fact):
    """The place itself says that it has no RDMA device, which is more than not telling of any."""


_GID = r"(?:[0-9a-fA-F]{4}:){7}[0-9a-fA-F]{4}"
_SHOW_GIDS = re.compile(
    rf"^\s*(\S+)\s+(\d+)\s+(\d+)\s+({_GID})\s+(?:(\d+\.\d+\.\d+\.\d+)\s+)?v(1|2)(?:\s+(\S+))?\s*$",
    re.MULTILINE,
)


def _ports(rows: Iterable[RdmaPort], *, listed: bool = False) -> list[Fact]:
    fact = Rdma()
    for port in rows:
        fact = fact.merged(Rdma(ports=(port,)))
    if not fact.ports:
        raise UnusableOutput("no RDMA port in the text")
    return [fact.model_copy(update={"listed": listed})]


def _show_gids(reading: Reading) -> list[Fact]:
    """Columns DEV PORT INDEX GID [IPv4] VER [netdev]; ``v2`` is RoCE v2."""
    if is_absent(reading):
        return []
    if not _SHOW_GIDS.search(reading.text) and re.search(r"n_gids_found=0", reading.text):
        return []
    return _ports(
        RdmaPort(
            device=row[1],
            port=int(row[2]),
            netdev=row[7],
            gids=(
                Gid(
                    index=int(row[3]),
                    gid=full_gid(row[4]),
                    type=ROCE_V2 if row[6] == "2" else ROCE_V1,
                    netdev=row[7],
                ),
            ),
        )
        for row in _SHOW_GIDS.finditer(reading.text)
    )


_IBDEV = re.compile(
    r"^(?:\S+\s+)?(\S+) port (\d+)(?: \([^)]*\))? ==> (\S+) \((Up|Down)\)", re.MULTILINE
)
_IBDEV_V = re.compile(
    r"^\S+ (\S+) \(.*?\) .*? port (\d+) \((\w+)\s*\) ==> (\S+) \((Up|Down)\)", re.MULTILINE
)


def _ibdev2netdev(reading: Reading) -> list[Fact]:
    """``rocep1s0f0 port 1 ==> enp1s0f0np0 (Up)``, also in the form of ``-v``."""
    if is_absent(reading):
        return []
    rows = [(m[1], m[2], m[3], m[4]) for m in _IBDEV.finditer(reading.text)]
    rows += [(m[1], m[2], m[4], m[5]) for m in _IBDEV_V.finditer(reading.text)]
    return _ports(
        (
            RdmaPort(
                device=device,
                port=int(port),
                netdev=netdev,
                state="ACTIVE" if state == "Up" else "DOWN",
            )
            for device, port, netdev, state in rows
        ),
        listed="|" not in (reading.command or ""),
    )


def _state(text: str) -> str | None:
    """``4: ACTIVE``, ``PORT_ACTIVE (4)`` and ``Active`` are one state; None for anything else."""
    word = re.search(r"(?i)(?:\d:\s*)?(?:PORT_)?(ACTIVE_DEFER|ACTIVE|DOWN|INIT\w*|ARMED)\b", text)
    return None if word is None else word[1].upper().replace("INITIALIZING", "INIT")


_DEVINFO_GID = re.compile(r"GID\[\s*(\d+)\]:\s*([0-9a-fA-F:.]+)(?:,\s*(.+?))?\s*$")


def _devinfo_lines(text: str) -> Iterator[RdmaPort]:
    device, port = "", 1
    for line in text.splitlines():
        key, _, value = line.strip().partition(":")
        value = value.strip()
        if key == "hca_id":
            device, port = value, 1
        elif key == "port" and value.isdigit():
            port = int(value)
        elif not device:
            continue
        elif found := _DEVINFO_GID.search(line):
            kind = found[3] if found[3] in (ROCE_V2, ROCE_V1, "IB/RoCE v1") else None
            gid = Gid(
                index=int(found[1]),
                gid=full_gid(found[2]),
                type=ROCE_V1 if kind == "IB/RoCE v1" else kind,
            )
            yield RdmaPort(device=device, port=port, gids=(gid,))
        elif key == "state":
            yield RdmaPort(device=device, port=port, state=_state(value))
        elif key == "link_layer":
            yield RdmaPort(device=device, port=port, link_layer=value)
        elif key in ("max_mtu", "active_mtu") and (size := re.match(r"\d+", value)):
            yield RdmaPort.model_validate({"device": device, "port": port, key: int(size[0])})


def _devinfo(reading: Reading) -> list[Fact]:
    """``ibv_devinfo``, with ``-v`` also the GID table."""
    if is_absent(reading) or re.search(r"No IB devices found", reading.text):
        return []
    return [*_ports(_devinfo_lines(reading.text)), *firmware_in(reading.text)]


def _rdma_link(reading: Reading) -> list[Fact]:
    """``link rocep1s0f0/1 state ACTIVE physical_state LINK_UP netdev enp1s0f0np0``."""
    if is_absent(reading):
        return []
    rows = re.finditer(
        r"^(?:\d+: )?(?:link )?(\S+)/(\d+):? .*?\bstate (\w+)(?: .*?\bphysical_state (\w+))?"
        r"(?:.*?\bnetdev (\S+))?",
        reading.text,
        re.MULTILINE,
    )
    return _ports(
        (
            RdmaPort(
                device=row[1],
                port=int(row[2]),
                state=_state(row[3]),
                phys_state=row[4],
                netdev=row[5],
            )
            for row in rows
        ),
        listed=re.fullmatch(r"rdma (?:-\w+ )*link(?: show| list)?", reading.command or "")
        is not None,
    )


def _ibstat(reading: Reading) -> list[Fact]:
    """``ibstat`` and ``ibstatus``."""
    if is_absent(reading):
        return []
    rows: list[RdmaPort] = []
    device, port = "", 1
    for line in reading.text.splitlines():
        if found := re.search(r"(?:CA|device) '(\S+?)'(?: port (\d+))?", line):
            device, port = found[1], int(found[2] or 1)
        elif found := re.match(r"\s*Port (\d+):", line):
            port = int(found[1])
        elif device and (
            found := re.match(r"\s*(state|phys\w* state|link.layer):\s*(.+)", line, re.I)
        ):
            key = {"s": "state", "p": "phys_state", "l": "link_layer"}[found[1][0].lower()]
            value = _state(found[2]) if key == "state" else found[2].strip().split(": ")[-1]
            rows.append(RdmaPort.model_validate({"device": device, "port": port, key: value}))
    return _ports(rows)


_SYSFS = re.compile(
    r"/sys/class/infiniband/(?P<device>[^/]+)/ports/(?P<port>\d+)/"
    r"(?P<name>state|phys_state|link_layer|gids|gid_attrs/types|gid_attrs/ndevs)(?:/(?P<index>\d+))?"
)
_TYPES = {"RoCE v2": ROCE_V2, "IB/RoCE v1": ROCE_V1, "RoCE v1": ROCE_V1}


def _sysfs(reading: Reading) -> list[Fact]:
    """``path: value`` lines, or the one file that the path names; empty GID rows are no rows."""
    if "no RDMA devices" in reading.text:
        return [NoRdma()]
    if is_absent(reading):
        return []
    ports: dict[tuple[str, int], dict[str, str]] = {}
    rows: dict[tuple[str, int], dict[int, dict[str, str]]] = {}
    for path, value in files(reading):
        if found := _SYSFS.fullmatch(path):
            key = (found["device"], int(found["port"]))
            ports.setdefault(key, {})
            if found["index"] is None:
                ports[key][found["name"]] = value
            else:
                row = rows.setdefault(key, {}).setdefault(int(found["index"]), {})
                row[found["name"].rpartition("/")[2]] = value
    return _ports(
        (_sysfs_port(key, values, rows.get(key)) for key, values in ports.items()),
        listed="*" in reading.source,
    )


def _sysfs_port(
    key: tuple[str, int], values: dict[str, str], rows: dict[int, dict[str, str]] | None
) -> RdmaPort:
    gids = None
    if rows is not None:
        all_rows = [
            Gid(
                index=index,
                gid=full_gid(row["gids"]),
                type=_TYPES.get(row.get("types", "")),
                netdev=row.get("ndevs"),
            )
            for index, row in sorted(rows.items())
            if "gids" in row
        ]
        gids = tuple(gid for gid in all_rows if not gid.is_empty)
    return RdmaPort(
        device=key[0],
        port=key[1],
        state=_state(values.get("state", "")),
        phys_state=values["phys_state"].split(": ")[-1] if "phys_state" in values else None,
        link_layer=values.get("link_layer"),
        netdev=next((gid.netdev for gid in gids or () if gid.netdev), None),
        gids=gids,
    )


_SHELL = r"(?:cat|grep|head|tail|for|find|awk|sh|bash) .*"
READERS: tuple[Reader, ...] = (
    Reader(
        "rdma.show_gids",
        (Rdma,),
        _show_gids,
        commands=wherever(
            r"show_gids\b.*",
        ),
        whats=("show_gids",),
    ),
    Reader(
        "rdma.ibdev2netdev",
        (Rdma,),
        _ibdev2netdev,
        commands=wherever(
            r"ibdev2netdev\b.*",
        ),
    ),
    Reader(
        "rdma.devinfo",
        (Rdma,),
        _devinfo,
        commands=wherever(
            r"ibv_devinfo\b.*",
        ),
    ),
    Reader(
        "rdma.link",
        (Rdma,),
        _rdma_link,
        commands=wherever(
            r"rdma (?:-\w+ )*link\b.*",
        ),
    ),
    Reader(
        "rdma.ibstat",
        (Rdma,),
        _ibstat,
        commands=wherever(
            r"ibstat(?:us)?\b.*",
        ),
    ),
    Reader(
        "rdma.sysfs",
        (Rdma, NoRdma),
        _sysfs,
        commands=wherever(
            _SHELL + r"/sys/class/infiniband/.*",
        ),
        paths=(r"/sys/class/infiniband/.*",),
    ),
)

# Only rows that hold a GID are printed, in two reads instead of three per row: a table has
# hundreds of empty rows. `grep` prints "path:value"; unreadable types of holes are passed over.
_DUMP = """\
cd /sys/class/infiniband 2>/dev/null || { echo "no RDMA devices"; exit 0; }
set -- */ports/*
[ -e "$1" ] || { echo "no RDMA devices"; exit 0; }
for p in "$@"; do
  grep -H . "$PWD/$p/state" "$PWD/$p/phys_state" "$PWD/$p/link_layer" 2>/dev/null
  rows=$(grep -Hv '^0000:0000:0000:0000:0000:0000:0000:0000$' "$PWD/$p"/gids/* 2>/dev/null)
  [ -n "$rows" ] || continue
  printf '%s\\n' "$rows"
  files=
  for row in $(printf '%s\\n' "$rows" | sed 's/:.*//'); do
    index=${row##*/}
    files="$files $PWD/$p/gid_attrs/types/$index $PWD/$p/gid_attrs/ndevs/$index"
  done
  # One process for all of them; no name in /sys holds a blank.
  grep -H . $files 2>/dev/null
done
:
"""
ASKS: tuple[Ask, ...] = (
    Ask("rdma.sysfs", lambda _: _DUMP, path="/sys/class/infiniband/*/ports/*/..."),
    Ask(
        "rdma.devinfo",
        lambda _: (
            "if command -v ibv_devinfo >/dev/null; then ibv_devinfo 2>&1;"
            " else echo 'ibv_devinfo: command not found'; fi"
        ),
        command="ibv_devinfo",
    ),
)
