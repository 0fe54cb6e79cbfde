"""Packed Engram rows and what they are packed from, as plain shell sees them on a bare node.

Headers travel as hex and manifests as JSON: what they mean is judged elsewhere.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from pydantic import Field

from sparkserve.facts.probe import Context, Probe, UnusableOutput
from sparkserve.model.base import Model

_SHARDS = """\
printf 'path %s\\n' "$e"
[ -d "$e" ] || exit 0
echo folder
n=0
for f in "$e"/engram-l*.bin*; do
  [ -f "$f" ] && [ $n -lt 64 ] || continue
  n=$((n+1))
  printf 'file %s %s\\n' "$(stat -Lc '%s %b %B' -- "$f")" "${f##*/}"
  case $f in *.bin) printf 'header '; head -c 4096 -- "$f" 2>/dev/null | od -An -v -tx1 |
    tr -d ' \\n'; echo ;; esac
done
for f in "$e"/manifest-r*.json; do
  [ -f "$f" ] || continue
  printf 'manifest %s ' "${f##*/}"
  head -c 1048576 -- "$f" 2>/dev/null | tr -d '\\n\\r'; echo
done
"""
# The index of a large checkpoint has megabytes; only its tables matter here.
_SOURCE = """\
printf 'path %s\\n' "$m"
[ -d "$m" ] || exit 0
echo folder
sum() { sha256sum <"$1" 2>/dev/null | cut -c1-64; }
if [ -f "$m/config.json" ]; then
  printf 'config_sha256 %s\\n' "$(sum "$m/config.json")"
  printf 'config '; head -c 1048576 -- "$m/config.json" | tr -d '\\n\\r'; echo
fi
i="$m/model.safetensors.index.json"
if [ ! -f "$i" ]; then
  f="$m/model.safetensors"
  [ -f "$f" ] && printf 'table %s - model.safetensors\n' "$(stat -Lc %s -- "$f")"
  exit 0
fi
printf 'index_sha256 %s\\n' "$(sum "$i")"
tr -d '\\n\\r' <"$i" | grep -o '"[^"]*engram[^"]*embed\\.weight" *: *"[^"]*"' |
sed 's/^"\\([^"]*\\)" *: *"\\([^"]*\\)"$/\\1 \\2/' | while read -r tensor file; do
  size=none; [ -f "$m/$file" ] && size=$(stat -Lc %s -- "$m/$file")
  printf 'table %s %s %s\\n' "$size" "$tensor" "$file"
done
"""
_FILE = re.compile(r"file (\d+) (\d+) (\d+) (engram-l[\w.-]+)")
_HEX = re.compile(r"(?:[0-9a-f]{2})*")
_TABLE = re.compile(r"table (\d+|none) (\S+) (\S+)")


class ShardFile(Model):
    """One shard, or the unfinished part of one."""

    name: str
    size_bytes: int
    allocated_bytes: int
    """What the file system gave to it; less than the size where the file has holes."""
    header: str = ""
    """The first 4096 bytes as hex; empty for parts and for files that cannot be read."""


class ShardFacts(Model):
    """What lies in the Engram directory."""

    path: str
    there: bool
    """Whether the directory exists."""
    files: tuple[ShardFile, ...] = ()
    manifests: dict[str, dict[str, Any] | None] = Field(default_factory=dict)
    """File name -> the manifest as it is written; None where it is not a JSON object."""


class TableFile(Model):
    """One Engram table of a checkpoint and the file that its index names for it."""

    tensor: str
    """``-`` where a single file without an index holds everything."""
    file: str
    size_bytes: int | None
    """None: the file is not there."""


class SourceFacts(Model):
    """Whether a checkpoint directory holds what Engram shards are packed from."""

    path: str
    there: bool
    config: dict[str, Any] | None = None
    config_sha256: str | None = None
    index_sha256: str | None = None
    tables: tuple[TableFile, ...] = ()
    """Empty where the checkpoint has no Engram tables."""

    @property
    def is_whole(self) -> bool:
        """Whether a configuration that names Engram tables and every table's file are there."""
        sizes = [table.size_bytes for table in self.tables]
        return self._names_tables and bool(sizes) and None not in sizes

    @property
    def _names_tables(self) -> bool:
        config = self.config or {}
        inner = config.get("text_config")
        parts = [config, inner if isinstance(inner, dict) else {}]
        return any(part.get("engram_layer_ids") for part in parts)


def _script_shards(context: Context) -> str:
    return f"""\
e={shlex.quote(context.engram_dir or "")}
[ -n "$e" ] || {{ echo "no Engram directory is named"; exit 3; }}
case "$e" in /*) ;; *) e="$ROOT/engram/$e" ;; esac
{_SHARDS}"""


def _parse_shards(text: str) -> ShardFacts:
    files: list[ShardFile] = []
    manifests: dict[str, dict[str, Any] | None] = {}
    for line in text.splitlines():
        if found := _FILE.fullmatch(line):
            size, blocks, block_bytes = (int(found[i]) for i in (1, 2, 3))
            allocated = blocks * block_bytes
            files.append(ShardFile(name=found[4], size_bytes=size, allocated_bytes=allocated))
        elif line.startswith("header ") and files and _HEX.fullmatch(line[7:]):
            files[-1] = files[-1].model_copy(update={"header": line[7:]})
        elif line.startswith("manifest "):
            _, name, *rest = line.split(" ", 2)
            manifests[name] = _object("".join(rest))
    path, there = _place(text)
    return ShardFacts(path=path, there=there, files=tuple(files), manifests=manifests)


def _script_source(context: Context) -> str:
    return f"""\
m={shlex.quote(context.model_path or "")}
[ -n "$m" ] || {{ echo "no checkpoint directory is named"; exit 3; }}
case "$m" in /*) ;; *) m="$ROOT/checkpoints/$m" ;; esac
{_SOURCE}"""


def _parse_source(text: str) -> SourceFacts:
    fields = dict.fromkeys(("config", "config_sha256", "index_sha256"), "")
    tables = []
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key in fields:
            fields[key] = value
        elif found := _TABLE.fullmatch(line):
            size = None if found[1] == "none" else int(found[1])
            tables.append(TableFile(tensor=found[2], file=found[3], size_bytes=size))
    path, there = _place(text)
    return SourceFacts(
        path=path,
        there=there,
        config=_object(fields["config"]),
        config_sha256=fields["config_sha256"] or None,
        index_sha256=fields["index_sha256"] or None,
        tables=tuple(tables),
    )


def _place(text: str) -> tuple[str, bool]:
    head, _, rest = text.lstrip("\n").partition("\n")
    if not head.startswith("path "):
        raise UnusableOutput("no path line in the answer")
    return head[5:], rest.startswith("folder")


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


SHARDS = Probe("engram.shards", ShardFacts, _script_shards, _parse_shards)
SOURCE = Probe("engram.source", SourceFacts, _script_source, _parse_source)
