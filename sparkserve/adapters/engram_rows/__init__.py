"""Engram rows from packed files instead of memory.

Diagnosis: the two Engram tables of DeepSeek-V4.1-Flash are 189 GiB. SGLang keeps them in device
or pinned host memory; on a Spark both are the same 128 GB, so no fleet of up to four can hold
them beside the weights. A token needs 48 rows of 264 bytes.

Measurement: none on a Spark yet. On a CPU engine with the demo model, log-probabilities equal
those of the in-memory tables bit for bit (tests/engine). On H200 GPUs rows in CUDA graphs are exact
(docs/measurements/engram-h200.md).

Losslessness: exact. Rows are the checkpoint's own bytes, dequantised by the engine's formula;
each row has exactly one owner, so the sum over ranks adds zeros to it.

Scope: SGLang 0.5.21 and 0.5.23; layouts ``columns``, ``equal`` and ``strided``; one
tensor-parallel rank per node. On CUDA the rows are read by a host function between two copies,
so that a lookup can stand in a CUDA graph once its number of ids was seen before the capture.
A shard that is missing, truncated, of another rank, layout or table, or that its manifest does
not describe, refuses to start. A read that fails while serving ends the process.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparkserve.adapters.meta import AdapterMeta, Target
from sparkserve.model.base import Model

EMBEDDING = "sglang.srt.layers.engram.EngramEmbedding"


class Settings(Model):
    """Settings of ``[adapters.engram_rows]``."""

    engine: Literal["auto", "io_uring", "pread"] = "auto"
    """How rows are read; ``auto`` takes io_uring where the kernel allows it."""
    queue_depth: int = Field(default=128, ge=1, le=4096)
    """Reads in flight per layer with io_uring."""
    io_threads: int = Field(default=32, ge=1, le=512)
    """Reading threads per layer with pread."""
    gap_bytes: int = Field(default=4096, ge=0)
    """Rows that lie at most this far apart are fetched by one read."""
    cache_gib: float = Field(default=0, ge=0)
    """Memory for rows that were read before, per rank; the layers share it equally."""
    cache_ways: int = Field(default=8, ge=1, le=16)
    """Places that a row may take in the cache."""
    gather_from: Literal["device", "pinned"] = "device"
    """CUDA only: where the gather kernel reads the rows. ``pinned`` leaves out the copy to the
    device, for GPUs that share the host's memory; not measured on a Spark yet."""
    manifest: Literal["if_present", "required"] = "if_present"
    """Whether shards without a manifest are served, with a warning, or refused."""
    stats_interval_s: float = Field(default=1.0, ge=1.0)
    """How often the counters are written to the run directory while they change."""


META = AdapterMeta(
    name="engram_rows",
    summary="Engram rows are read from packed files instead of held in memory",
    settings=Settings,
    targets=(
        Target(
            path=EMBEDDING,
            kind="replace",
            digests={
                "0.5.21": ("d30d902d6073f5df988daeb5ddbc30813b4643502c04e95b1efe65edf980aa20",),
                "0.5.23": ("6faf7e5e47c025fdf250d242d64febf77004499610c24bb3fd4d4de4c6f045e9",),
            },
        ),
    ),
    provides=("engram.rows",),
)
