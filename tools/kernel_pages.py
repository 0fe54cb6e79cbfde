"""The reference page of the kernels, read from their source without importing torch."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from sparkserve_kernels import registry
from sparkserve_kernels.meta import OpMeta

_TYPE = re.compile(r"class |\w+ = ")


def kernels_page() -> str:
    """Every operation with its entry points as their ``api.py`` declares them."""
    names = registry.names()
    metas = [registry.load(name) for name in names]
    lines = [
        "# Kernels",
        "",
        f"The {len(names)} operations of the distribution `sparkserve-kernels`: functions on plain",
        "tensors, each with a reference in plain torch of the same signature beside it. How they",
        "are proven and what was measured: [kernels](../kernels.md). *Run on* names the GPUs on",
        "which the tests passed; no kernel was run on a Spark yet.",
        "",
        "| operation | what it does |",
        "|---|---|",
        *(f"| [`{meta.name}`](#{meta.name}) | {meta.summary} |" for meta in metas),
        "",
    ]
    for meta in metas:
        lines += _operation(meta)
    return "\n".join(lines)


def _operation(meta: OpMeta) -> list[str]:
    ran = ", ".join("sm_{}{}".format(*capability) for capability in meta.capabilities)
    lines = [f"## `{meta.name}`", "", f"{meta.summary[0].upper()}{meta.summary[1:]}.", ""]
    lines += [f"Run on: {ran or 'no GPU yet'}. Tests: `{meta.test}`.", ""]
    found = dict(_functions(meta.name))
    for entry in (*meta.entry_points, *_named(meta.entry_points, found)):
        declared, text = found[entry]
        prose = ["", *inspect.cleandoc(text).splitlines()] if text else []
        lines += ["```python", declared, *prose, "```", ""]
    return lines


def _named(entries: tuple[str, ...], found: dict[str, tuple[str, str]]) -> list[str]:
    """Types that the entry points' signatures name, and those which these name in turn.

    A caller makes the arguments of a call out of them.
    """
    text = " ".join(found[entry][0] for entry in entries)
    types = {name for name, (declared, _) in found.items() if _TYPE.match(declared)}
    named: set[str] = set()
    while new := (types & set(re.findall(r"\w+", text))) - named:
        named |= new
        text = " ".join(found[name][0] for name in new)
    return [name for name in found if name in named and name not in entries]


def _functions(name: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Public functions and classes that an operation's ``api`` declares or re-exports."""
    spec = importlib.util.find_spec(f"sparkserve_kernels.{name}")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"sparkserve_kernels.{name}")
    api = Path(spec.origin).parent / "api.py"
    yield from _declared(api)
    ours = "sparkserve_kernels"
    for node in ast.parse(api.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ours):
            source = importlib.util.find_spec(str(node.module))
            if source is None or source.origin is None:
                continue
            inner = dict(_declared(Path(source.origin)))
            for alias in node.names:
                if alias.name in inner:
                    yield alias.asname or alias.name, inner[alias.name]


def _declared(path: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            arguments = _wrapped(node.name, ast.unparse(node.args), returns)
            yield node.name, (arguments, ast.get_docstring(node) or "")
        elif isinstance(node, ast.ClassDef):
            yield node.name, (_class(node), ast.get_docstring(node) or "")
        elif isinstance(node, ast.Assign) and " | " in (declared := ast.unparse(node)):
            # One type or another, such as Keys = KeyRecords | KeyPages.
            yield ast.unparse(node.targets[0]), (declared, "")


def _class(node: ast.ClassDef) -> str:
    """A class with its fields; what a field's own docstring says becomes a comment."""
    lines = [f"class {node.name}:"]
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
            says = (ast.get_docstring(item) or "").partition("\n")[0]
            arguments = ", ".join(_parts(item.args))
            marks = [f"    @{ast.unparse(mark)}" for mark in item.decorator_list]
            lines += ["", *marks, f"    def {item.name}({arguments}): ...", f"    # {says}"]
        if not isinstance(item, ast.AnnAssign):
            continue
        lines.append(f"    {ast.unparse(item)}")
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            lines += [
                f"    # {line}" for line in inspect.cleandoc(str(after.value.value)).splitlines()
            ]
    return "\n".join(lines)


def _wrapped(name: str, arguments: str, returns: str) -> str:
    line = f"{name}({arguments}){returns}"
    if len(line) <= 88:
        return line
    call = ast.parse(f"def f({arguments}): ...").body[0]
    assert isinstance(call, ast.FunctionDef)
    parts = _parts(call.args)
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returns}"])


def _parts(arguments: ast.arguments) -> list[str]:
    def one(argument: ast.arg, default: ast.expr | None) -> str:
        text = ast.unparse(argument)
        return text if default is None else f"{text} = {ast.unparse(default)}"

    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    parts = [one(argument, default) for argument, default in zip(plain, defaults, strict=True)]
    if arguments.kwonlyargs:
        parts.append("*" if arguments.vararg is None else f"*{ast.unparse(arguments.vararg)}")
        pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        parts += [one(argument, default) for argument, default in pairs]
    return parts
