"""What must be equal on every rank, as one digest per item.

An item that a node could not tell is unknown, which is never equal to anything.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

from sparkserve.facts.probe import Context, UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.model.reading import Reading

PARITY = "rank parity"
"""``what`` of the reading that lists a node's items."""
UNKNOWN = "?"


class ParityItems(Fact):
    """Items of one node."""

    items: dict[str, str]
    """Item -> digest or version; absent where the node has no such thing."""
    unknown: tuple[str, ...] = ()
    """Items that are there but could not be read."""


# Distributions whose version changes what a rank computes.
_PACKAGES = (
    "sglang", "vllm", "sparkserve", "sparkserve-kernels", "sparkserve-native", "torch", "triton",
    "flashinfer-python", "transformers", "nvidia-nccl-cu13", "nvidia-nccl-cu12", "xgrammar",
)  # fmt: skip
_PYTHON = """\
import hashlib, importlib.metadata as m, importlib.util as u, pathlib
for name in NAMES:
    try:
        print("package." + name + "=" + m.version(name))
    except m.PackageNotFoundError:
        pass
for name in ("sparkserve", "sparkserve_kernels", "sparkserve_native"):
    spec = u.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        continue
    whole = hashlib.sha256()
    for folder in spec.submodule_search_locations:
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if path.suffix in (".py", ".toml", ".so", ".cu", ".h", ".cpp") and path.is_file():
                whole.update(str(path.relative_to(folder)).encode() + b"\\0" + path.read_bytes())
    print("code." + name + "=" + whole.hexdigest())
spec = u.find_spec("nvidia")
for folder in (spec.submodule_search_locations or []) if spec else []:
    for path in sorted(pathlib.Path(folder).glob("nccl/lib/libnccl.so*")):
        print("nccl=" + str(path))
"""
_SUMS = """\
sum() { [ -r "$1" ] && sha256sum <"$1" | cut -c1-64 || echo '?'; }
file() { [ -e "$2" ] && echo "$1=$(sum "$2")"; }
"""
_MODEL = """\
m={model}
case "$m" in "~/"*) m="$HOME/${{m#"~/"}}" ;; /*) ;; *) m="$ROOT/$m" ;; esac
file checkpoint.config "$m/config.json"
file checkpoint.index "$m/model.safetensors.index.json"
file table.sps "$m/dspark_sps.json"
file table.sts "$m/dspark_sts.json"
"""
# Of a shard's manifest only what all ranks share: rank, ranges and checksums differ by design.
_ENGRAM = """\
e={engram}
case "$e" in "~/"*) e="$HOME/${{e#"~/"}}" ;; /*) ;; *) e="$ROOT/$e" ;; esac
for f in "$e"/manifest-r*.json; do
  [ -r "$f" ] || continue
  t=$(head -c 1048576 -- "$f" | tr -d '\\n\\r')
  for k in tp layout revision checkpoint_config_sha256 checkpoint_index_sha256 method; do
    v=$(printf '%s' "$t" | grep -o "\\"$k\\" *: *[^,}}]*" | head -n 1 | sed 's/.*: *//; s/"//g')
    [ -n "$v" ] && echo "engram.$k=$v"
  done
  break
done
"""


def _python_script(python: str) -> str:
    code = _PYTHON.replace("NAMES", repr(_PACKAGES))
    return f"""\
p={shlex.quote(python)}
case "$p" in "~/"*) p="$HOME/${{p#"~/"}}" ;; /*) ;; */*) p="$ROOT/$p" ;; esac
command -v "$p" >/dev/null 2>&1 || [ -x "$p" ] && "$p" -I -c {shlex.quote(code)} 2>/dev/null |
while IFS='=' read -r key value; do
  if [ "$key" = nccl ]; then file nccl.library "$value"; else echo "$key=$value"; fi
done
"""


def _script(context: Context) -> str:
    parts = [_SUMS]
    if context.python is not None:
        parts.append(_python_script(context.python))
    if context.model_path is not None:
        parts.append(_MODEL.format(model=shlex.quote(context.model_path)))
    if context.engram_dir is not None:
        parts.append(_ENGRAM.format(engram=shlex.quote(context.engram_dir)))
    return "\n".join([*parts, "file table.sps \"$ROOT/dspark_sps.json\"",
                      "file table.sts \"$ROOT/dspark_sts.json\"", "echo parity.end=1"])  # fmt: skip


_LINE = re.compile(r"([\w.-]+(?: [\w.-]+)*)\s*[=:]\s*(\S.*)")


def _read(reading: Reading) -> Iterator[ParityItems]:
    text = reading.text.strip()
    items: dict[str, str] = {}
    if text.startswith("{"):
        data = json.loads(text)
        items = {str(k): UNKNOWN if v is None else str(v) for k, v in data.items()}
    else:
        for line in text.splitlines():
            if match := _LINE.fullmatch(line.strip()):
                items.setdefault(match[1], match[2].strip())
    if not items:
        raise UnusableOutput("no line of the form item=digest")
    items.pop("parity.end", None)
    words = (UNKNOWN, "", "unknown", "[N/A]", "n/a", "none")
    unknown = tuple(name for name, value in items.items() if value.lower() in words)
    known = {name: value for name, value in items.items() if name not in unknown}
    yield ParityItems(items=known, unknown=unknown)


READERS: tuple[Reader, ...] = (
    Reader(
        "parity.items", (ParityItems,), _read,
        whats=(r"(?:rank )?parity(?: (?:items|digest|digests))?", r"digests? of rank \d+"),
    ),
)  # fmt: skip
ASKS: tuple[Ask, ...] = (Ask("parity.items", _script, what=PARITY),)
