"""Mount points, free space and kinds of file system."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader, ask_file, bare_command
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading

NETWORKED = ("nfs", "nfs4", "cifs", "smb3", "fuse", "9p", "ceph", "glusterfs", "lustre", "beegfs")


class Filesystem(Model):
    """One mounted file system, or the one on which a path lies."""

    target: str
    """Mount point."""
    source: str | None = None
    kind: str | None = None
    """Type, such as ``ext4``, ``nfs4``, ``overlay``."""
    size_bytes: int | None = None
    available_bytes: int | None = None
    path: str | None = None
    """The path that was asked about; None = the whole list was."""


class Filesystems(Fact):
    """File systems of one place."""

    filesystems: tuple[Filesystem, ...] = ()

    def holding(self, path: str) -> Filesystem | None:
        """The file system of a path: the known mount point with the longest common beginning.

        Everything known of that mount point is put together; None where none is known.
        """
        asked = [one for one in self.filesystems if one.path == path]
        around = [one for one in self.filesystems if is_below(path, one.target)]
        if not asked and not around:
            return None
        target = (asked or [max(around, key=lambda one: len(one.target.rstrip("/")))])[0].target
        same = [one for one in (*asked, *around) if one.target == target]
        known: dict[str, Any] = {}
        for one in reversed(same):
            known |= one.model_dump(exclude_none=True)
        return Filesystem.model_validate(known | {"path": path})


class PathKind(Model):
    """Type of the file system on which a path lies, by ``stat -f``."""

    path: str
    kind: str


class PathKinds(Fact):
    """Types of the file systems of some paths."""

    kinds: tuple[PathKind, ...] = ()


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies below it; both as written, links not followed."""
    folder = folder.rstrip("/")
    return path == folder or path.startswith(folder + "/") or not folder


_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_ROW = re.compile(
    r"^(?P<source>\S+)\s+(?:(?P<kind>[a-z][\w.]*)\s+)?(?P<size>[\d.,]+[BKMGTP]?)i?\s+"
    r"(?P<used>[\d.,]+[BKMGTP]?)i?\s+(?P<avail>-?[\d.,]+[BKMGTP]?)i?\s+(?:\d+%|-)\s+(?P<target>/.*)$"
)


def _size(word: str, block_bytes: int) -> int | None:
    found = re.fullmatch(r"(-?\d{1,18})(?:[.,](\d))?([BKMGTP]?)i?B?", word)
    if found is None:
        return None
    tenths = int(found[1]) * 10 + int(found[2] or 0)
    return tenths * (_UNITS[found[3]] if found[3] else block_bytes) // 10


def _block_bytes(command: str) -> int:
    block = re.search(r"(?:-\w*B ?|--block-size=)(\d*)([KMGT]?)B?\b", command)
    if block:
        return int((block[1] or "1")[:9]) * _UNITS[block[2]]
    flags = "".join(re.findall(r"(?:^|\s)-([a-zA-Z]+)", command))
    return 2**20 if "m" in flags else 2**10


def _space(reading: Reading) -> Iterator[Filesystems]:
    command = bare_command(reading.command or "")
    block_bytes = _block_bytes(command)
    paths = [word for word in command.split() if re.fullmatch(r"~?/\S*", word)]
    lines = [line.strip() for line in reading.text.splitlines() if line.strip()]
    chosen = re.search(r"--output[= ](\S+)", command)
    rows = []
    for line in lines:
        row = _chosen_row(chosen[1].split(","), line) if chosen else _ROW.match(line)
        if row is not None:
            rows.append(row)
    found = []
    for number, row in enumerate(rows):
        fields = row if isinstance(row, dict) else row.groupdict()
        path = paths[number] if len(paths) == len(rows) else None
        target = fields.get("target") or path
        if target is None:
            raise UnusableOutput("space without a mount point")
        size, available = (_size(fields.get(k) or "", block_bytes) for k in ("size", "avail"))
        found.append(
            Filesystem(
                target=target, source=fields.get("source"), path=path, size_bytes=size,
                kind=fields.get("kind") or fields.get("fstype"), available_bytes=available,
            )
        )  # fmt: skip
    if not found:
        raise UnusableOutput(f"no row of df: {reading.text.strip()[:80] or 'no output'}")
    yield Filesystems(filesystems=tuple(found))


def _chosen_row(columns: list[str], line: str) -> dict[str, str] | None:
    words = line.split(None, len(columns) - 1) if columns[-1] == "target" else line.split()
    if len(words) != len(columns):
        return None
    row = dict(zip(columns, words, strict=True))
    sized = [key for key in ("avail", "size", "used") if key in row]
    if any(_size(row[key], 1) is None for key in sized):
        return None
    return row if sized or str(row.get("target", "")).startswith("/") else None


def _mount_point(reading: Reading) -> Iterator[Filesystems]:
    command = bare_command(reading.command or "")
    path = re.search(r"(?:-\w*T[ =]?|--target[ =])['\"]?(~?/[^\s'\"|;]*)", command)
    asked = path[1] if path else None
    text = reading.text.strip()
    if text.startswith("{"):
        rows = json.loads(text).get("filesystems")
        if not isinstance(rows, list):
            raise UnusableOutput("no list of file systems")
        found = [_filesystem(row, asked) for row in rows if isinstance(row, dict)]
    else:
        columns, lines = _findmnt_columns(command, text.splitlines())
        words = [line.split(None, len(columns) - 1) for line in lines if line.strip()]
        rows = [dict(zip(columns, row, strict=False)) for row in words]
        found = [_filesystem(row, asked) for row in rows]
    if not found or any(one is None for one in found):
        raise UnusableOutput(f"no mount point: {text[:80] or 'no output'}")
    yield Filesystems(filesystems=tuple(one for one in found if one is not None))


def _findmnt_columns(command: str, lines: list[str]) -> tuple[list[str], list[str]]:
    chosen = re.search(r"(?:\s-\w*o[ =]?|--output[ =])([A-Za-z,-]+)", command)
    if lines and re.match(r"(?:TARGET|SOURCE|FSTYPE)\b", lines[0]):
        return lines[0].lower().split(), lines[1:]
    if chosen:
        return chosen[1].lower().split(","), lines
    return ["target", "source", "fstype", "options"], lines


def _filesystem(row: dict[str, Any], asked: str | None) -> Filesystem | None:
    target = row.get("target")
    shown = re.sub(r"^[^/]*", "", target) if isinstance(target, str) else asked
    if not shown or not shown.startswith("/"):
        return None
    words = {key: row[key] for key in ("source", "fstype") if isinstance(row.get(key), str)}
    space = _size(str(row.get("avail") or ""), 1)
    return Filesystem(
        target=shown, source=words.get("source"), kind=words.get("fstype"), path=asked,
        available_bytes=space,
    )  # fmt: skip


def _mounts(reading: Reading) -> Iterator[Filesystems]:
    spoken = re.findall(r"(?m)^(\S+) on (/.*?) type (\S+) \(", reading.text)
    plain = re.findall(r"(?m)^(\S+) (/\S*) (\w[\w.]*) \S+ \d+ \d+$", reading.text)
    rows = spoken or plain
    if not rows:
        raise UnusableOutput("no line of a mount")
    yield Filesystems(
        filesystems=tuple(
            Filesystem(target=target, source=source, kind=kind) for source, target, kind in rows
        )
    )


def _mountpoint(reading: Reading) -> Iterator[Filesystems]:
    told = re.search(r"(?<!\S)(/\S{0,300}) is (not )?a mountpoint", reading.text)
    if told is None:
        raise UnusableOutput(f"no answer of mountpoint: {reading.text.strip()[:80]}")
    path = told[1]
    target = path.rpartition("/")[0] or "/" if told[2] else path
    yield Filesystems(filesystems=(Filesystem(target=target, path=path),))


def _kinds(reading: Reading) -> Iterator[PathKinds]:
    command = bare_command(reading.command or "")
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    paths = [word for word in words if re.match(r"[/~$]", word)]
    lines = [line.strip() for line in reading.text.splitlines() if line.strip()]
    kinds = [
        line for line in lines if re.fullmatch(r"[A-Za-z][\w./-]*|UNKNOWN \(0x[0-9a-f]+\)", line)
    ]
    if not lines or len(kinds) != len(lines):
        whole = re.search(r"Type: (\S+)", reading.text)
        if whole is None:
            raise UnusableOutput(f"no type of a file system: {reading.text.strip()[:80]}")
        kinds = [whole[1]]
    if len(paths) != len(kinds):
        paths = [f"path {number + 1}" for number in range(len(kinds))]
    pairs = zip(paths, kinds, strict=True)
    yield PathKinds(kinds=tuple(PathKind(path=path, kind=kind) for path, kind in pairs))


_FLAGS = r"(?:-\S+ )*"
READERS: tuple[Reader, ...] = (
    Reader("filesystems.space", (Filesystems,), _space, commands=(r"df\b.*",)),
    Reader("filesystems.point", (Filesystems,), _mountpoint, commands=(r"mountpoint (?!-\w*q).*",)),
    Reader("filesystems.findmnt", (Filesystems,), _mount_point, commands=(r"findmnt\b.*",)),
    Reader(
        "filesystems.mounts", (Filesystems,), _mounts, commands=(r"mount(?: -\S+)*(?: \|.*)?",),
        paths=(r"/proc/(?:self/)?mounts", r"/etc/mtab"),
    ),
    Reader("filesystems.kind", (PathKinds,), _kinds, commands=(r"stat (?=.*-\w*f\b).*",)),
)  # fmt: skip
ASKS: tuple[Ask, ...] = (
    # `df` would wait for a dead NFS server; this does not.
    ask_file("filesystems.mounts", "/proc/self/mounts"),
)
