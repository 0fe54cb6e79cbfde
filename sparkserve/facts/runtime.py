"""The Python runtime that would run the engine, and the run that holds the node."""

from __future__ import annotations

import json
import shlex

from sparkserve.facts.probe import Context, Probe, UnusableOutput
from sparkserve.model.base import Model

_ASK_PYTHON = """\
import importlib.metadata as m, importlib.util as u, json, os, platform, sys
# A folder named sparkserve where the user stands is not the one installed.
sys.path[:1] = [p for p in sys.path[:1] if p]
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
spec = u.find_spec("sparkserve")
# An editable install keeps the version it was installed with; the code says its own.
ours = __import__("sparkserve").__version__ if spec and spec.origin else None
print(json.dumps({
    "python": sys.executable, "python_version": platform.python_version(),
    "sglang": version("sglang"), "torch": version("torch"), "sparkserve": ours,
    "package_dir": os.path.dirname(spec.origin) if spec and spec.origin else None}))
"""


class RuntimeFacts(Model):
    """What the runtime's interpreter can import."""

    python: str
    """Absolute path of the interpreter."""
    python_version: str
    sglang: str | None
    torch: str | None
    sparkserve: str | None
    package_dir: str | None
    """Folder of the sparkserve package; None where it is not installed."""


class HolderFacts(Model):
    """The run whose guard holds this node; None where nobody does."""

    run_id: str | None
    guard_pid: int | None
    run_dir: str | None = None
    """Folder of the run on the node."""
    python: str | None = None
    """Interpreter that its guard runs with."""


def _script_python(context: Context) -> str:
    python = context.python or "python3"
    return f"""\
p={shlex.quote(python)}
case "$p" in /*) ;; */*) p="$ROOT/$p" ;; esac
if ! command -v "$p" >/dev/null 2>&1; then echo "no interpreter at $p"; exit 3; fi
"$p" -c {shlex.quote(_ASK_PYTHON)}
"""


def _parse_python(text: str) -> RuntimeFacts:
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return RuntimeFacts.model_validate(json.loads(line))
    raise UnusableOutput("the interpreter printed no JSON line")


def _script_holder(_: Context) -> str:
    # A lock file outlives its guard, and the guard's pid may be another process by now: only the
    # process that began when the guard did holds the node. Trying the lock itself could make a
    # guard that starts at this moment believe that the node is taken.
    return """\
f="$ROOT/state/serving.lock"
[ -s "$f" ] || { echo '{}'; exit 0; }
number() { sed -n 's/.*"'"$1"'": *\\([0-9]*\\).*/\\1/p' "$f"; }
pid=$(number pid); begun=$(number start_ticks)
set -- $(sed 's/.*) //' "/proc/${pid:-none}/stat" 2>/dev/null)
if [ "${1:-Z}" != Z ] && [ "${20}" = "$begun" ]; then cat "$f"; else echo '{}'; fi
"""


def _parse_holder(text: str) -> HolderFacts:
    held = json.loads(text.strip() or "{}")
    if not isinstance(held, dict):
        raise UnusableOutput("the lock file holds no JSON object")
    return HolderFacts(
        run_id=held.get("run_id"),
        guard_pid=held.get("pid"),
        run_dir=held.get("run_dir"),
        python=held.get("python"),
    )


PYTHON = Probe("runtime.python", RuntimeFacts, _script_python, _parse_python)
HOLDER = Probe("runtime.holder", HolderFacts, _script_holder, _parse_holder)
