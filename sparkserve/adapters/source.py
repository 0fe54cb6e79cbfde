"""Source digests: whether the engine's code at a target is the code an adapter was made for.

The same digest comes from the object in a running engine and from the files of an unpacked
wheel, so a release can be judged without installing it. Standard library only.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class TargetMissing(LookupError):
    """The dotted path leads to no class or function."""


def digest_of(source: str) -> str:
    """Sha256 (64 hex digits) of one definition's normalised source.

    source: text that begins with the definition or its decorators, at any indentation;
        whatever follows the definition's last statement is left out.

    Notes: indentation of the whole, white space at line ends and trailing comments do not count;
    everything else does, comments inside included.
    """
    first = source.lstrip("\n").split("\n", 1)[0]
    indent = first[: len(first) - len(first.lstrip())]
    lines = [line.removeprefix(indent).rstrip() for line in source.lstrip("\n").split("\n")]
    node = ast.parse("\n".join(lines)).body[0]
    if not isinstance(node, _Definition):
        raise TargetMissing(f"not a class or function: {first.strip()}")
    text = "\n".join(lines[: node.end_lineno])
    return hashlib.sha256(text.encode()).hexdigest()


def live(path: str) -> Any:
    """The object at a dotted path in this process, unbound (a classmethod stays one).

    Raises:
        TargetMissing: no such module or attribute, or the module does not import.
    """
    parent_path, _, name = path.rpartition(".")
    try:
        parent = _resolve(parent_path)
    except (ImportError, AttributeError, ValueError) as error:
        raise TargetMissing(f"{path}: {error}") from error
    held = vars(parent).get(name, _ABSENT) if isinstance(parent, type) else _ABSENT
    found = getattr(parent, name, _ABSENT) if held is _ABSENT else held
    if found is _ABSENT:
        raise TargetMissing(f"{path}: {parent_path} has no {name}")
    return found


def live_digest(path: str) -> str:
    """Source digest of what stands at a dotted path in this process.

    Raises:
        TargetMissing: nothing there, or it has no Python source.
    """
    found = live(path)
    if isinstance(found, property):
        found = found.fget
    try:
        return digest_of(inspect.getsource(getattr(found, "__func__", found)))
    except (TypeError, OSError) as error:
        raise TargetMissing(f"{path}: no source: {error}") from error


def tree_digest(root: Path, path: str) -> str:
    """Source digest of a dotted path in unpacked sources, without importing anything.

    root: folder that holds the top package (site-packages, or an unpacked wheel).

    Raises:
        TargetMissing: no such module file or definition.
    """
    file, names = _module_file(root, path)
    text = file.read_text(encoding="utf-8")
    node: ast.Module | _Definition = ast.parse(text)
    for name in names:
        found = [each for each in _definitions(node.body) if each.name == name]
        if not found:
            raise TargetMissing(f"{path}: {file} defines no {name}")
        if len(found) > 1:
            raise TargetMissing(f"{path}: {file} defines {name} {len(found)} times")
        node = found[0]
    if isinstance(node, ast.Module):
        raise TargetMissing(f"{path}: a module, not a class or function")
    start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return digest_of("\n".join(text.split("\n")[start - 1 : node.end_lineno]))


def _resolve(path: str) -> Any:
    """The module or class at a dotted path; unlike pkgutil's, a failing import shows itself."""
    first, *rest = path.split(".")
    found: Any = importlib.import_module(first)
    module: str | None = first
    for name in rest:
        if module is not None:
            submodule = f"{module}.{name}"
            try:
                found = importlib.import_module(submodule)
            except ModuleNotFoundError as error:
                if error.name != submodule:
                    raise
                module = None
            else:
                module = submodule
                continue
        found = getattr(found, name)
    return found


def _module_file(root: Path, path: str) -> tuple[Path, list[str]]:
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        base = root.joinpath(*parts[:count])
        for file in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
            if file.is_file():
                return file, parts[count:]
    raise TargetMissing(f"{path}: no module of it below {root}")


def _definitions(body: Iterable[ast.stmt]) -> Iterable[_Definition]:
    for node in body:
        if isinstance(node, _Definition):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            yield from _definitions(node.body)
            yield from _definitions(node.orelse)


_ABSENT = object()
