"""``python -m sparkserve_kernels.bench``: how fast the kernels are, never on a red gate."""

from __future__ import annotations

import argparse
import gc
import json
import math
import secrets
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkserve_kernels import registry
from sparkserve_kernels.bench_case import BenchCase, cases_of
from sparkserve_kernels.files import write_whole

Record = dict[str, Any]
REGRESSION = 1.15
"""A case regresses when it takes more than this times its baseline (both as medians)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Gate and time every case; end with 1 on a red gate, an error or a regression."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    kept: Path | None = chosen.write_baseline
    if kept is not None and chosen.op:
        parser.error("--write-baseline with --op: a baseline holds every op\nhint: leave --op out")
    if kept is not None and not kept.parent.is_dir():
        parser.error(f"--write-baseline {kept}: no folder {kept.parent}")
    import torch

    if not torch.cuda.is_available():
        sys.stderr.write(
            "no CUDA GPU here, expected one\nhint: python -m sparkserve_kernels.compile\n"
        )
        return 2
    from sparkserve_kernels.bench_timing import read_bandwidth_gbs

    baseline = None
    if chosen.baseline is not None:
        try:
            baseline = read_baseline(chosen.baseline, torch.cuda.get_device_name())
        except (OSError, ValueError) as bad:
            parser.error(f"{bad}\nhint: make one with --write-baseline {chosen.baseline}")
    # All modules are imported before minutes are spent on the first of them.
    cases = [case for op in chosen.op or registry.names() for case in cases_of(op)]
    bandwidth = read_bandwidth_gbs()
    seed = secrets.randbelow(1 << 31) if chosen.seed is None else chosen.seed
    records = [{**conditions(bandwidth), "seed": seed}]
    _show(records[0], as_json=chosen.json)
    for case in cases:
        records.append(run(case, bandwidth, seed))
        _show(records[-1], as_json=chosen.json)
    faults = [fault for record in records for fault in record.get("faults", ())]
    if baseline is not None:
        faults += regressions(records, baseline)
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    if kept is not None and faults:
        sys.stderr.write(f"{kept}: not written, because of the faults above\n")
    elif kept is not None:
        write_whole(kept, "".join(json.dumps(record) + "\n" for record in records))
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sparkserve_kernels.bench",
        description="Check every kernel against float64 on fresh inputs, then time it in CUDA "
        "graphs over weights rotated past the L2, beside the strongest stock alternative.",
        epilog="Example: python -m sparkserve_kernels.bench --op mxfp8_linear --json",
    )
    parser.add_argument(
        "--op", action="append", metavar="OP", choices=registry.names(), help="only this op"
    )
    parser.add_argument("--json", action="store_true", help="print JSON Lines")
    parser.add_argument("--baseline", type=Path, help="compare with this JSONL; 15 %% slower fails")
    parser.add_argument("--write-baseline", type=Path, help="keep a run without faults")
    parser.add_argument("--seed", type=int, help="of the gates' inputs (default: a fresh one)")
    return parser


def conditions(bandwidth_gbs: float) -> Record:
    """What the figures of this run depend on."""
    import torch
    import triton

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "kind": "conditions",
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "l2_bytes": int(properties.L2_cache_size),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "read_bandwidth_gbs": round(bandwidth_gbs, 1),
    }


def run(case: BenchCase, bandwidth_gbs: float, seed: int) -> Record:
    """Gate a case, then time it; a red gate gives no time."""
    import torch

    record: Record = {"kind": "result", "op": case.op, "case": case.name, "rows": case.rows}
    try:
        error = case.gate(seed)
        torch.cuda.synchronize()
    except Exception as failure:  # noqa: BLE001 - a gate that breaks is red, and the next case runs
        trace = traceback.format_exc(limit=-3)
        return {**record, "gate": "red", "faults": [f"{case.op} {case.name}: {failure}\n{trace}"]}
    finally:
        _free()
    # Strict JSON knows no NaN.
    record["error"] = error if math.isfinite(error) else str(error)
    if not error <= case.max_error:  # also when it is NaN
        text = f"{case.op} {case.name}: error {error:.3g}, expected at most {case.max_error:.3g}"
        return {**record, "gate": "red", "faults": [text]}
    record["gate"] = "green"
    try:
        return {**record, **_timed(case, bandwidth_gbs)}
    except Exception as failure:  # noqa: BLE001 - one case that cannot be timed is reported as such
        trace = traceback.format_exc(limit=-3)
        return {**record, "faults": [f"{case.op} {case.name}: {failure}\n{trace}"]}
    finally:
        _free()


def _timed(case: BenchCase, bandwidth_gbs: float) -> Record:
    from sparkserve_kernels.bench_timing import copies_for, spread, time_calls_us

    copies = copies_for(case.bytes_per_copy) if case.copies is None else case.copies
    work = case.prepare(copies)
    ours = spread(time_calls_us(work.ours, copies))
    stock = spread(time_calls_us(work.stock, copies))
    gbs = case.bytes_moved / ours["p50"] / 1e3
    figures: Record = {
        "copies": copies,
        "rotated_bytes": copies * case.bytes_per_copy,
        "time_us": ours,
        "stock": case.stock_name,
        "stock_us": stock,
        "speedup": round(stock["p50"] / ours["p50"], 3),
        "bytes": case.bytes_moved,
        "gbs": round(gbs, 1),
        "read_fraction": round(gbs / bandwidth_gbs, 3),
    }
    if case.flops:
        figures["tflops"] = round(case.flops / ours["p50"] / 1e6, 1)
    return {**figures, "bars": bars(case, figures)}


def bars(case: BenchCase, figures: Record) -> list[Record]:
    """Each bar of a case with what was reached."""
    asked = (
        ("read_fraction", case.bar.read_fraction, figures["read_fraction"], math.inf),
        ("speedup", case.bar.speedup, figures["speedup"], math.inf),
        ("below_us", case.bar.below_us, figures["time_us"]["p50"], -math.inf),
    )
    return [
        {
            "bar": name,
            "asked": wanted,
            "reached": reached,
            "met": reached >= wanted if better > 0 else reached < wanted,
        }
        for name, wanted, reached, better in asked
        if wanted is not None
    ]


def read_baseline(path: Path, gpu: str) -> dict[tuple[str, str], Record]:
    """Results of an earlier run on the same kind of GPU, by op and case.

    Raises:
        OSError: it cannot be read. ValueError: a line that is no record of a benchmark, with its
            number; or the run was on another GPU, or does not say on which.
    """
    found: dict[tuple[str, str], Record] = {}
    of = "no GPU"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as bad:
        raise ValueError(f"{path}: no text in UTF-8 ({bad})") from bad
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if record["kind"] == "conditions":
                of = record["gpu"]
            elif "time_us" in record:
                float(record["time_us"]["p50"])
                found[record["op"], record["case"]] = record
        except (ValueError, TypeError, KeyError) as bad:
            raise ValueError(
                f"{path}:{number}: {line[:60]!r}, expected a record that this benchmark wrote"
            ) from bad
    if of != gpu:
        raise ValueError(f"{path}: a baseline of {of}, expected one of {gpu}")
    return found


def regressions(records: Sequence[Record], baseline: dict[tuple[str, str], Record]) -> list[str]:
    """What got slower by more than 15 %, has no baseline, or is in the baseline alone."""
    ran = {(record["op"], record["case"]) for record in records if record["kind"] == "result"}
    ops = {op for op, _ in ran}
    gone = [key for key in baseline if key[0] in ops and key not in ran]
    faults = [f"{op} {case}: in the baseline, and no case any more" for op, case in gone]
    for record in records:
        if "time_us" not in record:
            continue
        before = baseline.get((record["op"], record["case"]))
        if before is None:
            faults.append(f"{record['op']} {record['case']}: not in the baseline")
            continue
        was, now = before["time_us"]["p50"], record["time_us"]["p50"]
        limit = round(was * REGRESSION, 3)
        if now > limit:
            faults.append(
                f"{record['op']} {record['case']}: {now} us, expected at most {limit} "
                f"(baseline {was})"
            )
    return faults


def _show(record: Record, *, as_json: bool) -> None:
    if as_json:
        text = json.dumps(record)
    elif record["kind"] == "conditions":
        text = (
            f"{record['gpu']}, torch {record['torch']}, triton {record['triton']}: a streaming "
            f"kernel reads {record['read_bandwidth_gbs']} GB/s"
        )
    elif "time_us" not in record:
        text = f"{record['op']:16} {record['case']:32} gate {record['gate']}: {record['faults'][0]}"
    else:
        missed = [bar["bar"] for bar in record["bars"] if not bar["met"]]
        text = (
            f"{record['op']:16} {record['case']:32} {record['time_us']['p50']:9.2f} us "
            f"{record['gbs']:7.0f} GB/s ({record['read_fraction']:.2f}) "
            f"{record['speedup']:6.2f} x {record['stock']}"
            + (f"  below its bar: {', '.join(missed)}" if missed else "")
        )
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _free() -> None:
    import torch

    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
