"""Network interfaces as links: carrier, MTU, speed, PCIe width, counters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.facts.sysfs import files, is_absent, wherever
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading


class Link(Model):
    """One interface; None = not read."""

    name: str
    mtu_bytes: int | None = None
    has_carrier: bool | None = None
    """False also where the interface is set down."""
    speed_mbps: int | None = None
    pcie_width: int | None = None
    pcie_speed_gtps: float | None = None
    counters: dict[str, int] | None = None
    """Errors and drops by name, as the kernel or the driver counts them."""

    def merged(self, other: Link) -> Link:
        """Both readings of one interface; where both know something, the first counts."""
        return Link.model_validate(
            {
                name: getattr(other, name) if getattr(self, name) is None else getattr(self, name)
                for name in type(self).model_fields
            }
        )


class Links(Fact):
    """Interfaces of one place."""

    links: tuple[Link, ...] = ()

    def merged(self, other: Links) -> Links:
        """Both readings; interfaces are joined by name, in order of sight."""
        known = {link.name: link for link in self.links}
        for link in other.links:
            known[link.name] = known[link.name].merged(link) if link.name in known else link
        return Links(links=tuple(known.values()))

    def named(self, name: str | None) -> Link | None:
        """The interface of that name."""
        return next((link for link in self.links if link.name == name), None)


class PciSlot(Model):
    """How one PCI device is connected."""

    address: str | None
    """Such as ``0000:01:00.0``; None = not said."""
    width: int | None = None
    speed_gtps: float | None = None


class PciSlots(Fact):
    """PCI devices of one place whose link was read by their own address."""

    slots: tuple[PciSlot, ...] = ()


class Neighbour(Model):
    """What sits at the other end of one interface, as it says itself by LLDP."""

    interface: str
    node: str
    port: str


class Neighbours(Fact):
    """LLDP neighbours of one place."""

    neighbours: tuple[Neighbour, ...] = ()


def _links(found: Iterable[dict[str, Any]]) -> list[Fact]:
    fact = Links()
    for values in found:
        fact = fact.merged(Links(links=(Link.model_validate(values),)))
    if not fact.links:
        raise UnusableOutput("no interface in the text")
    return [fact]


_IP_LINK = re.compile(
    r"^\s*\d+:\s+(?P<name>[^\s:@]+)(?:@[^\s:]+)?:\s+<(?P<flags>[^>]*)>.*?\bmtu (?P<mtu>\d+)",
    re.MULTILINE,
)
_IP_BRIEF = re.compile(r"^(?P<name>\S+)\s+(?P<state>UP|DOWN|UNKNOWN)\s", re.MULTILINE)


def ip_link_rows(text: str) -> Iterator[dict[str, Any]]:
    """Interfaces of ``ip link`` or ``ip addr``, one-line or not."""
    for row in _IP_LINK.finditer(text):
        flags = row["flags"].split(",")
        yield {
            "name": row["name"],
            "mtu_bytes": int(row["mtu"]),
            "has_carrier": "LOWER_UP" in flags and "NO-CARRIER" not in flags,
        }


def _ip_link(reading: Reading) -> list[Fact]:
    if is_absent(reading):
        return []
    rows = list(ip_link_rows(reading.text))
    rows += [
        {"name": row["name"].partition("@")[0], "has_carrier": row["state"] == "UP"}
        for row in _IP_BRIEF.finditer(reading.text)
        if row["state"] != "UNKNOWN"
    ]
    return _links(rows)


def _ethtool(reading: Reading) -> list[Fact]:
    """``Settings for X:`` with ``Speed: 200000Mb/s`` and ``Link detected: yes``."""
    if is_absent(reading):
        return []
    return _links(_ethtool_rows(reading))


def _ethtool_rows(reading: Reading) -> Iterator[dict[str, Any]]:
    words = (reading.command or "").split()
    name = words[-1] if len(words) > 1 and not words[-1].startswith("-") else ""
    values: dict[str, Any] = {}
    for line in reading.text.splitlines():
        if found := re.match(r"Settings for (\S+?):?$", line.strip()):
            if len(values) > 1:
                yield values
            values = {"name": found[1]}
        elif found := re.match(r"\s*Speed:\s*(\d+)Mb/s", line):
            values = {"name": name} | values | {"speed_mbps": int(found[1])}
        elif found := re.match(r"\s*Link detected:\s*(yes|no)\b", line):
            values = {"name": name} | values | {"has_carrier": found[1] == "yes"}
    if len(values) > 1 and values["name"]:
        yield values


_COUNTER = re.compile(
    r"^\s*(\w*(?:err|drop|crc|carrier|discard|symbol)\w*):\s*(\d+)\s*$", re.M | re.I
)


def _ethtool_counters(reading: Reading) -> list[Fact]:
    """``ethtool -S X``: only counters of errors, drops and carrier changes."""
    if is_absent(reading):
        return []
    name = (reading.command or "").split()[-1]
    counters = {row[1]: int(row[2]) for row in _COUNTER.finditer(reading.text)}
    if not counters:
        raise UnusableOutput("no counter in the text")
    return _links([{"name": name, "counters": counters}])


_NET = re.compile(
    r"/sys/class/net/(?P<name>[^/]+)/(?:(?P<key>mtu|operstate|carrier|speed)"
    r"|device/(?P<pci>current_link_width|current_link_speed)"
    r"|statistics/(?P<counter>\w+))"
)
_PCI = re.compile(r"(?:.*/)?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)/current_link_(width|speed)")


def _net_value(found: re.Match[str], value: str) -> dict[str, Any]:
    if found["counter"]:
        wanted = re.search(r"err|drop|crc|carrier", found["counter"])
        return {"counters": {found["counter"]: int(value)}} if wanted and value.isdigit() else {}
    if found["pci"]:
        return pci_value(found["pci"].rpartition("_")[2], value, "pcie_")
    if found["key"] == "operstate":
        return {"has_carrier": value == "up"} if value in ("up", "down", "lowerlayerdown") else {}
    if found["key"] == "carrier":
        return {"has_carrier": value == "1"} if value in ("0", "1") else {}
    number = int(value) if re.fullmatch(r"\d+", value) else None
    return {"mtu_bytes" if found["key"] == "mtu" else "speed_mbps": number}


def pci_value(kind: str, value: str, prefix: str = "") -> dict[str, Any]:
    """One of width and speed as a field; nothing where the text holds no figure (``Unknown``)."""
    if kind == "width":
        return {f"{prefix}width": int(value)} if re.fullmatch(r"\d{1,3}", value) else {}
    found = re.match(r"([\d.]+)\s*GT/s", value)
    return {f"{prefix}speed_gtps": float(found[1])} if found else {}


def _sysfs(reading: Reading) -> list[Fact]:
    """``/sys/class/net/IF/...`` as ``path: value`` lines or one file."""
    if is_absent(reading):
        return []
    rows: dict[str, dict[str, Any]] = {}
    for path, value in files(reading):
        if found := _NET.fullmatch(path):
            row = rows.setdefault(found["name"], {"name": found["name"]})
            new = _net_value(found, value)
            if "counters" in new:
                new["counters"] = row.get("counters", {}) | new["counters"]
            row.update(new)
    return _links(rows.values())


def _pci(reading: Reading) -> list[Fact]:
    """``current_link_width`` and ``current_link_speed`` of one PCI device, in any order."""
    if is_absent(reading):
        return []
    named = re.search(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d", reading.source)
    slots: dict[str | None, dict[str, Any]] = {}
    for path, value in files(reading):
        if found := _PCI.fullmatch(path):
            slots.setdefault(found[1], {}).update(pci_value(found[2], value))
    if not slots and named:
        slots[named[0]] = {}
        for line in reading.text.split("\n"):
            kind = "speed" if "GT/s" in line else "width"
            slots[named[0]].update(pci_value(kind, line.strip()))
    return _slots(slots)


def _lspci(reading: Reading) -> list[Fact]:
    """``LnkSta: Speed 32GT/s, Width x4`` of ``lspci -vv``."""
    if is_absent(reading):
        return []
    slots: dict[str | None, dict[str, Any]] = {}
    named = re.search(r"-s\s+(\S+)", reading.command or "")
    address = named[1] if named else None
    for line in reading.text.splitlines():
        if found := re.match(r"((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.\d) ", line):
            address = found[1]
        elif found := re.search(r"LnkSta:.*?Speed ([\d.]+)\s*GT/s.*?Width x(\d+)", line):
            slots[address] = {"speed_gtps": float(found[1]), "width": int(found[2])}
    return _slots(slots)


def _slots(slots: dict[str | None, dict[str, Any]]) -> list[Fact]:
    known = [
        PciSlot.model_validate({"address": address} | values)
        for address, values in slots.items()
        if values
    ]
    if not known:
        raise UnusableOutput("no PCIe width or speed in the text")
    return [PciSlots(slots=tuple(known))]


def _lldp(reading: Reading) -> list[Fact]:
    """``lldpcli show neighbors`` or ``lldpctl``, as text or as ``key=value`` lines."""
    if is_absent(reading):
        return []
    rows: dict[str, dict[str, str]] = {}
    interface = ""
    for line in reading.text.splitlines():
        if found := re.match(r"lldp\.([^.]+)\.(chassis\.name|port\.(?:ifname|descr))=(\S+)", line):
            interface, key, value = found[1], found[2], found[3]
        elif found := re.match(r"Interface:\s+([^,\s]+)", line):
            interface = found[1]
            continue
        elif found := re.match(r"\s+(SysName|PortID|PortDescr):\s+(?:ifname )?(\S+)\s*$", line):
            key, value = found[1], found[2]
        else:
            continue
        name = "node" if key in ("SysName", "chassis.name") else "port"
        rows.setdefault(interface, {}).setdefault(name, value)
    known = tuple(
        Neighbour(interface=interface, **row) for interface, row in rows.items() if len(row) == 2
    )
    if not known:
        raise UnusableOutput("no LLDP neighbour with name and port in the text")
    return [Neighbours(neighbours=known)]


_SHELL = r"(?:cat|grep|head|tail|for|find|awk|sh|bash) .*"
READERS: tuple[Reader, ...] = (
    Reader(
        "links.lldp",
        (Neighbours,),
        _lldp,
        commands=wherever(r"lldpcli .*neigh.*", r"lldpctl\b.*"),
    ),
    Reader(
        "links.ip",
        (Links,),
        _ip_link,
        commands=wherever(
            r"ip (?:-\S+ )*l(?:i|in|ink)?\b.*",
        ),
    ),
    Reader(
        "links.counters",
        (Links,),
        _ethtool_counters,
        commands=wherever(
            r"ethtool (?:-S|--statistics) \S+",
        ),
    ),
    Reader(
        "links.ethtool",
        (Links,),
        _ethtool,
        commands=wherever(
            r"ethtool [^-].*",
        ),
    ),
    Reader(
        "links.pci",
        (PciSlots,),
        _pci,
        commands=wherever(
            _SHELL + r"/sys/bus/pci/devices/.*current_link_.*",
        ),
        paths=(r"/sys/(?:bus/pci|devices)/.*current_link_.*",),
    ),
    Reader(
        "links.lspci",
        (PciSlots,),
        _lspci,
        commands=wherever(
            r"lspci .*-\w*vv.*",
        ),
    ),
    Reader(
        "links.sysfs",
        (Links,),
        _sysfs,
        commands=wherever(
            _SHELL + r"/sys/class/net/.*",
        ),
        paths=(r"/sys/class/net/.*",),
    ),
)

# Speed cannot be read of a port without carrier; that is not an error of the reading.
_DUMP = """\
for n in /sys/class/net/*; do
  [ -e "$n/mtu" ] || continue
  grep -H . "$n/mtu" "$n/operstate" "$n/carrier" "$n/speed" "$n/device/current_link_width" \\
    "$n/device/current_link_speed" 2>/dev/null
done
:
"""
ASKS: tuple[Ask, ...] = (Ask("links.sysfs", lambda _: _DUMP, path="/sys/class/net/*/..."),)
