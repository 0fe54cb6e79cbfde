"""Log lines whose figures decide: the KV pool, and how many draft tokens were accepted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.scene import Scene
from sparkserve.facts.logs import EngineLog, LogLine

DRAFTED_TOKENS = 200
"""Draft tokens after which none accepted is no chance (case ENG_GARBLED_FROM_DRIFT says 200 steps,
each of which drafts at least one)."""
_STEPS_PER_LINE = 40
"""Decode steps between two lines of SGLang (``decode_log_interval``'s default)."""
_GIB = 1 << 30
_FULL = re.compile(r"\bfull_token=(?P<tokens>\d+)")
_PER_TOKEN = re.compile(r"bytes_per_full_token=(?P<value>\d+(?:\.\d+)?)")
_AVAILABLE = re.compile(r"available_bytes=(?P<value>\d+(?:\.\d+)?) ?Gi?B")
_FIXED = re.compile(r"swa_fixed=(?P<value>\d+(?:\.\d+)?) ?Gi?B")
_OTHERS = (
    re.compile(r"\bmax_total_num_tokens=(?P<tokens>\d+)"),
    re.compile(r"KV Cache is allocated\..*#tokens: (?P<tokens>\d+)"),
    re.compile(r"GPU KV cache size: (?P<tokens>[\d,]+) tokens"),
)
_CONTEXT = re.compile(
    r"(?:\b(?:context_len|context_length|max_model_len)\W{1,4}|--(?:context-length|max-model-len)"
    r"[= '\",]{1,4})(?P<tokens>\d+)"
)
_ACCEPTED = re.compile(r"Accepted: (\d+) tokens(?:, Drafted: (\d+) tokens)?")
_RATE = re.compile(r"Decode batch\b.*accept len: (\d+\.\d+), accept rate: (\d+\.\d+)")


class _Pool(NamedTuple):
    """The KV pool as one rank's log tells it."""

    tokens: int
    line: LogLine
    computed: str
    """How the engine came to it; empty where the line does not say."""


def _pool(lines: Sequence[LogLine]) -> _Pool | None:
    """The pool that counts: of full attention where the log says it, else the only one."""
    for regexes in ((_FULL,), _OTHERS):
        for line in reversed(lines):
            for regex in regexes:
                if found := regex.search(line.text):
                    tokens = int(found["tokens"].replace(",", ""))
                    return _Pool(tokens, line, _computed(line.text))
    return None


def _computed(text: str) -> str:
    found = [regex.search(text) for regex in (_AVAILABLE, _FIXED, _PER_TOKEN)]
    if not all(found):
        return ""
    available, fixed, per_token = (float(one["value"]) for one in found if one)
    if not per_token:
        return ""
    tokens = int((available - fixed) * _GIB / per_token)
    return (
        f"; ({available:g} - {fixed:g}) GiB / {per_token:g} B per token = {tokens} from these "
        "rounded figures"
    )


def _kv_pool(scene: Scene) -> Iterator[Judgement]:
    wanted = scene.wanted
    for place, log in scene.each(EngineLog):
        pool = _pool(log.lines)
        if pool is None:
            continue
        texts = (line.text for line in (pool.line, *log.lines))
        told = next((found for text in texts if (found := _CONTEXT.search(text))), None)
        context = wanted.context_tokens or (int(told["tokens"]) if told else None)
        bounds = [("context", context), ("the pinned KV pool", wanted.kv_tokens)]
        short = [(name, n) for name, n in bounds if n is not None and pool.tokens < n]
        if short:
            yield Judgement(
                place or pool.line.place, "fail",
                observed=f"pool {pool.tokens} tokens"
                + "".join(f" < {name} {tokens}" for name, tokens in short[:1])
                + "".join(f", and < {name} {tokens}" for name, tokens in short[1:])
                + pool.computed,
                expected=f"at least {max(tokens for _, tokens in short)} tokens",
                evidence=(pool.line.text.strip()[:200],),
            )  # fmt: skip
        elif any(tokens is not None for _, tokens in bounds):
            yield passed(place or pool.line.place, f"pool {pool.tokens} tokens")


class _Drafts(NamedTuple):
    """Draft tokens, or steps, since the last one that was accepted."""

    drafted: int
    unit: str
    line: str


def _drafts(lines: Sequence[LogLine]) -> _Drafts | None:
    """None where the log does not count drafts, or the newest count had any accepted."""
    drafted, unit, newest = 0, "", ""
    for line in lines:
        if found := _ACCEPTED.search(line.text):
            new, unit = int(found[2] or 0), "draft tokens"
            nothing = int(found[1]) == 0
        elif found := _RATE.search(line.text):
            new, unit = _STEPS_PER_LINE, "decode steps"
            nothing = float(found[1]) <= 1.0 and float(found[2]) == 0.0
        else:
            continue
        drafted = drafted + new if nothing else 0
        newest = line.text
    return _Drafts(drafted, unit, newest) if drafted else None


def _acceptance(scene: Scene) -> Iterator[Judgement]:
    for place, log in scene.each(EngineLog):
        drafts = _drafts(log.lines)
        if drafts is not None and drafts.drafted >= DRAFTED_TOKENS:
            yield Judgement(
                place, "fail",
                observed=f"zero acceptance: 0 of {drafts.drafted} {drafts.unit} accepted",
                expected=f"some accepted within {DRAFTED_TOKENS} {drafts.unit}",
                evidence=(drafts.line.strip()[:200],),
            )  # fmt: skip


_TEXT_ONLY = "a launch follows the logs of its own runs; doctor reads those it is given"
FIGURES: tuple[Check, ...] = (
    Check(
        "LOG.KV_POOL", "MEM_KV_POOL_SMALL", "The KV pool holds a whole context",
        ("watch", "launch"), "error", "memory", (EngineLog,), _kv_pool,
        why="the engine sizes the pool by what memory is left, without a word when one context no "
        "longer fits; long requests are refused or evict each other",
        fix="raise context.mem_fraction_static, free memory before the start, or lower "
        "context.length_tokens: sparkserve plan",
        symptom="The server starts, and long requests are refused, or wait for ever.",
        text_only=_TEXT_ONLY,
    ),
    Check(
        "LOG.ACCEPTANCE", "ENG_GARBLED_FROM_DRIFT", "Draft tokens are accepted",
        ("watch",), "error", "engine", (EngineLog,), _acceptance,
        why="a target that never agrees with its draft computes something else than it was trained "
        "for: ranks with different code, or weights of another build",
        fix="compare image, engine version and checkpoint of all nodes: sparkserve doctor",
        symptom="Answers are one word repeated, and speculation speeds nothing up.",
        text_only=_TEXT_ONLY,
    ),
)  # fmt: skip
