"""What an API launches, held against what the ops say they ship and the compile gate has proved.

Nothing runs here. Launches are taken down where Triton's interpreter would begin, and tensors may
be fake: a case of the benchmark at its real shape costs no memory and no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from sparkserve_kernels.shipped import Shipped, shipped_by
from sparkserve_kernels.target import SPARK
from torch.overrides import TorchFunctionMode
from triton.runtime.interpreter import InterpretedFunction

DEFAULT_STAGES = 3
"""Triton's, where a launch names none."""


class Launch(NamedTuple):
    """One launch of a kernel."""

    kernel: Any
    values: Mapping[str, Any]
    """Arguments, constants and options by name."""

    def departure(self) -> list[str]:
        """How it differs from the closest form that its op ships on the Spark; empty for none."""
        op = self.kernel.fn.__module__.split(".")[1]
        forms = [form for form in shipped_by(op, SPARK) if form.kernel is self.kernel]
        nothing = [f"{self.kernel.fn.__name__}: {op} does not ship it"]
        return min((differences(form, self.values) for form in forms), key=len, default=nothing)


def differences(form: Shipped, launch: Mapping[str, Any]) -> list[str]:
    """Where a launch departs from a form; the interpreter's own constant does not count."""
    wanted = {
        **{name: value for name, value in form.constants.items() if name != "INTERPRETED"},
        "num_warps": form.warps,
        "num_stages": form.stages,
        **form.options,
    }
    have = {"num_stages": DEFAULT_STAGES, **launch}
    unknown = have.keys() - wanted.keys() - form.signature.keys() - {"INTERPRETED"}
    return [
        f"{name}: launched {have.get(name)}, shipped {value}"
        for name, value in wanted.items()
        if have.get(name) != value
    ] + [f"{name}: launched only" for name in sorted(unknown)]


def launches_of(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Every launch during a call, none of which runs."""
    seen: list[Launch] = []

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool = False, **named: Any) -> None:
        seen.append(
            Launch(kernel, {**dict(zip(kernel.arg_names, arguments, strict=False)), **named})
        )

    with monkeypatch.context() as patched:
        patched.setattr(InterpretedFunction, "run", run)
        call()
    return seen


class _OnTheCpu(TorchFunctionMode):
    """What asks for a GPU or for its generator gets the CPU and no generator."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = {name: value for name, value in (kwargs or {}).items() if name != "generator"}
        if str(named.get("device")).startswith("cuda"):
            named["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return args[0]
        moved = ("cpu" if isinstance(one, str) and one == "cuda" else one for one in args)
        return function(*moved, **named)


@contextmanager
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors have a shape and no memory, and "cuda" is a device; torch.compile does nothing."""
    # Imported before the patches, which it would trip over.
    import torch._dynamo
    from torch._subclasses.fake_tensor import FakeTensorMode

    generator = torch.Generator
    with monkeypatch.context() as patched:
        patched.setattr(torch, "Generator", lambda device="cpu": generator())
        patched.setattr(torch, "compile", lambda function, **_: function)
        with FakeTensorMode(allow_non_fake_inputs=True), _OnTheCpu():
            yield
