"""Serve a table of 8 GiB with a real SGLang from a simulated node's ext4, and from its memory.

Part of ``make rehearse`` (root, Linux, about 20 GiB of disk and 14 GiB of memory, no GPU). A tiny
Llama gets Engram tables with the columns and the row width of the released model. The node packs
them with ``sparkserve pack``, serves them with ``sparkserve launch``, and serves them once more
from the engine's own in-memory tables, whose log-probabilities are what must be said. One changed
row of a shard must change the answer, from the token on that reads it, and fail ``verify``.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sparkserve.engram.config import EngramConfig  # noqa: E402
from sparkserve.engram.hashing import RowHasher  # noqa: E402
from sparkserve.engram.header import HEADER_BYTES  # noqa: E402
from sparkserve.engram.token_map import compressed_ids  # noqa: E402
from sparkserve.paths import config_dir  # noqa: E402
from tests.e2e.fleet import Fleet  # noqa: E402
from tests.testbed.cluster import Testbed  # noqa: E402
from tests.testbed.disk import USER_ID  # noqa: E402
from tests.testbed.options import Options  # noqa: E402
from tests.testbed.shell import TestbedError  # noqa: E402
from tools.rehearsal_model import (  # noqa: E402
    LAYERS,
    TABLES,
    forget_pages,
    recipe_of,
    write_model,
)
from tools.rehearse_engram import DIM, OUT, WIDTH, resident_bytes, use_direct_io  # noqa: E402

PORT = 8888
PROMPTS, NEW_TOKENS = 4, 16
SPEED_TOKENS, SPEED_ROUNDS = 64, 3
LIMIT_S = 1800


def prompts() -> list[str]:
    """Texts of about 330 tokens: the tiny tokenizer makes each byte one."""
    source = random.Random(11)
    words = ["".join(source.choices("etaoinshrdlu", k=source.randint(2, 9))) for _ in range(400)]
    return [" ".join(source.choices(words, k=50)) for _ in range(PROMPTS)]


@dataclass(frozen=True)
class Served:
    """What one way of serving said and cost."""

    logprobs: list[list[tuple[float | None, int]]]
    figures: dict[str, Any]


class Rehearsal:
    """One node, its model, and the real commands."""

    def __init__(self, testbed: Testbed, folder: Path) -> None:
        (self.node,) = testbed.nodes
        self.model = folder / "model"
        self.image = use_direct_io(self.node)
        config_dir().mkdir(parents=True)
        self.fleet = Fleet(testbed, folder)
        self.config = EngramConfig.from_config(json.loads((self.model / "config.json").read_text()))
        names = [self.config.shard(layer, "columns", 0, 1).file_name for layer in LAYERS]
        self.shards = [self.node.folder / "nvme" / "engram" / name for name in names]

    def profile(self, name: str, **sections: Any) -> Path:
        data: dict[str, Any] = {
            "name": name,
            "model": {
                "path": str(self.model),
                "served_name": "tiny",
                "external_package": "sparkserve.sim.demo_model",
            },
            "engine": {
                "kind": "sglang",
                "version": "0.5.23",
                "python": sys.executable,
                "device": "cpu",
                "shim": "cpu",
                "extra_args": ["--sleep-on-idle", "--skip-server-warmup"],
            },
            "context": {"length_tokens": 1024, "kv_tokens": 8192, "mem_fraction_static": 0.7},
            "gate": {"prompt": "hello", "max_tokens": 8, "plausible": False},
            "serving": {"port": PORT},
        }
        return self.fleet.write_profile(data | sections)

    def rows_profile(self) -> Path:
        return self.profile(
            "rows",
            engram={"directory": OUT},
            adapters={"engram_rows": {"manifest": "required"}, "engram_prefetch": {}},
        )

    def command(self, *words: str | Path) -> dict[str, Any]:
        """Run ``sparkserve`` over SSH from the controller's place."""
        began = time.monotonic()
        done = subprocess.run(
            self.fleet.argv(words), capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found = {"s": round(time.monotonic() - began, 1), "exit": done.returncode}
        return found | {"last": lines[-1] if lines else None, "stderr": done.stderr[-3000:]}

    def must(self, *words: str | Path) -> dict[str, Any]:
        done = self.command(*words)
        if done["exit"]:
            sys.exit(f"sparkserve {' '.join(map(str, words))}: {json.dumps(done, indent=1)}")
        return done

    def generate(self, text: str | list[str], tokens: int, **more: Any) -> Any:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = json.dumps({"text": text, "sampling_params": sampling} | more)
        argv = ["curl", "-sS", "--fail-with-body", "-H", "Content-Type: application/json"]
        url = f"http://127.0.0.1:{PORT}/generate"
        done = self.node.inside([*argv, "--data-binary", "@-", url], stdin=body, timeout_s=600)
        return json.loads(done.stdout)

    def logprobs(self, text: str) -> list[tuple[float | None, int]]:
        """Of every prompt token and every greedy one."""
        meta = self.generate(text, NEW_TOKENS, return_logprob=True, logprob_start_len=0)[
            "meta_info"
        ]
        both = meta["input_token_logprobs"] + meta["output_token_logprobs"]
        return [(logprob, token) for logprob, token, *_ in both]

    def tokens_per_s(self, streams: int) -> float:
        source = random.Random(streams)
        texts = ["".join(source.choices("etaoinshrdlu ", k=16)) for _ in range(streams)]
        began = time.monotonic()
        self.generate(texts, SPEED_TOKENS)
        return round(streams * SPEED_TOKENS / (time.monotonic() - began), 1)

    def memory(self) -> dict[str, int]:
        """Resident bytes of the run's processes, shared pages counted once."""
        found = dict.fromkeys(("Pss_Anon", "Pss_File", "Pss_Shmem"), 0)
        for process in self.node.processes():
            if process.user_id == USER_ID:
                text = Path(f"/proc/{process.machine_pid}/smaps_rollup").read_text()
                fields = dict(line.split(":", 1) for line in text.splitlines()[1:])
                for name in found:
                    found[name] += int(fields[name].split()[0]) * 1024
        return found

    def page_cache(self) -> dict[str, int]:
        return {
            "of_the_shards_bytes": sum(map(resident_bytes, self.shards)),
            "of_the_checkpoint_bytes": resident_bytes(self.model / TABLES),
            "of_the_image_bytes": resident_bytes(self.image),
        }

    def row_figures(self) -> list[dict[str, Any]]:
        """The layers' counters, once they have settled."""
        script = "cat /home/spark/sparkserve/state/runs/*/stats/engram-*.json"
        before = ""
        for _ in range(30):
            text = self.node.inside(["sh", "-c", script]).stdout
            if text == before:
                break
            before = text
            time.sleep(3)
        return json.loads(text)["layers"]

    @contextmanager
    def serving(self, profile: Path) -> Iterator[dict[str, Any]]:
        """A launched server; yields how long it took to be ready."""
        forget_pages(self.model / TABLES)
        launched = self.must("launch", "--cluster", "fleet", "--profile", profile, "--json")
        try:
            yield {"ready_s": launched["s"], "load": load()}
        except TestbedError:
            log = "tail -n 40 /home/spark/sparkserve/state/runs/*/engine.log"
            print(self.node.inside(["sh", "-c", log]).stdout, file=sys.stderr)
            raise
        finally:
            self.must("stop")

    def measure(self, profile: Path, *, rows: bool) -> Served:
        """Everything there is to know of one way of serving."""
        with self.serving(profile) as figures:
            logprobs = [self.logprobs(text) for text in prompts()]
            for streams in (1, 8):
                rates = [self.tokens_per_s(streams) for _ in range(SPEED_ROUNDS)]
                figures[f"tokens_per_s_{streams}_streams"] = rates
            figures |= {"memory": self.memory(), "page_cache": self.page_cache()}
            if rows:
                figures["layers"] = self.row_figures()
        say(figures)
        return Served(logprobs, figures)

    def flip_row(self, row: int) -> None:
        """Turn the signs of one row of the first layer."""
        with self.shards[0].open("r+b") as file:
            at = HEADER_BYTES + row * WIDTH
            old = os.pread(file.fileno(), DIM, at)
            os.pwrite(file.fileno(), bytes(byte ^ 0x80 for byte in old), at)
        forget_pages(self.shards[0])

    def rare_row(self, seen: list[tuple[float | None, int]]) -> tuple[int, int]:
        """A row of the first layer that a prompt reads at one position, and that position."""
        import numpy as np
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        hasher = RowHasher.of(self.config, compressed_ids(tokenizer, self.config))
        tokens = np.array([token for _, token in seen[:-NEW_TOKENS]])
        last_column = hasher.hash_text(tokens)[:, 0, -1]
        rows, first, counts = np.unique(last_column, return_index=True, return_counts=True)
        lone = (counts == 1) & (first >= len(tokens) // 2)
        return int(rows[lone][0]), int(first[lone][0])

    def corrupt(self, served: Served) -> dict[str, Any]:
        """What verify and a server say after one row of a shard has changed."""
        before = served.logprobs[0]
        row, position = self.rare_row(before)
        self.flip_row(row)
        profile = self.rows_profile()
        asked = ["--cluster", "fleet", "--profile", profile, "--json"]
        verify = self.command("verify", "--engram", *asked)
        found = {
            "row_read_at": position,
            "row_at_byte": HEADER_BYTES + row * WIDTH,
            "verify": {name: verify[name] for name in ("s", "exit")},
            "reason": verify["last"]["data"]["shards"][0]["reason"],
        }
        with self.serving(profile):
            pairs = zip(self.logprobs(prompts()[0]), before, strict=True)
            found["first_changed_at"] = next(
                (at for at, (one, other) in enumerate(pairs) if one != other), None
            )
        say(found)
        return found


def say(found: Any) -> None:
    """Progress for whoever waits."""
    print(time.strftime("%T"), json.dumps(found), file=sys.stderr, flush=True)


def load() -> float:
    return round(os.getloadavg()[0], 1)


def rehearse(folder: Path, gib: float) -> dict[str, Any]:
    recipe = recipe_of(gib)
    rows = sum(bounds[-1] for bounds in recipe.bounds)
    found: dict[str, Any] = {"cores": os.cpu_count(), "kernel": platform.release()}
    found |= {"load": load(), "rows": rows, "bytes": rows * WIDTH}
    began = time.monotonic()
    write_model(folder / "model", recipe)
    folder.chmod(0o755)
    found["checkpoint_s"] = round(time.monotonic() - began, 1)
    nvme_mib = (rows * WIDTH >> 20) * 9 // 8 + 512
    with Testbed(Options(nodes=1, nvme="ext4", nvme_mib=nvme_mib)) as testbed:
        run = Rehearsal(testbed, folder)
        profile = run.rows_profile()
        whole = ["--cluster", "fleet", "--profile", profile, "--json"]
        found["pack"] = run.must("pack", *whole, "--reserve-gib", "0")
        found["pack"] |= {"load": load(), "page_cache": run.page_cache()}
        say(found)
        from_disk = run.measure(profile, rows=True)
        from_memory = run.measure(run.profile("memory"), rows=False)
        found |= {"from_disk": from_disk.figures, "from_memory": from_memory.figures}
        found["corrupted"] = run.corrupt(from_disk)
        run.fleet.close()
    found["logprobs"] = sum(map(len, from_memory.logprobs))
    found["differing"] = sum(
        one != other
        for ours, theirs in zip(from_disk.logprobs, from_memory.logprobs, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    )
    return found


def faults(found: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    corrupted = found["corrupted"]
    checks = {
        "log-probabilities differ from those of in-memory tables": found["differing"] == 0,
        # A row that token n reads decides what comes after it.
        "a corrupted row does not change the answer where it is read": (
            corrupted["first_changed_at"] == corrupted["row_read_at"] + 1
        ),
        "verify does not find the corrupted row": "checksum" in (corrupted["reason"] or ""),
    }
    return [text for text, holds in checks.items() if not holds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/sparkserve-rehearsal"))
    parser.add_argument("--gib", type=float, default=8.0, help="size of both tables together")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("the rehearsal needs root: it simulates a node with an NVMe of its own")
    shutil.rmtree(options.folder, ignore_errors=True)
    # The commands below keep their clusters and runs apart from the user's.
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        os.environ[f"XDG_{name}_HOME"] = str(options.folder / "controller" / name.lower())
    try:
        found = rehearse(options.folder, options.gib)
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    print(json.dumps(found, indent=1))
    wrong = faults(found)
    if wrong:
        sys.exit("failed: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
