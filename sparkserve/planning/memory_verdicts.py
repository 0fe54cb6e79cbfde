"""What a memory plan says: the inequality that fails, its numbers, and the nearest value that fits.

The order is the order of a start: weights, the pools' budget, then what must stay free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from sparkserve.planning import memory_formulas as formulas
from sparkserve.planning.memory_types import MemoryPlan, RankMemory, Verdict

_TOKEN_STEP = 1000
_FRACTION_STEP = 0.005
_LARGEST_FRACTION = 0.97


class _Lever(NamedTuple):
    """A setting that gives memory back, by the size of what it rules."""

    gib: float
    term: str
    setting: str | None = None
    nearest: int | None = None


def judge(plan: MemoryPlan) -> tuple[Verdict, ...]:
    """Every verdict about a plan; where the weights do not fit nothing else is said."""
    found = list(_unknowns(plan))
    weights = list(_weights(plan))
    if weights:
        return (*found, *weights)
    if plan.wish.engine == "vllm":
        found += _vllm_start(plan)
    else:
        known = [rank for rank in plan.ranks if rank.budget_gib is not None]
        if known:
            found += _budget(plan, min(known, key=lambda rank: rank.budget_gib or 0.0))
    found += _transient_rule(plan)
    if not any(verdict.level == "refuse" for verdict in found):
        found += _free(plan)
        found += _outside_pool(plan)
    return tuple(found)


def _unknowns(plan: MemoryPlan) -> Iterator[Verdict]:
    for term in plan.ranks[0].terms:
        if term.gib is None:
            yield Verdict(
                rule="known", term=term.title, level="unknown", node=None,
                observed=f"{term.title}: not known ({term.note})",
                expected="config.json and the files of the checkpoint, or published figures",
            )  # fmt: skip


def _weights(plan: MemoryPlan) -> Iterator[Verdict]:
    wish = plan.wish
    for rank in plan.ranks:
        room = rank.available_gib - formulas.ABORT_FLOOR_GIB
        if rank.loaded_gib is None or rank.loaded_gib <= room:
            continue
        if rank.gib("tables") and rank.loaded_gib - rank.gib("tables") <= room:
            yield _tables(rank, room)
            continue
        others = wish.model.draft_gib + rank.gib("nccl")
        fits = wish.model.fewest_ranks(room - others, multiple_of=wish.ep)
        ranks = f"{wish.ranks} rank{'s' if wish.ranks > 1 else ''}"
        yield Verdict(
            rule="loaded <= available - 1.5", term="weights", level="refuse", node=rank.node,
            observed=f"weights and what loads with them: {rank.loaded_gib:.1f} GiB on each of "
            f"{ranks}, of {rank.available_gib:.1f} GiB available",
            expected=f"at most {room:.1f} GiB" + (f": {fits} ranks" if fits else ""),
            setting="parallel.tp" if fits else None,
            nearest=str(fits) if fits else None,
        )  # fmt: skip


def _tables(rank: RankMemory, room: float) -> Verdict:
    return Verdict(
        rule="loaded <= available - 1.5", term="Engram tables", level="refuse", node=rank.node,
        observed=f"Engram tables in memory take {rank.gib('tables'):.1f} GiB of the "
        f"{rank.loaded_gib or 0:.1f} GiB that this rank loads",
        expected=f"at most {room:.1f} GiB: rows read from packed files",
        setting="adapters.engram_rows", nearest="{}",
    )  # fmt: skip


def _vllm_start(plan: MemoryPlan) -> Iterator[Verdict]:
    """The start check of vLLM: MemAvailable is at least its share of MemTotal."""
    for rank in plan.ranks:
        need = plan.fraction * rank.total_gib
        best = math.floor(rank.available_gib / rank.total_gib / _FRACTION_STEP) * _FRACTION_STEP
        if rank.available_gib < need:
            yield Verdict(
                rule="available >= f x total", term="memory fraction", level="refuse",
                node=rank.node,
                observed=f"{rank.available_gib:.1f} GiB available < {plan.fraction:g} x "
                f"{rank.total_gib:.2f} = {need:.1f} GiB",
                expected=f"a fraction of at most {best:.3f}",
                setting="context.mem_fraction_static", nearest=f"{best:.3f}",
            )  # fmt: skip
        elif rank.budget_gib is not None and rank.budget_gib <= 0:
            yield Verdict(
                rule="loaded < f x total", term="weights", level="refuse", node=rank.node,
                observed=f"{plan.fraction:g} x {rank.total_gib:.1f} = {need:.1f} GiB, of which "
                f"loading takes {rank.loaded_gib or 0:.1f} GiB",
                expected="room for the KV pool",
            )  # fmt: skip


def _budget(plan: MemoryPlan, rank: RankMemory) -> Iterator[Verdict]:
    """The pools: budget against sliding-window pool, context and pin, on the tightest rank."""
    wish, per_token = plan.wish, plan.wish.kv_bytes
    if rank.budget_gib is None or rank.loaded_gib is None or per_token is None:
        return
    budget, swa = rank.budget_gib, wish.swa_gib
    holds = formulas.kv_tokens(budget - swa, per_token)
    wanted = max(wish.kv_tokens or 0, wish.context_tokens or 1)
    need = formulas.kv_gib(wanted, per_token)
    fraction = _fraction_for(rank, need + swa)
    needed = formulas.needed_gib(rank.loaded_gib, need, plan.fraction, swa)
    sums = (
        f"{rank.available_gib:.1f} - {rank.loaded_gib:.1f} - {1 - plan.fraction:.4g} x "
        f"{rank.available_gib:.1f} - 0.1 = {budget:.2f} GiB"
    )
    if budget <= swa:
        least = formulas.least_fraction(rank.available_gib, rank.loaded_gib)
        yield Verdict(
            rule="f > 1 - post/pre, with room for the sliding-window pool",
            term="memory fraction", level="refuse", node=rank.node,
            observed=f"budget {sums}, not more than the sliding-window pool of {swa:g} GiB",
            expected=f"more than {least:.4f}; for {wanted:,} tokens {_said(fraction)}",
            **_fraction_setting(fraction),
        )  # fmt: skip
    elif wish.context_tokens and holds < wish.context_tokens:
        yield Verdict(
            rule="pool >= context", term="KV pool", level="refuse", node=rank.node,
            observed=f"budget {sums} holds {holds:,} tokens < context {wish.context_tokens:,}",
            expected=f"a fraction of {_said(fraction)}, or a context of at most {_down(holds):,}",
            **(_fraction_setting(fraction) or _tokens_setting("context.length_tokens", holds)),
        )  # fmt: skip
    elif wish.kv_tokens and wish.kv_tokens > holds:
        yield Verdict(
            rule="pin <= budget - sliding-window pool", term="KV pin", level="refuse",
            node=rank.node,
            observed=f"{wish.kv_tokens:,} x {per_token:,.2f} B = {need:.2f} GiB > "
            f"{budget - swa:.2f} GiB (budget {sums}, sliding-window pool {swa:g} GiB)",
            expected=f"at most {_down(holds):,} tokens, or {formulas.enough(needed)} GiB available "
            f"before the start, or a fraction of {_said(fraction)}",
            **_tokens_setting("context.kv_tokens", holds),
        )  # fmt: skip


def _fraction_for(rank: RankMemory, pools_gib: float) -> float | None:
    """The smallest fraction, in steps of 0.005, whose budget holds these pools; None = none."""
    exact = formulas.least_fraction(rank.available_gib, rank.loaded_gib or 0.0, pools_gib)
    step = math.ceil(exact / _FRACTION_STEP - 1e-9) * _FRACTION_STEP
    return round(step, 3) if step <= _LARGEST_FRACTION else None


def _fraction_setting(fraction: float | None) -> dict[str, str]:
    if fraction is None:
        return {}
    return {"setting": "context.mem_fraction_static", "nearest": f"{fraction:g}"}


def _tokens_setting(key: str, tokens: int) -> dict[str, str]:
    return {"setting": key, "nearest": str(_down(tokens))} if _down(tokens) else {}


def _said(fraction: float | None) -> str:
    if fraction is None:
        return f"more than {_LARGEST_FRACTION:g}, which leaves the node nothing"
    return f"{fraction:g}"


def _down(tokens: int) -> int:
    """Tokens rounded down to what people write."""
    return tokens // _TOKEN_STEP * _TOKEN_STEP


def _transient_rule(plan: MemoryPlan) -> Iterator[Verdict]:
    """Three ranks without the chunked indexer: chunk x prefix stays below what was seen to run."""
    wish = plan.wish
    product = wish.chunk * wish.prefix
    if wish.ranks != 3 or not wish.model.indexer or wish.chunked_indexer:
        return
    if product <= formulas.TRANSIENT_LIMIT:
        return
    best = int(formulas.TRANSIENT_LIMIT / wish.prefix) // formulas.CHUNK_STEP * formulas.CHUNK_STEP
    yield Verdict(
        rule="chunk x context <= 2.05e8", term="prefill transient", level="refuse",
        node=plan.ranks[0].node,
        observed=f"{wish.chunk} x {wish.prefix:,} = {product:.3g} tokens^2 = "
        f"{plan.ranks[0].gib('transient'):.1f} GiB",
        expected=f"at most {formulas.TRANSIENT_LIMIT:.3g}: a chunk of {best}, or the chunked "
        "indexer",
        setting="context.chunked_prefill_tokens" if best else None,
        nearest=str(best) if best else None,
    )  # fmt: skip


def _free(plan: MemoryPlan) -> Iterator[Verdict]:
    """What is left while serving, on the tightest rank."""
    known = [rank for rank in plan.ranks if rank.free_gib is not None]
    if not known or plan.wish.engine == "vllm" or plan.wish.device == "cpu":
        return
    rank = min(known, key=lambda one: one.free_gib or 0.0)
    free = rank.free_gib or 0.0
    if free >= formulas.COMFORT_FLOOR_GIB:
        return
    refused = free < formulas.ABORT_FLOOR_GIB
    floor = formulas.ABORT_FLOOR_GIB if refused else formulas.COMFORT_FLOOR_GIB
    lever = _lever(plan, rank, floor - free)
    yield Verdict(
        rule=f"free >= {floor:g} GiB", term=lever.term if refused else "page cache",
        level="refuse" if refused else "warn", node=rank.node,
        observed=(f"{free:.1f} GiB left" if free >= 0 else f"{-free:.1f} GiB more than there is")
        + f" while serving, after {_parts(rank)}",
        expected=f"at least {floor:g} GiB, "
        + ("below which the guard stops every rank" if refused else "for the page cache"),
        setting=lever.setting, nearest=None if lever.nearest is None else str(lever.nearest),
    )  # fmt: skip


def _parts(rank: RankMemory) -> str:
    return ", ".join(
        f"{term.title} {term.gib:.1f}" for term in rank.terms if term.gib and term.when != "load"
    )


def _lever(plan: MemoryPlan, rank: RankMemory, short: float) -> _Lever:
    """The setting whose lowering gives back what is short; of several that of the largest term."""
    wish, per_token = plan.wish, plan.wish.kv_bytes
    transient, kv, graphs = rank.gib("transient"), rank.gib("kv"), rank.gib("graphs")
    levers = []
    if transient > short:
        chunk = formulas.largest_chunk(wish.prefix, transient - short)
        levers.append(
            _Lever(transient, "prefill transient", "context.chunked_prefill_tokens", chunk)
        )
    if kv > short and per_token:
        tokens = _down(formulas.kv_tokens(kv - short, per_token))
        if tokens >= (wish.context_tokens or 1):
            levers.append(_Lever(kv, "KV pool", "context.kv_tokens", tokens))
    if graphs > short:
        fewer = int(wish.requests * (graphs - short) / graphs)
        levers.append(_Lever(graphs, "CUDA graphs", "context.max_running_requests", fewer))
    usable = [lever for lever in levers if lever.nearest]
    if usable:
        return max(usable, key=lambda lever: lever.gib)
    named = (
        _Lever(transient, "prefill transient"),
        _Lever(kv, "KV pool"),
        _Lever(graphs, "graphs"),
    )
    return max(named, key=lambda lever: lever.gib)


def _outside_pool(plan: MemoryPlan) -> Iterator[Verdict]:
    """``(1 - f) x total >= transient + NCCL + slack``: what the engine leaves outside its pools."""
    wish, rank = plan.wish, plan.ranks[0]
    if wish.engine != "sglang" or wish.device != "cuda" or not wish.model.indexer:
        return
    share = (1 - plan.fraction) * rank.total_gib
    need = rank.gib("transient") + rank.gib("nccl") + formulas.ABORT_FLOOR_GIB
    if share >= need:
        return
    best = math.floor((1 - need / rank.total_gib) / _FRACTION_STEP) * _FRACTION_STEP
    yield Verdict(
        rule="(1 - f) x total >= transient + NCCL + 1.5", term="outside-pool share", level="warn",
        node=rank.node,
        observed=f"{1 - plan.fraction:.3g} x {rank.total_gib:.1f} = {share:.1f} GiB < "
        f"{need:.1f} GiB",
        expected=f"a fraction of at most {best:.3f}, or a smaller chunk",
        setting="context.mem_fraction_static" if best > 0 else None,
        nearest=f"{best:.3f}" if best > 0 else None,
    )  # fmt: skip
