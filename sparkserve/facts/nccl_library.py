"""The NCCL that a process really loads, and settings that a file gives it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from sparkserve.facts.probe import Context, UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.facts.sysfs import is_absent, wherever
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading

Version = tuple[int, int, int]
_VERSION = re.compile(r"(?:NCCL version |nccl==)(\d+)\.(\d+)\.(\d+)")
_PATH = re.compile(r"/\S*libnccl\.so[^\s:,;\"']*")
PATCH_MARK = "SWITCHLESS_RING_ONLY"
"""Text that the ring patch leaves in the library; preflight section 5."""


class NcclFile(Model):
    """One library file; None = not read."""

    path: str | None = None
    version: Version | None = None
    pid: int | None = None
    """Process that has it mapped; None = lies on the disk, or not said."""
    has_ring_patch: bool | None = None
    size_bytes: int | None = None


class NcclFiles(Fact):
    """NCCL libraries of one place."""

    files: tuple[NcclFile, ...] = ()

    @property
    def loaded(self) -> tuple[NcclFile, ...]:
        """Those that a process has mapped; where none has, those on the disk."""
        mapped = tuple(file for file in self.files if file.pid is not None)
        return mapped or self.files


class NcclSettings(Fact):
    """Settings of an ``nccl.conf``; an empty table where the file says nothing."""

    settings: dict[str, str]


def version_in(text: str) -> Version | None:
    """The version in a line of a log or of a library."""
    found = _VERSION.search(text) or re.fullmatch(r"\s*\((\d+), (\d+), (\d+)\)\s*", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _ours(reading: Reading) -> Iterator[Fact]:
    """``library path=... version=... pid=... patch=0 size=...`` lines of our own question."""
    rows = re.findall(r"^library (.*)$", reading.text, re.M)
    if not rows and "no library" not in reading.text:
        raise UnusableOutput("no library line in the text")
    files = []
    for row in rows:
        told = dict(re.findall(r"(\w+)=(\S*)", row))
        files.append(
            NcclFile(
                path=told.get("path"),
                version=version_in(f"nccl=={told.get('version', '')}"),
                pid=int(told["pid"]) if told.get("pid", "").isdigit() else None,
                has_ring_patch={"0": False, "1": True}.get(told.get("patch", "")),
                size_bytes=int(told["size"]) if told.get("size", "").isdigit() else None,
            )
        )
    yield NcclFiles(files=tuple(files))


def _strings(reading: Reading) -> list[Fact]:
    """``strings libnccl.so | grep ...``, or the paths that a process has mapped."""
    if is_absent(reading):
        return []
    named = _PATH.search(reading.source)
    version = version_in(reading.text)
    mapped = re.search(r"/proc/(\d+)/", reading.source)
    pid = int(mapped[1]) if mapped else None
    paths = list(dict.fromkeys(_PATH.findall(reading.text)))
    patch = True if PATCH_MARK in reading.text else None
    if PATCH_MARK in reading.source and patch is None:
        patch = False
    if version is None and not paths and patch is None:
        raise UnusableOutput("neither a version nor a library in the text")
    if version is None and paths:
        return [NcclFiles(files=tuple(NcclFile(path=path, pid=pid) for path in paths))]
    path = named[0] if named else next(iter(paths), None)
    one = NcclFile(path=path, version=version, pid=pid, has_ring_patch=patch)
    return [NcclFiles(files=(one,))]


def _conf(reading: Reading) -> list[Fact]:
    """``NCCL_NAME=value`` lines; ``#`` starts a comment, a missing file says nothing."""
    found = {}
    strange = False
    for line in reading.text.splitlines():
        bare = line.partition("#")[0].strip()
        if row := re.fullmatch(r"(?:export\s+)?(NCCL_\w+)\s*=\s*(.*)", bare):
            found[row[1]] = row[2].strip()
        elif bare:
            strange = True
    if not found and strange and not is_absent(reading):
        raise UnusableOutput("no NCCL setting in the text")
    return [NcclSettings(settings=found)]


READERS: tuple[Reader, ...] = (
    Reader(
        "nccl.conf", (NcclSettings,), _conf,
        commands=wherever(r"(?!find |ls |stat ).*\bnccl\.conf\b.*",), paths=(r".*\bnccl\.conf",),
        whats=(r".*\bnccl\.conf\b.*",),
    ),
    Reader("nccl.library", (NcclFiles,), _ours, whats=(r"nccl libraries",)),
    Reader(
        "nccl.strings", (NcclFiles,), _strings,
        commands=wherever(
            r"(?:.*\s)?(?:strings|grep|cat)\b.*libnccl.*",
            r"(?:.*\s)?(?:grep|cat)\b.*/proc/\S+/maps.*nccl.*",
            r"(?:.*\s)?grep\b.*nccl.*/proc/\S+/maps.*",
            r".*\btorch\.cuda\.nccl\.version\(\).*",
        ),
        whats=(r"(?:loaded |mapped )?nccl (?:library|version)(?: .*)?", r"libnccl.*"),
    ),
)  # fmt: skip


def _script(context: Context) -> str:
    """Libraries that processes of this user have mapped, and that of the runtime's own folder."""
    return f"""\
one() {{
  v=$(grep -a -o -m1 'NCCL version [0-9]*\\.[0-9]*\\.[0-9]*' "$2" 2>/dev/null | head -n 1)
  if grep -a -q {PATCH_MARK} "$2" 2>/dev/null; then patch=1; else patch=0; fi
  [ -r "$2" ] || patch=
  size=$(stat -L -c %s "$2" 2>/dev/null)
  echo "library path=$3 pid=$1 version=${{v##* }} patch=$patch size=$size"
}}
seen=
for maps in $(grep -ls 'libnccl\\.so' /proc/[0-9]*/maps 2>/dev/null | head -n 8); do
  pid=${{maps#/proc/}}; pid=${{pid%/maps}}
  for lib in $(grep -o '/[^ ]*libnccl\\.so[^ ]*' "$maps" 2>/dev/null | sort -u); do
    file=/proc/$pid/root$lib
    [ -r "$file" ] || file=$lib
    one "$pid" "$file" "$lib"; seen=1
  done
done
p={shlex.quote(context.python or "venv/bin/python")}
case "$p" in /*) ;; *) p=$ROOT/$p ;; esac
for lib in "${{p%/bin/*}}"/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2; do
  [ -r "$lib" ] && {{ one "" "$lib" "$lib"; seen=1; }}
done
[ -n "$seen" ] || echo "no library"
"""


ASKS: tuple[Ask, ...] = (
    Ask("nccl.library", _script, what="nccl libraries"),
    Ask(
        "nccl.conf",
        lambda _: 'cat /etc/nccl.conf "$HOME/.nccl.conf" 2>/dev/null; :',
        command="cat /etc/nccl.conf ~/.nccl.conf",
    ),
)
