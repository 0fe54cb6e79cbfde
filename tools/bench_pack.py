"""Packing against a plain direct copy of the same bytes, and what both leave in the page cache.

One synthetic table is packed for one rank, and the shard is copied by `dd` with direct I/O and
the same block size, and by a copy loop of our own that reads ahead as the packer does. The three
take turns; medians are compared. Prints one JSON object; exit code 1 where the packer is slower
than 0.85 of dd or leaves more than 64 MiB in the page cache.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import platform
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIMIT_RATIO = 0.85
LIMIT_CACHE_BYTES = 64 << 20
CHUNK_MIB = 64
PAGE = 4096


def make_checkpoint(folder: Path, gib: float) -> Path:
    """A checkpoint with one layer's table of about so many GiB; returns its safetensors file."""
    from sparkserve.engram.layout import column_bounds, column_sizes

    vocab_size = round(gib * (1 << 30) / 264 / 24)
    rows = column_bounds(column_sizes(1, 4, 8, vocab_size)[0])[-1]
    config = {
        "engram_layer_ids": [1], "engram_num_embeddings": [rows], "engram_max_ngram_size": 4,
        "engram_n_heads": 8, "engram_head_dim": 256, "engram_vocab_size": vocab_size,
        "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99092,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    stem = "layers.1.engram.embed"
    header = {
        f"{stem}.weight": {
            "dtype": "F8_E4M3", "shape": [rows, 256], "data_offsets": [0, rows * 256],
        },
        f"{stem}.scale": {
            "dtype": "F8_E8M0", "shape": [rows, 8], "data_offsets": [rows * 256, rows * 264],
        },
    }  # fmt: skip
    text = json.dumps(header).encode()
    path = folder / "model.safetensors"
    # Different bytes everywhere, so that neither compression nor deduplication helps anybody.
    block = random.Random(1).randbytes(16 << 20)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left = rows * 264
        turn = 0
        while left:
            turn += 1
            piece = (block[turn * 4099 :] + block[: turn * 4099])[:left]
            file.write(piece)
            left -= len(piece)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def pack(source: Path, out: Path) -> None:
    """One rank of one, nothing compared afterwards."""
    from sparkserve.engram.local_source import LocalFolder
    from sparkserve.engram.pack import PackRun
    from sparkserve.engram.reporter import Reporter
    from sparkserve.model.pack import PackJob

    job = PackJob(
        source=str(source), out=str(out), tp=1, rank=0, reserve_gib=0, verify="none",
        chunk_mib=CHUNK_MIB,
    )  # fmt: skip
    PackRun(job, LocalFolder(source), Reporter(lambda _: None)).run()


def copy_dd(source: Path, target: Path) -> None:
    """The plain direct copy: read a block, write a block, and the file on the disk at the end."""
    command = [
        "dd", f"if={source}", f"of={target}", f"bs={CHUNK_MIB}M", "iflag=direct", "oflag=direct",
        "conv=fsync", "status=none",
    ]  # fmt: skip
    subprocess.run(command, check=True)


def copy_ahead(source: Path, target: Path) -> None:
    """A copy that reads the next block while one is written, into space set aside."""
    from sparkserve.engram.direct_file import DirectFile

    size, block = source.stat().st_size, CHUNK_MIB << 20
    buffers = [mmap.mmap(-1, block), mmap.mmap(-1, block)]
    flags = os.O_RDWR | os.O_CREAT
    with DirectFile(source) as reads, DirectFile(target, flags) as writes:
        os.posix_fallocate(writes.fd, 0, -(-size // PAGE) * PAGE)

        def read(number: int) -> int:
            return os.preadv(reads.fd, [buffers[number % 2]], number * block)

        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(read, 0)
            for number in range(-(-size // block)):
                got = coming.result()
                coming = pool.submit(read, number + 1)
                data = memoryview(buffers[number % 2])[: -(-got // PAGE) * PAGE]
                writes.write(number * block, data)
        os.ftruncate(writes.fd, size)
        os.fsync(writes.fd)


def cached_bytes() -> int:
    """Page cache of the whole machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Cached:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/meminfo has no Cached")


def resident_bytes(path: Path) -> int:
    """Page cache of one file, by mincore."""
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as pages:
        states = (ctypes.c_ubyte * -(-size // PAGE))()
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), states)
        return sum(state & 1 for state in states) * PAGE


def timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        result = measure(Path(name), options.gib, options.rounds)
    print(json.dumps(result, indent=1))
    ratio, cache = result["ratios"]["pack_vs_dd"], result["page_cache"]  # type: ignore[index]
    fine = ratio >= LIMIT_RATIO and cache["files_bytes"] <= LIMIT_CACHE_BYTES
    return 0 if fine else 1


def measure(folder: Path, gib: float, rounds: int) -> dict[str, object]:
    """Take turns; the first turn is not counted."""
    checkpoint, out = folder / "checkpoint", folder / "out"
    checkpoint.mkdir()
    source = make_checkpoint(checkpoint, gib)
    pack(checkpoint, out)
    shard, copy = out / "engram-l1-r0of1.bin", folder / "copy"
    kept = folder / "kept.bin"
    shard.replace(kept)
    size = kept.stat().st_size
    seconds: dict[str, list[float]] = {"pack": [], "dd": [], "copy_ahead": []}
    growth: list[int] = []
    for _ in range(rounds):
        shutil.rmtree(out)
        before = cached_bytes()
        seconds["pack"].append(timed(lambda: pack(checkpoint, out)))
        growth.append(cached_bytes() - before)
        for kind, work in (("dd", copy_dd), ("copy_ahead", copy_ahead)):
            copy.unlink(missing_ok=True)
            seconds[kind].append(timed(lambda work=work: work(kept, copy)))  # type: ignore[misc]
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    return {
        "machine": {"cpu_count": os.cpu_count(), "kernel": platform.release()},
        "shard_bytes": size,
        "block_mib": CHUNK_MIB,
        "rounds": rounds,
        "seconds": {kind: [round(each, 3) for each in values] for kind, values in seconds.items()},
        "mb_per_s": {kind: round(size / 1e6 / median, 1) for kind, median in medians.items()},
        "ratios": {
            "pack_vs_dd": round(medians["dd"] / medians["pack"], 3),
            "pack_vs_copy_ahead": round(medians["copy_ahead"] / medians["pack"], 3),
        },
        "page_cache": {
            "files_bytes": resident_bytes(source) + resident_bytes(shard),
            "growth_of_cached_bytes": growth,
        },
    }


if __name__ == "__main__":
    sys.exit(main())
