"""The compile gate: every shipped form compiled for a GPU that need not be there, and judged."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sparkserve_kernels.cubin import CubinFacts, read_cubin
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

MAX_REGISTERS = 255
SHARED_LIMIT_BYTES = {9: 232_448, 12: 101_376}
"""Shared memory a block may ask for, by major capability (CUDA C programming guide, compute
capabilities 9.0 and 12.x). Triton and ptxas do not check it: too much fails on the device only."""


@dataclass(frozen=True)
class Compiled:
    """One shipped form and what came of it."""

    op: str
    form: Shipped
    shared_bytes: int
    facts: CubinFacts

    def faults(self, target: Target) -> tuple[str, ...]:
        """Everything that must not be, in words; empty where the form may ship."""
        facts = self.facts
        limit_bytes = SHARED_LIMIT_BYTES[target.capability[0]]
        found = [
            (facts.spill_instructions > 0, f"{facts.spill_instructions} spill instructions"),
            (facts.stack_bytes > 0, f"{facts.stack_bytes} bytes of stack"),
            (
                facts.registers > MAX_REGISTERS,
                f"{facts.registers} registers, expected at most {MAX_REGISTERS}",
            ),
            (
                self.shared_bytes > limit_bytes,
                f"{self.shared_bytes} bytes of shared memory, expected at most {limit_bytes}",
            ),
            (
                target.family == "spark" and self.form.multiplies and facts.block_scaled_mmas == 0,
                "no block-scaled matrix instruction",
            ),
            (
                self.form.streams and facts.async_loads_16_bytes == 0,
                "no 16-byte asynchronous load",
            ),
            (self.form.prefetches and facts.bulk_prefetches == 0, "no bulk prefetch"),
        ]
        return tuple(text for wrong, text in found if wrong)


def parse_arch(text: str) -> Target:
    """A target from a compiler's name such as ``sm_121a``.

    Raises:
        ValueError: not of that form, or an architecture these kernels have no path for.
    """
    found = re.fullmatch(r"sm_(\d+)(\d)[af]?", text)
    if found is None:
        raise ValueError(f"arch {text!r}, expected a name such as sm_121a or sm_90a")
    target = Target((int(found[1]), int(found[2])))
    if target.capability[0] not in SHARED_LIMIT_BYTES:
        raise ValueError(f"arch {text!r}, expected sm_90 or sm_12x")
    return target


def compile_form(op: str, form: Shipped, target: Target) -> Compiled:
    """Compile one form without a GPU.

    Raises:
        triton.CompilationError: Triton refuses it; RuntimeError: ptxas does.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = form.kernel.arg_names
    check_names(op, form, names)
    aligned = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name, kind in form.signature.items()
        if kind.startswith("*") or name in form.aligned
    }
    source = ASTSource(
        fn=form.kernel,
        signature={**form.signature, **dict.fromkeys(form.constants, "constexpr")},
        constexprs={(names.index(name),): value for name, value in form.constants.items()},
        attrs=aligned,
    )
    major, minor = target.capability
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", 10 * major + minor, 32),
        options={"num_warps": form.warps, "num_stages": form.stages, **form.options},
    )
    return Compiled(op, form, int(compiled.metadata.shared), read_cubin(compiled.asm["cubin"]))


def check_names(op: str, form: Shipped, names: Iterable[str]) -> None:
    """Refuse a form whose arguments are not exactly the kernel's.

    Raises:
        ValueError: naming the arguments that are missing or unknown.
    """
    have = {*form.signature, *form.constants}
    missing, unknown = sorted({*names} - have), sorted(have - {*names})
    if missing or unknown:
        raise ValueError(
            f"{op} [{form.label}]: arguments missing {missing}, unknown {unknown}; expected "
            f"exactly those of the kernel"
        )
