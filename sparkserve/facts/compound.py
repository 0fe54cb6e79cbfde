"""The answer of several commands on one line: every part's own reader looks at the whole text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sparkserve.facts import kernel, unified
from sparkserve.facts.baseline import NodeBaseline
from sparkserve.facts.command_form import RUN, parts_of
from sparkserve.facts.kernel import HostVersions
from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.facts.unified import Buddyinfo, Compaction, Meminfo
from sparkserve.model.reading import Reading

# Only readers that know their lines by shape: a bare number could be anybody's.
_BY_SHAPE = (
    "unified.meminfo", "unified.free", "unified.buddyinfo", "unified.vmstat", "kernel.cmdline",
    "kernel.firmware", "kernel.versions",
)  # fmt: skip
# Before the reader of all other files of these folders.
_FIRMWARE = kernel.FIRMWARE
_PARTS = {r.id: r for r in (*unified.READERS, *kernel.READERS, _FIRMWARE) if r.id in _BY_SHAPE}


def _readers(command: str) -> list[tuple[str, Reader]]:
    """(part, its reader) for every part that has one."""
    found = []
    for part in parts_of(command):
        asked = Reading(command=part)
        reader = next((one for one in _PARTS.values() if one.takes(asked)), None)
        if reader is not None and not _SILENT.fullmatch(part):
            found.append((part, reader))
    return found


_SILENT = re.compile(r"(?:echo|hostname|date|sleep|true)\b.*")


def _is_compound(command: str) -> bool:
    """Whether parts of at least two kinds are known, or one beside parts that tell nothing."""
    known = _readers(command)
    parts = parts_of(command)
    silent = sum(1 for part in parts if _SILENT.fullmatch(part))
    if len({reader.id for _, reader in known}) > 1:
        return True
    return bool(known) and silent > 0 and len(known) + silent == len(parts)


@dataclass(frozen=True)
class _Compound(Reader):
    """A reader of lines of several commands."""

    def takes(self, reading: Reading) -> bool:
        """Whether no single reader would see all of its parts."""
        return reading.command is not None and _is_compound(reading.command)


def _read(reading: Reading) -> Iterable[Fact]:
    facts: list[Fact] = []
    reasons = []
    done = set()
    for part, reader in _readers(reading.command or ""):
        # A line of the kernel's arguments alone is known by the shape of the line here.
        own = _PARTS["kernel.versions"] if reader.id.startswith("kernel.") else reader
        if own.id in done:
            continue
        done.add(own.id)
        try:
            facts += own.parse(reading.model_copy(update={"command": part}))
        except UnusableOutput as error:
            reasons.append(f"{part}: {error}")
    if not facts:
        raise UnusableOutput("; ".join(reasons) or "nothing in it is known")
    return facts


def _driver_of(reading: Reading) -> Iterable[Fact]:
    """``ethtool -i``: firmware of the adapter behind one interface."""
    found = re.search(r"(?m)^firmware-version: (\d{2}\.\d{2}\.\d{4})\b", reading.text)
    if found is None:
        raise UnusableOutput("no firmware of a ConnectX in it")
    yield HostVersions(nic_firmware={(reading.command or "").split()[-1]: found[1]})


def _last_good(reading: Reading) -> Iterable[Fact]:
    versions = [
        fact for fact in _PARTS["kernel.versions"].parse(reading) if isinstance(fact, HostVersions)
    ]
    yield NodeBaseline(served_with=kernel.versions_of(versions[0]))


READERS: tuple[Reader, ...] = (
    _Compound(
        "compound.line", (Meminfo, Buddyinfo, Compaction, HostVersions), _read,
        commands=(r".+(?:;|&&).+",),
    ),
    _FIRMWARE,
    Reader(
        "compound.ethtool", (HostVersions,), _driver_of,
        commands=(rf"{RUN}ethtool (?:-i|--driver) \S+",),
    ),
    Reader(
        "compound.last_good", (NodeBaseline,), _last_good,
        whats=(r".*\b(?:last|previous) (?:known )?(?:good|successful|working)\b.*",),
    ),
)  # fmt: skip
ASKS: tuple[Ask, ...] = ()
