"""Engram rows from packed files instead of memory.

Diagnosis: the two Engram tables of DeepSeek-V4.1-Flash are 189 GiB. SGLang keeps them in device
or pinned host memory; on a Spark both are the same 128 GB, so no fleet of up to four can hold
them beside the weights. A token needs 48 rows of 264 bytes.

Measurement: none on a Spark yet. On a CPU engine with the demo model, log-probabilities equal
those of the in-memory tables bit for bit (tests/engine).

Losslessness: exact. Rows are the checkpoint's own bytes, dequantised by the engine's formula;
each row has exactly one owner, so the sum over ranks adds zeros to it.

Scope: SGLang 0.5.21 and 0.5.23; layouts ``columns`` and ``equal``; one tensor-parallel rank per
node. The lookup waits for the rows on the calling thread, so it cannot be captured in a CUDA
graph. A shard that is missing, truncated, of another range or of another table refuses to start.
"""

from __future__ import annotations

from pydantic import Field

from sparkserve.adapters.meta import AdapterMeta, Target
from sparkserve.model.base import Model

EMBEDDING = "sglang.srt.layers.engram.EngramEmbedding"


class Settings(Model):
    """Settings of ``[adapters.engram_rows]``."""

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
