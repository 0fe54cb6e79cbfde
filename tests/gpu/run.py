"""Everything that needs a GPU, in one command on a machine without a network.

usage: python3 -m tests.gpu.run --out FOLDER [--stage NAME]... [--limit-s SECONDS]

Stages: probe, graph, prefetch, tiny-engram, tiny-v41 (all by default); on a machine with two GPUs
tp2-engram and tp2-v41; and warm, which only fills the compile caches.
Exit code 0 = every expectation holds, 1 = one does not or was not judged.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu import place as places
from tests.gpu.place import REPOSITORY, Place
from tests.gpu.results import Results

if TYPE_CHECKING:
    from tests.gpu.servers import Case, Layout

STAGES = ("probe", "graph", "prefetch", "tiny-engram", "tiny-v41")
MORE = ("tp2-engram", "tp2-v41", "warm")
_PACKING_S = 45
"""Kept back at the end for the archives of caches and logs."""
_LARGEST_ARCHIVE_BYTES = 16 << 20


@dataclass(frozen=True)
class Run:
    """One run: where, until when, and what it found."""

    place: Place
    results: Results
    deadline: float
    """On the monotonic clock: servers are not waited for beyond it."""

    def left_s(self, at_most_s: float) -> float:
        return max(1.0, min(at_most_s, self.deadline - time.monotonic()))


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stage", action="append", choices=(*STAGES, *MORE))
    parser.add_argument("--kit", type=Path, default=REPOSITORY / ".gpu" / "site.tar.xz")
    parser.add_argument("--cache", type=Path, default=REPOSITORY / ".gpu" / "cache.tar.xz")
    parser.add_argument("--work", type=Path, default=Path("/tmp/sparkserve-gpu"))
    parser.add_argument("--limit-s", type=float, default=570)
    return parser.parse_args()


def main() -> int:
    words = asked()
    place = Place(words.work, words.out.resolve())
    place.out.mkdir(parents=True, exist_ok=True)
    results = Results(place.out)
    run = Run(place, results, time.monotonic() + words.limit_s - _PACKING_S)
    try:
        places.unpack(place, words.kit, words.cache)
        places.link_ours(place)
        results.note("setup", "unpacked", caches=words.cache.is_file())
        # From here on the carried packages can be imported in this process too.
        sys.path.insert(0, str(place.site))
        stages = tuple(words.stage or STAGES)
        prepare(run, stages)
        go(run, stages)
    except Exception:
        results.missing("run", "the run comes to its end", traceback.format_exc()[-2500:])
    finally:
        keep(run)
    print(results.summary(), flush=True)
    return 0 if results.passed else 1


def prepare(run: Run, stages: tuple[str, ...]) -> None:
    """Compile the native library; make the small models."""
    jobs: list[Callable[[Run], None]] = [compile_site]
    if stages != ("warm",):
        jobs.append(compile_native)
    if {"warm", "tiny-engram", "tp2-engram"} & {*stages}:
        jobs.append(make_tiny_engram)
    in_parallel(run, jobs)


def in_parallel(run: Run, jobs: Sequence[Callable[[Run], None]]) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda job: guarded(run, job), jobs))


def go(run: Run, stages: tuple[str, ...]) -> None:
    """What measures time first and alone, then everything else side by side."""
    for name in ("probe", "prefetch"):
        if name in stages:
            script(run, name, 100)
    jobs: dict[str, Callable[[Run], None]] = {
        "graph": graph,
        "warm": warm,
        "tiny-engram": compare_engram,
        "tiny-v41": compare_v41,
        "tp2-engram": compare_two_ranks_engram,
        "tp2-v41": compare_two_ranks_v41,
    }
    in_parallel(run, [job for name, job in jobs.items() if name in stages])


def guarded(run: Run, job: Callable[[Run], None]) -> None:
    """Run a job; what it raises becomes a failed expectation."""
    began = time.monotonic()
    try:
        job(run)
    except Exception:
        why = traceback.format_exc()[-2500:]
        run.results.missing(job.__name__, "comes to its end", why)
    run.results.note(job.__name__, "ended", took_s=round(time.monotonic() - began, 1))


def compile_site(run: Run) -> None:
    """Byte-compile once what a dozen servers are about to import at the same moment."""
    words = ("-m", "compileall", "-q", "-j", "0", run.place.site)
    places.python(run.place, *words, timeout_s=run.left_s(90))


def compile_native(run: Run) -> None:
    took_s = places.build_native(run.place)
    run.results.note("setup", "native library built", took_s=round(took_s, 1))


def make_tiny_engram(run: Run) -> None:
    _make(run, "-m", "tests.gpu.tiny_engram", run.place.models)


def make_v41(run: Run) -> None:
    from tests.gpu.cases import v41_checkpoint

    _make(run, "-m", "tests.gpu.tiny_v41", v41_checkpoint(run.place))


def _make(run: Run, *words: str | Path) -> None:
    done = places.python(run.place, *words, timeout_s=run.left_s(120))
    if done.returncode != 0:
        raise RuntimeError(f"{words[1]}: exit {done.returncode}\n{done.stdout[-2500:]}")
    run.results.note("setup", str(words[1]), says=done.stdout.splitlines()[-1])


def script(run: Run, name: str, limit_s: float) -> None:
    """Run a stage's script; every line of JSON it prints is a record or a verdict."""
    words = ("-m", f"tests.gpu.{name.replace('-', '_')}")
    try:
        done = places.python(run.place, *words, timeout_s=run.left_s(limit_s))
        said, why = done.stdout, "" if done.returncode == 0 else done.stdout[-2500:]
    except places.TimeoutExpired as error:
        said, why = (error.stdout or b"").decode(), f"killed after {error.timeout:.0f} s"
    for line in said.splitlines():
        if not line.startswith("{"):
            continue
        found = json.loads(line)
        if "says" in found:
            detail = found.get("detail", "")
            run.results.expect(name, found["says"], holds=found["holds"], detail=detail)
        else:
            run.results.note(name, "measured", **found)
    if why:
        run.results.missing(name, "comes to its end", why)


def graph(run: Run) -> None:
    script(run, "graph", 240)


def warm(run: Run) -> None:
    """Start what needs no adapter once, so that its kernels lie in the caches."""
    from tests.gpu import cases

    def engram(run: Run) -> None:
        servers = cases.in_memory(cases.tiny_engram(run.place))
        compare(run, "warm-engram", 21000, servers, None)

    def v41(run: Run) -> None:
        make_v41(run)
        compare(run, "warm-v41", 22000, cases.tiny_v41(run.place)[:1], None)

    in_parallel(run, (engram, v41))


def compare_engram(run: Run) -> None:
    from tests.gpu import cases

    rows = cases.engram_rows(run.place)
    compare(run, "tiny-engram", 21000, cases.tiny_engram(run.place), rows)


def compare_v41(run: Run) -> None:
    from tests.gpu import cases

    make_v41(run)
    pack(run, "tiny-v41")
    rows = cases.v41_rows(run.place)
    compare(run, "tiny-v41", 22000, cases.tiny_v41(run.place), rows)


def compare_two_ranks_engram(run: Run) -> None:
    from tests.gpu import cases
    from tests.gpu.tiny_engram import reshard

    whole, model = cases.engram_rows(run.place), cases.engram_checkpoint(run.place)
    layouts: tuple[Layout, ...] = ("columns", "equal", "strided")
    for layout in layouts:
        reshard(whole, model, layout, 2, cases.engram_shards(run.place, layout))
    compare(run, "tp2-engram", 23000, cases.two_ranks_engram(run.place), None)


def compare_two_ranks_v41(run: Run) -> None:
    from tests.gpu import cases

    make_v41(run)
    layouts: tuple[Layout, ...] = ("columns", "strided")
    for layout in layouts:
        for rank in range(2):
            pack(run, "tp2-v41", layout, rank, 2)
    compare(run, "tp2-v41", 24000, cases.two_ranks_v41(run.place), None)


def compare(
    run: Run, stage: str, port: int, cases: tuple[Case, ...], corrupt_dir: Path | None
) -> None:
    from tests.gpu.comparison import Comparison

    comparison = Comparison(stage, run.place, run.results, port, run.deadline)
    comparison.run(cases, corrupt_dir=corrupt_dir)


def pack(run: Run, stage: str, layout: Layout = "columns", rank: int = 0, tp: int = 1) -> None:
    """Pack the checkpoint's tables with our own packer, and verify every row."""
    from tests.gpu.cases import v41_checkpoint, v41_rows

    out = v41_rows(run.place)
    out.mkdir(parents=True, exist_ok=True)
    job = {"source": str(v41_checkpoint(run.place)), "out": str(out), "reserve_gib": 1}
    job |= {"tp": tp, "rank": rank, "layout": layout, "verify": "full"}
    path = run.place.work / f"pack-{stage}-{layout}-{rank}.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    words = ("-m", "sparkserve.node", "pack", "--job", path)
    done = places.python(run.place, *words, timeout_s=run.left_s(120))
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    says = f"`sparkserve.node pack` packs rank {rank} of {tp}, {layout}, and verifies every row"
    run.results.expect(stage, says, holds=done.returncode == 0, detail=last[:700])


def keep(run: Run) -> None:
    """Write results first, then whatever fits of caches and logs."""
    run.results.write()
    for pack_up in (places.pack_logs, places.pack_caches):
        try:
            archive = pack_up(run.place)
        except Exception:
            run.results.note("keep", pack_up.__name__, failed=traceback.format_exc()[-500:])
            continue
        size_bytes = archive.stat().st_size
        run.results.note("keep", archive.name, size_bytes=size_bytes)
        if size_bytes > _LARGEST_ARCHIVE_BYTES:
            archive.unlink()
    run.results.write()
    shutil.rmtree(run.place.runs, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
