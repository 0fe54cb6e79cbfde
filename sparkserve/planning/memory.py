"""The unified-memory plan: what every rank takes from one pool, what is left, what breaks.

Pure. Everything that is wanted stands in a ``MemoryWish``; the plan is a model of terms and
verdicts that can be printed, compared and recorded. Sources of the figures stand with them.
"""

from __future__ import annotations

from sparkserve.planning import memory_formulas as formulas
from sparkserve.planning.memory_types import (
    MemoryPlan,
    MemoryTerm,
    MemoryWish,
    NodeMemory,
    Payer,
    RankMemory,
    When,
)
from sparkserve.planning.memory_verdicts import judge

_DEFAULT_FRACTION = 0.88
"""[assumption] SGLang chooses by GPU size and batch; near this on a large GPU."""


def build(wish: MemoryWish) -> MemoryPlan:
    """Plan the memory of every rank and judge it."""
    fraction = wish.fraction if wish.fraction is not None else _DEFAULT_FRACTION
    load = _load_terms(wish)
    loaded = _sum(load)
    budgets = [_budget(wish, node, loaded, fraction) for node in wish.nodes]
    tokens, note = _pool_tokens(wish, budgets)
    ranks = tuple(
        _rank(wish, rank, load, (loaded, budgets[rank], tokens)) for rank in range(wish.ranks)
    )
    pin = wish.kv_tokens or wish.context_tokens
    per_token = wish.kv_bytes
    need = None
    if wish.engine == "vllm":
        need = max(fraction * node.total_gib for node in wish.nodes)
    elif loaded is not None and pin and per_token:
        pool = formulas.kv_gib(pin, per_token)
        # The engine's own check, and what is taken at the same time while serving.
        serving = _sum(_serve_terms(wish, head=True)) or 0.0
        need = max(
            formulas.needed_gib(loaded, pool, fraction, wish.swa_gib),
            loaded + pool + wish.swa_gib + serving,
        )
    plan = MemoryPlan(
        wish=wish, ranks=ranks, fraction=fraction,
        fraction_note="" if wish.fraction is not None else "the engine's own choice, assumed",
        pool_tokens=tokens, pool_note=note, need_gib=need,
    )  # fmt: skip
    return plan.model_copy(update={"verdicts": judge(plan)})


def _sum(terms: list[MemoryTerm]) -> float | None:
    sizes = [term.gib for term in terms]
    return None if any(size is None for size in sizes) else sum(size or 0.0 for size in sizes)


def _load_terms(wish: MemoryWish) -> list[MemoryTerm]:
    """What every rank allocates between the engine's two readings of free memory."""
    if wish.measured_load_gib is not None:
        note = f"learned from {wish.measured_in}: weights, draft and NCCL together"
        return [_term("weights", "weights, draft, NCCL", wish.measured_load_gib, "load", note)]
    size, how = wish.model.weights(wish.ranks)
    terms = [_term("weights", "weights", size, "load", how)]
    if wish.speculation and wish.model.draft_gib:
        terms.append(_term("draft", "draft", wish.model.draft_gib, "load", "published"))
    if wish.ranks > 1 and wish.device == "cuda":
        how = "1 MiB buffers, 8 channels" if wish.nccl_tuned else "512 connections x 9.19 MiB"
        size = formulas.nccl_gib(tuned=wish.nccl_tuned)
        terms.append(_term("nccl", "NCCL buffers", size, "load", how))
    if wish.engram_in_memory and wish.model.engram_rows:
        size = formulas.tables_gib(wish.model.engram_rows, wish.ranks)
        how = "no adapter engram_rows reads them from files"
        terms.append(_term("tables", "Engram tables", size, "load", how))
    if wish.engram_scales_pinned and wish.model.engram_rows:
        size = formulas.scales_gib(wish.model.engram_rows, wish.ranks)
        terms.append(_term("scales", "Engram scales", size, "load", "8 B for each own row"))
    return terms


def _budget(
    wish: MemoryWish, node: NodeMemory, loaded: float | None, fraction: float
) -> float | None:
    if loaded is None:
        return None
    if wish.engine == "vllm":
        return fraction * node.total_gib - loaded
    return formulas.kv_budget_gib(node.available_gib, loaded, fraction)


def _pool_tokens(wish: MemoryWish, budgets: list[float | None]) -> tuple[int | None, str]:
    """Tokens of the pool: the pin, cut to what the smallest budget holds."""
    per_token = wish.kv_bytes
    if per_token is None or any(budget is None for budget in budgets):
        return wish.kv_tokens, "pinned" if wish.kv_tokens else "not known"
    smallest = min(budget for budget in budgets if budget is not None)
    holds = formulas.kv_tokens(smallest - wish.swa_gib, per_token)
    if wish.kv_tokens is None:
        return holds, "all that the budget holds"
    if wish.kv_tokens <= holds:
        return wish.kv_tokens, "pinned"
    return holds, f"the pin of {wish.kv_tokens} tokens does not fit"


def _rank(
    wish: MemoryWish,
    rank: int,
    load: list[MemoryTerm],
    known: tuple[float | None, float | None, int | None],
) -> RankMemory:
    loaded, budget, tokens = known
    terms = [*load, *_pool_terms(wish, tokens), *_serve_terms(wish, head=rank == 0)]
    node = wish.nodes[rank]
    taken = _sum(terms)
    return RankMemory(
        rank=rank, node=node.node, available_gib=node.available_gib, total_gib=node.total_gib,
        source=node.source, terms=tuple(terms), loaded_gib=loaded, budget_gib=budget,
        free_gib=None if taken is None else node.available_gib - taken,
    )  # fmt: skip


def _pool_terms(wish: MemoryWish, tokens: int | None) -> list[MemoryTerm]:
    per_token = wish.kv_bytes
    size = None if per_token is None or tokens is None else formulas.kv_gib(tokens, per_token)
    note = wish.model.kv_note if per_token is None else (
        f"{tokens:,} tokens x {per_token:,.2f} B" if tokens is not None else "no pin, no budget"
    )  # fmt: skip
    terms = [_term("kv", "KV pool", size, "pool", note)]
    if wish.swa_gib:
        how = "published" if wish.measured_swa_gib is None else f"learned from {wish.measured_in}"
        terms.append(_term("swa", "sliding-window pool", wish.swa_gib, "pool", how))
    return terms


def _serve_terms(wish: MemoryWish, *, head: bool) -> list[MemoryTerm]:
    """What must still be free when the pools are there."""
    if wish.engine != "sglang" or wish.device != "cuda":
        return []
    requests = wish.requests
    terms = []
    if wish.cuda_graphs:
        learned = wish.measured_graphs_gib
        size = formulas.graphs_gib(requests) if learned is None else learned
        note = f"5.6 GB at 16 requests, here {requests}" if learned is None else (
            f"learned from {wish.measured_in}"
        )  # fmt: skip
        terms.append(_term("graphs", "CUDA graphs", size, "serve", note))
    if wish.model.indexer:
        chunk, prefix = wish.chunk, wish.prefix
        size = formulas.transient_gib(chunk, prefix, chunked=wish.chunked_indexer)
        note = (
            "in blocks of at most 2 GiB" if wish.chunked_indexer else f"14 B x {chunk} x {prefix}"
        )
        terms.append(_term("transient", "prefill transient", size, "serve", note))
    if wish.engram_cache_gib:
        note = "filled while serving; 2 layers share it"
        terms.append(_term("cache", "Engram row cache", wish.engram_cache_gib, "serve", note))
    if head:
        note = "HTTP server, tokenizer, detokenizer"
        terms.append(_term("head", "head's processes", formulas.HEAD_OVERHEAD_GIB, "serve", note))
    return terms


def _term(term_id: str, title: str, gib: float | None, when: When, note: str) -> MemoryTerm:
    payer: Payer = "head" if term_id == "head" else "all"
    return MemoryTerm(id=term_id, title=title, gib=gib, when=when, payer=payer, note=note)
