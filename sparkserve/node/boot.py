"""The last thing that runs before the engine: check what was promised, then become the engine.

Nothing here starts a second process, so the guard's child *is* the engine and its exit status
is the engine's.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from sparkserve.errors import ConfigError, ExitCode
from sparkserve.model.engine_spec import SPEC_VARIABLE, EngineSpec

_PASSED_THROUGH = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")
"""Variables of the node's own environment that the engine may see; nothing else leaks in."""

_PR_SET_PDEATHSIG = 1
_DISTRIBUTIONS = {"sglang": "sglang", "vllm": "vllm"}


def load_spec(path: Path) -> EngineSpec:
    """Read an engine.json.

    Raises:
        ConfigError: missing, not JSON, or not a spec of this version.
    """
    try:
        return EngineSpec.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(f"no engine spec at {path}", hint="sparkserve launch") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not an engine spec of this version: {error}") from error


def broken_expectations(spec: EngineSpec) -> list[str]:
    """What differs from what the control plane was told, one sentence each; empty = all well."""
    broken = []
    expected = spec.expect.engine_version
    if expected is not None:
        try:
            observed = importlib.metadata.version(_DISTRIBUTIONS["sglang"])
        except importlib.metadata.PackageNotFoundError:
            observed = "not installed"
        if observed != expected:
            broken.append(f"sglang is {observed} in {sys.executable}, expected {expected}")
    directory = Path(spec.expect.checkpoint or "/")
    for name, size_bytes in spec.expect.checkpoint_files.items():
        path = directory / name
        found = path.stat().st_size if path.exists() else None
        if found != size_bytes:
            state = "is missing" if found is None else f"has {found} bytes"
            broken.append(f"{path} {state}, expected {size_bytes} bytes")
    return broken


def engine_environment(spec: EngineSpec, spec_path: Path) -> dict[str, str]:
    """The engine's whole environment: the few passed-through names, the spec's, and its path."""
    kept = {name: os.environ[name] for name in _PASSED_THROUGH if name in os.environ}
    return kept | spec.env | {SPEC_VARIABLE: str(spec_path)}


def die_with_parent() -> None:
    """Have the kernel kill this process when its guard dies; survives execve."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def refuse(reason: str) -> NoReturn:
    """End with one line that the watcher knows, and exit code 78."""
    sys.stderr.write(f"sparkserve: FATAL boot {reason}\n")
    sys.stderr.flush()
    raise SystemExit(ExitCode.REFUSED)


def run(spec_path: Path) -> NoReturn:
    """Check the expectations of the spec and become the engine; never returns.

    Raises:
        SystemExit: 78, after a line on stderr that says what was expected and what was found.
    """
    spec = load_spec(spec_path)
    broken = broken_expectations(spec)
    if broken:
        refuse("; ".join(broken))
    program = Path(spec.argv[0])
    if not os.access(program, os.X_OK):
        refuse(f"{program} is not an executable file")
    if spec.working_dir is not None:
        os.chdir(spec.working_dir)
    os.execve(program, list(spec.argv), engine_environment(spec, spec_path))
