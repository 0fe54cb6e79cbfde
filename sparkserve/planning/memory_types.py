"""Nouns of the memory plan: what is wanted of memory, the terms, the verdicts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparkserve.model.base import Model
from sparkserve.planning import memory_formulas as formulas
from sparkserve.planning.memory_model import ModelFigures

_DEFAULT_REQUESTS = 16
_DEFAULT_CHUNK = 8192
"""[assumption] What the engine takes where the profile says nothing."""
Payer = Literal["all", "head"]
When = Literal["load", "pool", "serve"]
"""``load``: before the engine sizes its pools; ``pool``: the pools; ``serve``: what must still be
free after that."""


class NodeMemory(Model):
    """Memory of the node of one rank."""

    node: str
    available_gib: float
    """MemAvailable before anything is loaded."""
    total_gib: float = formulas.SPARK_TOTAL_GIB
    source: str = "assumed: a headless Spark after a boot"


class MemoryWish(Model):
    """What a launch would ask of memory; None = the engine's own choice."""

    model: ModelFigures
    nodes: tuple[NodeMemory, ...] = Field(min_length=1)
    """Rank 0, which is the head, first."""
    engine: Literal["sglang", "vllm", "light"] = "sglang"
    device: Literal["cuda", "cpu"] = "cuda"
    ep: int = 1
    """Groups that the experts are divided over; it divides the ranks."""
    fraction: float | None = None
    kv_tokens: int | None = None
    context_tokens: int | None = None
    chunk_tokens: int | None = None
    max_running_requests: int | None = None
    speculation: bool = False
    chunked_indexer: bool = False
    nccl_tuned: bool = True
    cuda_graphs: bool = True
    engram_cache_gib: float = 0.0
    engram_scales_pinned: bool = False
    engram_in_memory: bool = False
    """Whether the Engram tables themselves are held in memory."""
    measured_load_gib: float | None = None
    """What loading took in an earlier run, in place of weights, draft, NCCL and scales."""
    measured_graphs_gib: float | None = None
    measured_kv_bytes: float | None = None
    measured_swa_gib: float | None = None
    measured_in: str = ""
    """The run that the measured figures come from."""

    @property
    def ranks(self) -> int:
        """Number of ranks, one per node."""
        return len(self.nodes)

    @property
    def kv_bytes(self) -> float | None:
        """Bytes of one token in the pool, measured before computed; None = not known."""
        return self.measured_kv_bytes or self.model.kv_bytes_per_token

    @property
    def swa_gib(self) -> float:
        """Sliding-window pool, measured before published."""
        return self.model.swa_pool_gib if self.measured_swa_gib is None else self.measured_swa_gib

    @property
    def chunk(self) -> int:
        """Prompt tokens of one prefill step."""
        return self.chunk_tokens or _DEFAULT_CHUNK

    @property
    def prefix(self) -> int:
        """Longest prefix that a chunk may meet."""
        return self.context_tokens or self.model.context_tokens or 0

    @property
    def requests(self) -> int:
        """Requests decoded at once."""
        return self.max_running_requests or _DEFAULT_REQUESTS


class MemoryTerm(Model):
    """One thing that takes memory."""

    id: str
    title: str
    gib: float | None
    """None = not known, which is not 0."""
    when: When
    payer: Payer = "all"
    note: str = ""
    """How the figure is known."""


class RankMemory(Model):
    """The plan of one rank."""

    rank: int
    node: str
    available_gib: float
    total_gib: float
    source: str
    terms: tuple[MemoryTerm, ...]
    loaded_gib: float | None
    budget_gib: float | None
    """What this rank has for KV and sliding-window pool; None = not known."""
    free_gib: float | None
    """What is left while it serves."""

    def gib(self, term: str) -> float:
        """A term's size; 0 where the plan has no such term or does not know it."""
        return next((t.gib or 0.0 for t in self.terms if t.id == term), 0.0)


class Verdict(Model):
    """One judgement about the plan."""

    rule: str
    term: str
    """The term that breaks."""
    level: Literal["refuse", "warn", "unknown"]
    node: str | None
    observed: str
    expected: str
    setting: str | None = None
    """Profile key whose nearest value fits; None = no setting mends it."""
    nearest: str | None = None
    """That value."""

    @property
    def mend(self) -> str | None:
        """The option that sets the nearest value that fits."""
        return None if self.setting is None else f"--set {self.setting}={self.nearest}"


class MemoryPlan(Model):
    """The plan of all ranks."""

    wish: MemoryWish
    ranks: tuple[RankMemory, ...]
    fraction: float
    fraction_note: str = ""
    pool_tokens: int | None
    """Tokens that the pool will hold on every rank; None = not known."""
    pool_note: str = ""
    need_gib: float | None = None
    """MemAvailable that every node needs for this; None = not known."""
    verdicts: tuple[Verdict, ...] = ()

    @property
    def fits(self) -> bool | None:
        """False where the plan is refused; None where a figure is missing for a judgement."""
        levels = {verdict.level for verdict in self.verdicts}
        if "refuse" in levels:
            return False
        return None if "unknown" in levels else True
