"""Kernels that must not ship, each for one reason; run as a script it prints what the gate says.

Tests import it nowhere: their process has Triton's interpreter on, which compiles nothing.
"""

from __future__ import annotations

import json
import sys

import triton
import triton.language as tl
from sparkserve_kernels import compile as compiler
from sparkserve_kernels.gate import compile_form, parse_arch
from sparkserve_kernels.shipped import Shipped


@triton.jit
def copy(source, target, count, BLOCK: tl.constexpr):
    """Nothing wrong with it."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count), mask=at < count)


@triton.jit
def hoard(source, target, BLOCK: tl.constexpr):
    """Keeps 512 values per thread until the sum of all is known."""
    at = tl.arange(0, BLOCK)
    values = tl.load(source + at)
    tl.store(target + at, values * tl.sum(values, axis=0))


@triton.jit
def multiply(a, b, c, steps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """A bf16 product: its shared memory grows with the stages, and it has no block scales."""
    row, column, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for step in range(steps):
        left = tl.load(a + row[:, None] * 4096 + step * K + inner[None, :])
        right = tl.load(b + column[None, :] * 4096 + step * K + inner[:, None])
        total = tl.dot(left, right, total)
    tl.store(c + row[:, None] * N + column[None, :], total)


@triton.jit
def misuse(source, target, BLOCK: tl.constexpr):
    """Adds tiles that do not fit each other."""
    tl.store(target + tl.arange(0, BLOCK), tl.load(source + tl.arange(0, 2 * BLOCK)))


COPY = {"source": "*fp32", "target": "*fp32", "count": "i32"}
TWO = {"source": "*fp32", "target": "*fp32"}
PRODUCT = {"a": "*bf16", "b": "*bf16", "c": "*fp32", "steps": "i32"}
TILE = {"M": 64, "N": 64, "K": 64}

FORMS = {
    "good": Shipped("good", copy, COPY, {"BLOCK": 1024}, 4, 3),
    "spills": Shipped("spills", hoard, TWO, {"BLOCK": 16384}, 1, 3),
    "shared": Shipped("shared", multiply, PRODUCT, {**TILE, "M": 128, "N": 256}, 8, 4),
    "streams": Shipped("streams", copy, COPY, {"BLOCK": 1024}, 4, 3, streams=True),
    "async": Shipped("async", multiply, PRODUCT, TILE, 4, 3, streams=True),
    "multiplies": Shipped("multiplies", multiply, PRODUCT, TILE, 4, 2, multiplies=True),
    "prefetches": Shipped("prefetches", copy, COPY, {"BLOCK": 1024}, 4, 3, prefetches=True),
    "names": Shipped("names", copy, {**COPY, "cuont": "i32"}, {"BLOCK": 1024}, 4, 3),
    "missing": Shipped("missing", copy, COPY, {}, 4, 3),
    "misuse": Shipped("misuse", misuse, TWO, {"BLOCK": 64}, 4, 3),
}


def main() -> None:
    """Print facts and faults of every form as JSON, as the gate and as the command find them."""
    target = parse_arch(sys.argv[1])
    found = {}
    for name in ("good", "spills", "shared", "streams", "async", "multiplies", "prefetches"):
        done = compile_form("bad", FORMS[name], target)
        found[name] = {
            "faults": done.faults(target),
            "shared_bytes": done.shared_bytes,
            **vars(done.facts),
        }
    named = ("good", "names", "missing", "misuse")
    compiler.shipped_by = lambda _op, _target: tuple(FORMS[name] for name in named)
    rows = compiler.compile_all(["bad"], target, jobs=1)
    json.dump({"forms": found, "rows": rows}, sys.stdout)


if __name__ == "__main__":
    main()
