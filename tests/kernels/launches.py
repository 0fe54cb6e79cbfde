"""What an API launches, held against what its op says it ships and the compile gate has proved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sparkserve_kernels.shipped import Shipped, shipped_by
from sparkserve_kernels.target import SPARK

DEFAULT_STAGES = 3
"""Triton's, where a launch names none."""
LAUNCH_OPTIONS = {"num_warps", "num_stages"}


def launches_of(
    kernel: Any, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """Arguments and options of every launch of a kernel during a call; nothing runs."""
    seen: list[dict[str, Any]] = []

    def run(*arguments: Any, grid: Any, warmup: bool = False, **named: Any) -> None:
        seen.append({**dict(zip(kernel.arg_names, arguments, strict=False)), **named})

    with monkeypatch.context() as patched:
        patched.setattr(kernel, "run", run, raising=False)
        call()
    return seen


def assert_ships(op: str, kernel: Any, launch: dict[str, Any]) -> Shipped:
    """The one shipped form on the Spark that a launch there is; it fails where there is none."""
    forms = [form for form in shipped_by(op, SPARK) if form.kernel is kernel]
    fitting = [form for form in forms if not _differences(form, launch)]
    closest = min((_differences(form, launch) for form in forms), key=len, default=["no form"])
    assert fitting, f"{op} ships no such form; the closest differs in {closest}"
    return fitting[0]


def _differences(form: Shipped, launch: dict[str, Any]) -> list[str]:
    """Where a launch departs from a form; the interpreter's own constant does not count."""
    wanted = {
        **{name: value for name, value in form.constants.items() if name != "INTERPRETED"},
        "num_warps": form.warps,
        "num_stages": form.stages,
        **form.options,
    }
    have = {"num_stages": DEFAULT_STAGES, **launch}
    return [
        f"{name}: launched {have.get(name)}, shipped {value}"
        for name, value in wanted.items()
        if have.get(name) != value
    ] + [
        f"{name}: launched only"
        for name in have.keys() - wanted.keys() - form.signature.keys() - {"INTERPRETED"}
    ]
