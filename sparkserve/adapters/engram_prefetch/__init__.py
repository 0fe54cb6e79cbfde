"""Engram rows fetched as soon as their ids are known, before the layers ask for them.

Diagnosis: the ids of all Engram layers follow from the tokens alone, yet each layer reads its
rows only when it is reached, and the GPU waits: published profiles of DeepSeek-V4.1-Flash show
2.2 to 2.4 ms of a 48 ms decode step.

Measurement: on an H200 it hid 98 to 100 % of the rows' latency behind 2 ms of work
(docs/measurements/engram-h200.md). None on a Spark yet (published by others: -2.2 ms per step
at four nodes, -2.3 to -2.9 ms at three).

Losslessness: exact. The same store gives the same rows; only the moment differs. ``check`` looks
every row up a second time on the engine's own path and counts the rows that differ.

Scope: SGLang 0.5.21 and 0.5.23, above ``engram_rows``. Rows are used only by the forward they
were fetched for (decode, target verify, extend), for exactly the ids that were hashed. Prefill
in a breakable or piecewise CUDA graph, and attention data or context parallelism, copy or gather
the ids first: there the engine's own path serves.
"""

from __future__ import annotations

from sparkserve.adapters.meta import AdapterMeta, Target
from sparkserve.model.base import Model

HASH = "sglang.srt.layers.engram.EngramHasher.forward"
BOUND = (
    "sglang.srt.model_executor.model_runner_components.ngram_embedding_manager."
    "NgramEmbeddingManager.from_model"
)


class Settings(Model):
    """Settings of ``[adapters.engram_prefetch]``."""

    check: bool = False
    """Look every row up twice and count the rows that differ; costs what prefetching gains."""


META = AdapterMeta(
    name="engram_prefetch",
    summary="Engram rows are fetched while the layers before them compute",
    settings=Settings,
    targets=(
        Target(
            path=HASH,
            kind="wrap",
            digests={
                "0.5.21": ("cd6816227cf2b1071299d36b36a9855e6c4a4c02ce7c5b714b4856ae5b7df17c",),
                "0.5.23": ("1d4481464abfed3b0ec3960fef6c4df69bb3952a804a1df7fedc8fbaf57c1277",),
            },
        ),
        Target(
            path=BOUND,
            kind="wrap",
            digests={
                "0.5.21": ("475236150fa3b20fe0e9b041375801f3345c056268d09c17e1a2440074f1fe27",),
                "0.5.23": ("6723b9c0c5510a9b2afc04cba21e0a529a2ac806d5f319c6bca2f8a6c8995882",),
            },
        ),
    ),
    after=("engram_rows",),
    needs=("engram_rows",),
    provides=("engram.prefetch",),
)
