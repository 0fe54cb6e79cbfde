"""Files of a checkpoint as lists, links and headers show them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

from sparkserve.facts.exports import Mode, Modes
from sparkserve.facts.probe import Context, UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader, bare_command
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading


class CheckpointIndex(Fact):
    """Shards that an index names."""

    shards: tuple[str, ...] = ()


class ListedFile(Model):
    """One name in a folder."""

    name: str
    size_bytes: int | None = None


class Listing(Fact):
    """What lies in one folder."""

    folder: str | None = None
    """As the command names it; None = the one where it ran."""
    files: tuple[ListedFile, ...] = ()
    hint: str = ""
    """What else is said of the folder, such as where it is mounted."""


class BrokenLinks(Fact):
    """Links that lead nowhere."""

    paths: tuple[str, ...] = ()


class PartialFiles(Fact):
    """Downloads that were not finished."""

    files: tuple[ListedFile, ...] = ()


class ShardHeader(Model):
    """Length fields of one safetensors file."""

    name: str
    size_bytes: int | None = None
    header_bytes: int
    """First 8 bytes, little-endian."""
    declares_bytes: int | None = None
    """Size of the whole file by its own header."""

    @property
    def fault(self) -> str | None:
        """What is wrong with it; None = nothing that these figures show.

        A header holds at least ``{}`` and ends within the file; safetensors refuses one over
        100 MB (its own format).
        """
        if self.header_bytes < 2:
            return f"header length {self.header_bytes}"
        if self.size_bytes is not None and self.header_bytes > self.size_bytes - 8:
            return f"header length {self.header_bytes} in a file of {self.size_bytes} bytes"
        if self.header_bytes > 100_000_000:
            return f"header length {self.header_bytes}, over 100000000"
        if None not in (self.declares_bytes, self.size_bytes) and (
            self.declares_bytes != self.size_bytes
        ):
            return f"{self.size_bytes} bytes, its header declares {self.declares_bytes}"
        return None


class ShardHeaders(Fact):
    """Headers that were looked at."""

    headers: tuple[ShardHeader, ...] = ()


def _index(reading: Reading) -> Iterator[CheckpointIndex]:
    told = json.loads(reading.text)
    table = told.get("weight_map") if isinstance(told, dict) else None
    if not isinstance(table, dict):
        raise UnusableOutput("no weight_map")
    names = {name for name in table.values() if isinstance(name, str)}
    yield CheckpointIndex(shards=tuple(sorted(names)))


_LONG = re.compile(
    r"^[bcdlps-][rwxsStT-]{9}[.+@]?\s+\d+\s+\S+\s+\S+\s+(?P<size>\d{1,18})\s+"
    r"(?:\S+\s+\d{1,2}\.?\s+[\d:]+|\d{4}-\d\d-\d\d\s+\S+(?:\s+[+-]\d{4})?|\d{1,2}\.?\s+\S+\s+[\d:]+)"
    r"\s+(?P<name>.+)$"
)


def _listing(reading: Reading) -> Iterator[Fact]:
    command = bare_command(reading.command or "")
    text = reading.text
    if re.search(r"(?m)^\S*(?:ls|find): .*", text) and len(text.strip().splitlines()) == 1:
        raise UnusableOutput(text.strip()[:200])
    words = [w for w in re.sub(r"\s[|;>&].*", "", command).split()[1:] if not w.startswith("-")]
    folder = words[0].strip("'\"") if words and not re.search(r"[*?]", words[0]) else None
    long_form = re.search(r"(?m)^[bcdlps-][rwxsStT-]{9}", text) is not None
    files, modes = [], []
    for line in text.splitlines():
        if not line.strip() or (long_form and re.match(r"\w+ \d+[KMGT]?$", line)):
            continue
        if not long_form:
            files += _names(line.strip(), command)
        elif row := _LONG.match(line):
            name = row["name"].partition(" -> ")[0]
            files.append(ListedFile(name=name, size_bytes=int(row["size"])))
            path = f"{folder.rstrip('/')}/{name}" if folder else name
            modes.append(Mode(path=path, mode=_mode(line[1:10]), is_folder=line[0] == "d"))
    shown = [one for one in files if one.name not in (".", "..")]
    hint = f"{reading.note} {reading.label} {command}"
    yield Listing(folder=folder, files=tuple(shown), hint=hint)
    if modes:
        yield Modes(modes=tuple(one for one in modes if not one.path.endswith(".")))


def _names(line: str, command: str) -> list[ListedFile]:
    """Names of one line: several in columns, one with its size, or a whole path."""
    if sized := re.fullmatch(r"(\S+)[\t ]+(\d{1,18})|(\d{1,18})[\t ]+(\S+)", line):
        name, size = sized[1] or sized[4], sized[2] or sized[3]
        return [ListedFile(name=name.rpartition("/")[2], size_bytes=int(size))]
    if command.startswith(("find", "du")):
        return [ListedFile(name=line.rpartition("/")[2])]
    return [ListedFile(name=name.rstrip("*@/")) for name in re.split(r"\s{2,}|\t", line)]


def _mode(letters: str) -> int:
    return int("".join("0" if letter in "-ST" else "1" for letter in letters), 2)


def _broken(reading: Reading) -> Iterator[BrokenLinks]:
    paths = _paths(reading.text)
    yield BrokenLinks(paths=tuple(re.sub(r":? broken symbolic link.*", "", path) for path in paths))


def _partial(reading: Reading) -> Iterator[PartialFiles]:
    found = []
    for path in _paths(reading.text):
        row = re.search(r"(\S*\.(?:incomplete|part|aria2|tmp))(?:\s+(\d{1,18}))?", path)
        sized = re.search(r"(?:^|\s)(\d{1,18})\s+\S*\.(?:incomplete|part)", path)
        if row is None:
            raise UnusableOutput(f"no unfinished file: {path[:80]}")
        size = row[2] or (sized[1] if sized else None)
        found.append(ListedFile(name=row[1], size_bytes=int(size) if size else None))
    yield PartialFiles(files=tuple(found))


def _paths(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if complaint := next((line for line in lines if re.match(r"find: ", line)), None):
        raise UnusableOutput(complaint[:200])
    return lines


_HEADER = re.compile(r"\s*(\S+\.safetensors):?\s+(\d{1,18})\s+(\d{1,20})(?:\s+(\d{1,18}))?\s*")


def _headers(reading: Reading) -> Iterator[ShardHeaders]:
    rows = (_HEADER.fullmatch(line) for line in reading.text.splitlines())
    found = [
        ShardHeader(
            name=row[1], size_bytes=int(row[2]), header_bytes=int(row[3]),
            declares_bytes=int(row[4]) if row[4] else None,
        )
        for row in rows if row
    ]  # fmt: skip
    if not found and (one := _dumped(reading)) is not None:
        found = [one]
    if not found:
        raise UnusableOutput("no header lengths")
    yield ShardHeaders(headers=tuple(found))


def _dumped(reading: Reading) -> ShardHeader | None:
    """The first 8 bytes of one file, as ``od`` or ``xxd`` show them."""
    named = re.search(r"(\S+\.safetensors)", reading.command or "")
    if named is None:
        return None
    text = reading.text.strip()
    if found := re.fullmatch(r"(?:0+\s+)?(\d{1,20})(?:\s+0+10)?", text):
        return ShardHeader(name=named[1], header_bytes=int(found[1]))
    octets = re.fullmatch(
        r"(?:0+:?\s+)?((?:[0-9a-f]{2,4}\s+){3,7}[0-9a-f]{2,4})(?:\s.*)?", text, re.S
    )
    if octets is None:
        return None
    raw = bytes.fromhex(re.sub(r"\s", "", octets[1]))[:8]
    return ShardHeader(name=named[1], header_bytes=int.from_bytes(raw, "little"))


_INDEX = r"(?:\S*/)?\S*\.safetensors\.index\.json"
READERS: tuple[Reader, ...] = (
    Reader(
        "weights.index", (CheckpointIndex,), _index,
        commands=(rf"(?:cat|jq \S+) {_INDEX}",), paths=(_INDEX,), whats=(_INDEX,),
    ),
    Reader(
        "weights.partial", (PartialFiles,), _partial,
        commands=(r"(?:find|ls|du) .*\.(?:incomplete|part|aria2)\b.*",),
    ),
    Reader(
        "weights.broken", (BrokenLinks,), _broken,
        commands=(
            r"find (?=.*-L\b)(?=.*-type l\b).*", r"find .*-xtype l\b.*",
            r"find .*! -exec test -e.*", r"find .*-type l .*! -readable.*",
        ),
    ),
    Reader(
        "weights.headers", (ShardHeaders,), _headers,
        commands=(r"(?:od|xxd|hexdump|head -c ?8) .*\.safetensors\b.*",),
        whats=(r"(?:safetensors )?header(?:s| probe| lengths)?(?: of .*)?",),
    ),
    Reader(
        "weights.listing", (Listing,), _listing,
        commands=(
            r"(?:ls|dir)\b(?!.*/dev/infiniband\b).*", r"du -\w*b\w* .*",
            r"find (?!.*incomplete).*-printf ['\"]?(?:%s(?:\\t| ))?%[fpP].*",
            r"find (?!.*-printf).*-type f\b.*",
            r"find (?!.*-printf).*-name \S*safetensors\S*.*",
        ),
        whats=(r"ls(?: .*)?",),
    ),
)  # fmt: skip


def _in_model(context: Context, command: str) -> str:
    """A script that runs a command on the checkpoint's folder ``$m``, where there is one."""
    path = shlex.quote(context.model_path or "")
    return (
        f'm={path}\n[ -n "$m" ] || exit 0\n'
        f'case "$m" in /*) ;; *) m="$ROOT/checkpoints/$m" ;; esac\n[ -d "$m" ] || exit 0\n{command}'
    )


ASKS: tuple[Ask, ...] = (
    Ask(
        "weights.broken", lambda context: _in_model(context, 'find -L "$m" -maxdepth 1 -type l'),
        command="find -L MODEL -maxdepth 1 -type l",
    ),
    Ask(
        # A snapshot of Hugging Face's cache has its blobs two folders up.
        "weights.partial",
        lambda context: _in_model(
            context,
            '[ -d "$m/../../blobs" ] || exit 0\n'
            "find \"$m/../../blobs\" -maxdepth 1 -name '*.incomplete' -printf '%f %s\\n'",
        ),
        command="find BLOBS -maxdepth 1 -name '*.incomplete' -printf '%f %s\\n'",
    ),
)  # fmt: skip
