"""``python -m sparkserve_kernels.compile``: prove without a GPU what the kernels compile to."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from sparkserve_kernels import registry
from sparkserve_kernels.files import write_whole
from sparkserve_kernels.gate import MAX_REGISTERS, SHARED_LIMIT_BYTES, compile_form, parse_arch
from sparkserve_kernels.shipped import Shipped, shipped_by
from sparkserve_kernels.target import Target

Row = dict[str, Any]

COLUMNS = {
    "warps": "warps",
    "stages": "stages",
    "registers": "registers",
    "shared B": "shared_bytes",
    "spills": "spills",
    "scaled": "block_scaled_mmas",
    "other": "other_mmas",
    "async": "async_loads_16_bytes",
    "prefetch": "bulk_prefetches",
}
"""Columns of the page behind op and form, and the fact in each: the same on every machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print one line per form (or JSON), and end with 1 if any form may not ship."""
    parser = argparse.ArgumentParser(
        prog="python -m sparkserve_kernels.compile",
        description="Compile every shipped kernel for a GPU that need not be there, and check "
        "registers, spills, shared memory and the instructions that make it fast.",
        epilog="Example: python -m sparkserve_kernels.compile --arch sm_121a --op mxfp8_linear",
    )
    parser.add_argument("--arch", default="sm_121a", help="sm_121a (GB10, default) or sm_90a")
    parser.add_argument(
        "--op", action="append", metavar="OP", choices=registry.names(), help="only this op"
    )
    parser.add_argument("--jobs", type=int, default=2, help="compiler processes (default 2)")
    parser.add_argument("--json", action="store_true", help="print JSON Lines")
    parser.add_argument("--table", type=Path, help="write the facts as a Markdown page")
    chosen = parser.parse_args(arguments)
    try:
        target = parse_arch(chosen.arch)
    except ValueError as bad:
        parser.error(f"{bad}\nhint: --arch sm_121a is a DGX Spark")
    if chosen.jobs < 1:
        parser.error(f"--jobs {chosen.jobs}, expected at least 1")
    if chosen.table is not None and chosen.op and chosen.table.exists():
        parser.error(f"--table {chosen.table}: exists, and would hold {chosen.op} alone")
    if chosen.table is not None and not chosen.table.parent.is_dir():
        parser.error(f"--table {chosen.table}: no folder {chosen.table.parent}")
    rows = compile_all(chosen.op or registry.names(), target, jobs=chosen.jobs)
    for row in rows:
        sys.stdout.write((json.dumps(row) if chosen.json else _line(row)) + "\n")
    if chosen.table is not None:
        write_whole(chosen.table, markdown(rows, chosen.arch))
    faulty = sum(bool(row["faults"]) for row in rows)
    forms = "1 form" if len(rows) == 1 else f"{len(rows)} forms"
    sys.stderr.write(f"{forms} for {chosen.arch}, {faulty} may not ship\n")
    if chosen.op and not rows:
        sys.stderr.write(f"{', '.join(chosen.op)}: no kernel of its own\n")
    # An op may have no kernel of its own; all ops together without one means that none was found.
    nothing_found = not rows and chosen.op is None
    return 1 if faulty or nothing_found else 0


def compile_all(ops: Sequence[str], target: Target, *, jobs: int) -> list[Row]:
    """Facts of every shipped form of some operations, in the order of their tables."""
    work = [(op, index, target) for op in ops for index in range(len(shipped_by(op, target)))]
    if jobs <= 1:
        return [_compile_one(item) for item in work]
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        running = [pool.submit(_compile_one, item) for item in work]
        return [_result(item, future) for item, future in zip(work, running, strict=True)]


def _result(item: tuple[str, int, Target], future: Future[Row]) -> Row:
    """A form's row, also where the compiler took its whole process down."""
    try:
        return future.result()
    except BrokenProcessPool:
        op, index, target = item
        fault = "not compiled: a compiler's process died, at this form or at one beside it"
        return {**_named(op, shipped_by(op, target)[index]), "faults": [fault]}


def _named(op: str, form: Shipped) -> Row:
    return {"op": op, "form": form.label, "warps": form.warps, "stages": form.stages}


def _compile_one(item: tuple[str, int, Target]) -> Row:
    op, index, target = item
    form = shipped_by(op, target)[index]
    started = time.perf_counter()
    row = _named(op, form)
    try:
        done = compile_form(op, form, target)
    except Exception as failure:  # noqa: BLE001 - whatever the compiler raises is this form's fault
        return {**row, "faults": [f"does not compile: {type(failure).__name__}: {failure}"[:400]]}
    facts = done.facts
    return {
        **row,
        "registers": facts.registers,
        "spills": facts.spill_instructions,
        "stack_bytes": facts.stack_bytes,
        "shared_bytes": done.shared_bytes,
        "block_scaled_mmas": facts.block_scaled_mmas,
        "other_mmas": facts.other_mmas,
        "async_loads_16_bytes": facts.async_loads_16_bytes,
        "bulk_prefetches": facts.bulk_prefetches,
        "instructions": facts.instructions,
        "seconds": round(time.perf_counter() - started, 2),
        "faults": list(done.faults(target)),
    }


def _line(row: Row) -> str:
    name = f"{row['op']:16} {row['form']:48} {row['warps']}w {row['stages']}s"
    if "registers" not in row:
        return f"FAIL {name}  {'; '.join(row['faults'])}"
    facts = (
        f"{row['registers']:3} regs {row['spills']} spills {row['shared_bytes']:6} B shared "
        f"{row['block_scaled_mmas']:3} block-scaled {row['other_mmas']:3} other mma "
        f"{row['async_loads_16_bytes']:3} ldgsts.128 {row['bulk_prefetches']:2} ublkpf"
    )
    verdict = f"FAIL {'; '.join(row['faults'])}" if row["faults"] else "ok"
    return f"{name}  {facts}  {verdict}"


def markdown(rows: Sequence[Row], arch: str) -> str:
    """The facts as a page; ops in order, one line per form."""
    target = parse_arch(arch)
    import triton

    lines = [
        f"# What the kernels compile to for {arch}",
        "",
        f"Generated by `python -m sparkserve_kernels.compile --arch {arch}` with Triton "
        f"{triton.__version__}; no GPU takes part. Limits: {MAX_REGISTERS} registers, "
        f"{SHARED_LIMIT_BYTES[target.capability[0]]:,} bytes of shared memory, no spill, no stack. "
        "*Scaled* counts block-scaled matrix instructions (QMMA.SF), *other* all other matrix "
        "instructions, *async* 16-byte asynchronous loads, *prefetch* bulk prefetches to the L2. "
        "How fast they run is not said here: "
        "nobody has measured these kernels on a Spark yet.",
        "",
        "| op | form | " + " | ".join(COLUMNS) + " |",
        "|---|---|" + "---:|" * len(COLUMNS),
    ]
    for row in rows:
        form = row["form"].replace("|", r"\|")
        facts = " | ".join(str(row.get(key, "-")) for key in COLUMNS.values())
        lines.append(f"| {row['op']} | {form} | {facts} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
