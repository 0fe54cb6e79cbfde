"""Files of the checkpoint, with the size each must have.

A safetensors file says in its header how long it must be, so a truncated copy is found
without reading the weights.
"""

from __future__ import annotations

import json
import shlex

from sparkserve.facts.probe import Context, Probe, UnusableOutput
from sparkserve.model.base import Model

_LIST_FILES = """\
import json, os, struct, sys
model = sys.argv[1]
def expected(path):
    try:
        with open(path, "rb") as f:
            (n,) = struct.unpack("<Q", f.read(8))
            if n > 512 << 20: return None
            names = json.loads(f.read(n))
        ends = [v["data_offsets"][1] for k, v in names.items() if k != "__metadata__"]
        return 8 + n + max(ends, default=0)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, struct.error):
        return None
def files(folder):
    if not folder or not os.path.isdir(folder): return None
    found = []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not os.path.isfile(path): continue
        entry = {"name": name, "size_bytes": os.path.getsize(path)}
        if name.endswith(".safetensors"):
            entry["declares_bytes"] = expected(path)
        found.append(entry)
    return found
def indexed(folder):
    path = os.path.join(folder, "model.safetensors.index.json")
    if not folder or not os.path.isfile(path): return []
    try: return sorted(set(json.load(open(path))["weight_map"].values()))
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return ["<the index is not readable JSON>"]
print(json.dumps({"path": model, "files": files(model), "indexed": indexed(model)}))
"""


class CheckpointFile(Model):
    """One file, its size, and for safetensors the size its header declares."""

    name: str
    size_bytes: int
    declares_bytes: int | None = None
    """None: not a safetensors file, or a header that cannot be read."""


class CheckpointFacts(Model):
    """What lies in the model's directory."""

    path: str
    files: tuple[CheckpointFile, ...] | None
    """None: there is no such directory."""
    indexed: tuple[str, ...]
    """Shards that ``model.safetensors.index.json`` names; empty without an index."""


def _script(context: Context) -> str:
    return f"""\
m={shlex.quote(context.model_path or "")}
case "$m" in ""|/*) ;; *) m="$ROOT/checkpoints/$m" ;; esac
p={shlex.quote(context.python or "python3")}
case "$p" in /*) ;; */*) p="$ROOT/$p" ;; esac
command -v "$p" >/dev/null 2>&1 || p=python3
command -v "$p" >/dev/null 2>&1 || {{ echo "no python3 on the node"; exit 3; }}
"$p" -c {shlex.quote(_LIST_FILES)} "$m"
"""


def _parse(text: str) -> CheckpointFacts:
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return CheckpointFacts.model_validate(json.loads(line))
    raise UnusableOutput("the lister printed no JSON line")


FILES = Probe("checkpoint.files", CheckpointFacts, _script, _parse)
