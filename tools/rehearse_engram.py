"""Pack one rank of the released model at its real size on a simulated node, and serve its rows.

``make rehearse`` (root, Linux, about 26 GiB free, no GPU): rank 0 of 8, layer 1: 48,000,217 rows,
11.8 GiB. The checkpoint has the real length and offsets; only the rank's rows hold data, all else
is a hole. Every row's content follows from its number, so a served row is compared with what it
must be, not with what was packed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import time
from array import array
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sparkserve.engram.config import EngramConfig  # noqa: E402
from sparkserve.engram.rows import open_rows  # noqa: E402
from sparkserve.engram.shard import ShardIdentity  # noqa: E402
from sparkserve.units import format_bytes  # noqa: E402

LAYER, RANK, TP = 1, 0, 8
CONFIG = {
    "model_type": "deepseek_v4",
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "engram_vocab_size": 16000000,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 99092,
}
"""Engram fields of DeepSeek-V4.1-Flash."""
FILE = "model-00047-of-00048.safetensors"
WEIGHT_OFFSET, SCALE_OFFSET = 664, 98305579672
DIM, SCALES, WIDTH = 256, 8, 264
CHUNK_ROWS = 1 << 18
OUT = "/mnt/nvme/engram"
_KEY = 0x9E3779B97F4A7C15


def identity() -> ShardIdentity:
    return EngramConfig.from_config(CONFIG).shard(LAYER, "columns", RANK, TP)


def rows_of(numbers: Any) -> Any:
    """What the rows of these numbers hold, [rows, 264] uint8, worked out from the numbers."""
    import numpy as np

    words = (numbers.astype(np.uint64)[:, None] + np.uint64(1)) * np.uint64(_KEY) + np.arange(
        WIDTH // 8, dtype=np.uint64
    ) * np.uint64(0xD1B54A32D192ED03)
    words ^= words >> np.uint64(29)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(32)
    return words.view(np.uint8).reshape(len(numbers), WIDTH)


def write_checkpoint(folder: Path) -> None:
    """A checkpoint of the real length whose rows below the rank's end hold data."""
    import numpy as np

    folder.mkdir(parents=True)
    shard = identity()
    total, end = shard.total_rows, shard.ranges[-1].end
    stem = f"layers.{LAYER}.engram.embed"
    entries = {
        f"{stem}.weight": ("F8_E4M3", [total, DIM], 0),
        f"{stem}.scale": ("F8_E8M0", [total, SCALES], SCALE_OFFSET - WEIGHT_OFFSET),
    }
    head = {
        name: {
            "dtype": kind,
            "shape": shape,
            "data_offsets": [start, start + shape[0] * shape[1]],
        }
        for name, (kind, shape, start) in entries.items()
    }
    text = json.dumps(head).encode().ljust(WEIGHT_OFFSET - 8)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    index = {"metadata": {}, "weight_map": dict.fromkeys(head, FILE)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with (folder / FILE).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        os.truncate(file.fileno(), SCALE_OFFSET + total * SCALES)
        for start in range(0, end, CHUNK_ROWS):
            rows = rows_of(np.arange(start, min(start + CHUNK_ROWS, end)))
            weights = np.ascontiguousarray(rows[:, :DIM])
            os.pwrite(file.fileno(), weights, WEIGHT_OFFSET + start * DIM)
            scales = np.ascontiguousarray(rows[:, DIM:])
            os.pwrite(file.fileno(), scales, SCALE_OFFSET + start * SCALES)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def traces() -> dict[str, list[list[int]]]:
    """Batches of row ids as serving asks for them, over the rank's own rows."""
    source = random.Random(1)
    end = identity().ranges[-1].end

    def zipf(count: int) -> list[int]:
        # Rank-frequency about 1/k over the rank's rows, scattered by a hash.
        return [int(end ** source.random()) * _KEY % end for _ in range(count)]

    repeated = []
    for _ in range(2000):
        fresh = zipf(101)
        repeated.append(fresh + source.choices(fresh, k=43))
    return {
        "prefill: 24,576 rows at random per lookup": [
            [source.randrange(end) for _ in range(24_576)] for _ in range(12)
        ],
        "decode: 144 rows per lookup, Zipf, 30 % repeats": repeated,
    }


def serve(out: Path) -> dict[str, Any]:
    """Look rows up through the native store, compare each, and measure."""
    import numpy as np
    from sparkserve_native.row_store import StoreOptions

    shard = identity()
    found: dict[str, Any] = {}
    for cache_bytes in (0, 256 << 20):
        for title, batches in traces().items():
            with open_rows(
                out / shard.file_name, shard, StoreOptions(cache_bytes=cache_bytes)
            ) as rows:
                wrong, spent_s = 0, 0.0
                for batch in batches:
                    ids = array("q", batch)
                    weights = bytearray(len(ids) * DIM)
                    scales = bytearray(len(ids) * SCALES)
                    started = time.perf_counter()
                    rows.lookup_into(ids, weights, scales)
                    spent_s += time.perf_counter() - started
                    want = rows_of(np.array(batch))
                    same = np.frombuffer(weights, np.uint8).reshape(-1, DIM) == want[:, :DIM]
                    tail = np.frombuffer(scales, np.uint8).reshape(-1, SCALES) == want[:, DIM:]
                    wrong += int((~(same.all(axis=1) & tail.all(axis=1))).sum())
                stats = rows.stats()
            count = sum(map(len, batches))
            name = f"{title}, cache {format_bytes(cache_bytes) if cache_bytes else 'off'}"
            found[name] = {
                "rows": count,
                "wrong_rows": wrong,
                "rows_per_s": round(count / spent_s),
                "p50_ms": round(stats.p50_job_ns / 1e6, 2),
                "p99_ms": round(stats.p99_job_ns / 1e6, 2),
                "hits": stats.hits,
                "engine": stats.engine,
                "direct_io": stats.direct_io,
            }
    return found


def resident_bytes(path: Path) -> int:
    """Bytes of a file that the page cache holds."""
    argv = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return int(done.stdout.strip() or 0)


def cached_bytes() -> int:
    """Page cache of the machine."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["Cached"].split()[0]) * 1024


def use_direct_io(node: Any) -> Path:
    """Let a node's NVMe bypass the page cache of its file on the machine, and return that file."""
    image: Path = node.folder / "nvme.img"
    loops = subprocess.run(["losetup", "-j", image], capture_output=True, text=True, check=True)
    device = loops.stdout.partition(":")[0]
    subprocess.run(["losetup", "--direct-io=on", device], check=True)
    return image


def rehearse(folder: Path) -> dict[str, Any]:
    from tests.testbed.cluster import Testbed
    from tests.testbed.options import Options

    found: dict[str, Any] = {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 1),
        "shard_bytes": identity().header.file_bytes,
        "rows": identity().header.rows_in_file,
    }
    started = time.monotonic()
    model = folder / "model"
    write_checkpoint(model)
    folder.chmod(0o755)
    found["checkpoint_s"] = round(time.monotonic() - started, 1)
    with Testbed(Options(nodes=1, nvme="ext4", nvme_mib=14 << 10)) as testbed:
        (node,) = testbed.nodes
        image = use_direct_io(node)
        shard = node.folder / "nvme" / "engram" / identity().file_name
        rank = ["--tp", str(TP), "--rank", str(RANK), "--layers", str(LAYER), "--out", OUT]
        base = [sys.executable, "-m", "sparkserve"]
        source = ["--model", str(model)]
        before = cached_bytes()
        for name, argv in (
            ("pack", [*base, "pack", *source, *rank, "--reserve-gib", "0", "--verify", "none"]),
            ("verify_checksums", [*base, "verify", "--engram", *rank]),
            ("verify_sample", [*base, "verify", "--engram", *source, *rank]),
        ):
            began = time.monotonic()
            done = subprocess.run(
                testbed.ssh_argv(node, argv), capture_output=True, text=True, check=False
            )
            found[name] = {"s": round(time.monotonic() - began, 1), "exit": done.returncode}
            found[name]["output"] = done.stdout.splitlines()
            if name == "pack":
                found["page_cache"] = {
                    "of_the_shard_bytes": resident_bytes(shard),
                    "of_the_checkpoint_bytes": resident_bytes(model / FILE),
                    "of_the_image_bytes": resident_bytes(image),
                    "machine_growth_bytes": cached_bytes() - before,
                }
                found["pack"]["stderr"] = done.stderr.splitlines()[-6:]
        argv = [sys.executable, str(Path(__file__).resolve()), "--serve", OUT]
        done = subprocess.run(
            testbed.ssh_argv(node, argv), capture_output=True, text=True, check=True
        )
        found["serve"] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/sparkserve-rehearsal"))
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        print(json.dumps(serve(options.serve)))
        return
    if os.geteuid() != 0:
        sys.exit("the rehearsal needs root: it simulates a node with an NVMe of its own")
    shutil.rmtree(options.folder, ignore_errors=True)
    try:
        found = rehearse(options.folder)
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    print(json.dumps(found, indent=1))
    wrong = sum(each["wrong_rows"] for each in found["serve"].values())
    exits = [found[name]["exit"] for name in ("pack", "verify_checksums", "verify_sample")]
    if wrong or any(exits):
        sys.exit(f"failed: exits {exits}, {wrong} wrong rows")


if __name__ == "__main__":
    main()
