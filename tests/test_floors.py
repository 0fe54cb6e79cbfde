"""Imports go strictly down the floors; rooms on one floor do not know each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "sparkserve"

FLOORS: dict[str, int] = {
    "errors": 0, "units": 0, "paths": 0, "files": 0, "tomlfile": 0,
    "model": 1,
    "transport": 2, "endpoint": 2, "runs": 2, "adapters": 2,
    "profiles": 3, "clusters": 3, "interop": 3, "facts": 3, "checkpoint": 3, "engine": 3,
    "engram": 3, "evals": 3, "bench": 3, "sim": 3,
    "checks": 4, "planning": 4,
    "ops": 5, "report": 5,
    "cli": 6, "__main__": 7,
}  # fmt: skip
# Rooms of the node plane stand beside the floors: what each may use, besides floors 0 and 1.
NODE_PLANE: dict[str, set[str]] = {
    "node": {"adapters", "engram"},
    "adapters.install": {"engram"},
    "sim": {"engram", "adapters"},
}
# Stated exceptions, each with its reason.
ALLOWED: dict[tuple[str, str], str] = {
    ("endpoint", "transport"): "HTTP has one door, transport/http.py, and the client stands on it",
    ("checks", "planning"): "the memory plan is a judgement that a check and a command show",
    ("files", "errors"): "floor 0 speaks the error tree",
    ("tomlfile", "errors"): "floor 0 speaks the error tree",
}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, room) of every import of sparkserve in a file, lazy ones and annotations included."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module]
            if node.module == "sparkserve":
                names = [f"sparkserve.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "sparkserve" and len(parts) > 1 and parts[1] != "__version__":
                yield node.lineno, parts[1]  # type: ignore[attr-defined]


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def allowed(path: Path, target: str) -> bool:
    room = room_of(path)
    if target == room or (FLOORS[target] <= 1 and room not in FLOORS):
        return True
    on_node = room
    if room == "adapters" and path.name != "__init__.py":
        on_node = "adapters.install"
    if target in NODE_PLANE.get(on_node, set()) or (room, target) in ALLOWED:
        return True
    return room in FLOORS and FLOORS[target] < FLOORS[room]


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    wrong = [
        f"line {line}: {room_of(path)} must not know {target}"
        for line, target in imports(path)
        if not allowed(path, target)
    ]
    assert wrong == []


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(path) for path in FILES}
    assert rooms - set(FLOORS) - set(NODE_PLANE) == set()


def test_the_rule_itself_finds_an_upward_import() -> None:
    assert not allowed(ROOT / "model" / "profile.py", "ops")
    assert not allowed(ROOT / "facts" / "probe.py", "engine")
    assert allowed(ROOT / "ops" / "launch.py", "facts")


def test_files_and_functions_stay_readable() -> None:
    """Sizes of the style sheet; an exception needs a reason in this list."""
    excused: dict[str, str] = {}
    offenders = []
    for path in FILES:
        name = str(path.relative_to(ROOT))
        lines = len(path.read_text().splitlines())
        if lines > 400 and name not in excused:
            offenders.append(f"{name} has {lines} lines")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > 50 and f"{name}:{node.name}" not in excused:
                    offenders.append(f"{name}:{node.name} has {length} lines")
    assert offenders == []
