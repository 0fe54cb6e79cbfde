"""Whether records of evaluations and benchmarks mean what they seem to mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.replies import thinks, told
from sparkserve.checks.scene import Scene, evidence
from sparkserve.evals.agreement import agreement
from sparkserve.evals.tally import Scored, Tally
from sparkserve.facts.eval_records import (
    BenchRecord,
    BenchRecords,
    EvalPlan,
    EvalSample,
    EvalSamples,
    RepeatedRuns,
)
from sparkserve.facts.replies import Exchanges, MeasuredUsage, Replies
from sparkserve.facts.reply_forms import Usage
from sparkserve.model.reading import Reading

_RECORDS = "records of evaluations and benchmarks lie with whoever ran them, not on a node"
_LIVE = "only a server's reply shows it, and doctor sends none"
_SHORT_TOKENS = 64
"""Requests that measure prefill ask for hardly any output [proposal]."""


def _found(node: str | None, observed: str, expected: str, reading: Reading) -> Judgement:
    return Judgement(
        node, "fail", observed=observed, expected=expected, evidence=evidence([reading])
    )


def scored(samples: tuple[EvalSample, ...], *, tools: bool) -> list[Scored]:
    """Samples with a verdict, ready to be counted.

    tools: whether the tasks are given tools, where a sample does not say.
    """
    return [
        Scored(
            correct=one.correct,
            finish=one.finish or "unknown",
            extractable=one.extractable,
            uses_tools=tools if one.uses_tools is None else one.uses_tools,
        )
        for one in samples
        if one.correct is not None
    ]


def _tallies(scene: Scene) -> Iterator[tuple[str | None, Tally, Reading]]:
    tools = any(plan.tools for _, plan, _ in scene.seen(EvalPlan))
    for node, fact, reading in scene.seen(EvalSamples):
        listed = scored(fact.samples, tools=tools)
        if listed:
            yield node, Tally.of(listed), reading


def _share(value: float | None) -> str:
    if value is None:
        return "of nothing"
    digits = 0 if round(value * 100, 6).is_integer() else 1
    return f"{value * 100:.{digits}f} %"


def _finish(scene: Scene) -> Iterator[Judgement]:
    for node, tally, reading in _tallies(scene):
        rows = "; ".join(
            f"{finish}: {row['correct']} correct, {row['wrong']} wrong, {row['empty']} empty"
            for finish, row in tally.table().items()
        )
        parts = [f"{tally.correct} correct of {tally.total}"]
        if tally.correct_at_cap:
            parts.append(f"{tally.correct_at_cap} correct with length")
        if tally.empty_at_stop:
            parts.append(f"{tally.empty_at_stop} empty with stop")
        if tally.truncated:
            parts.append(f"{tally.truncated} truncated, to be run again at a larger cap")
        observed = f"{', '.join(parts)} ({rows})"
        if len(parts) == 1:
            yield passed(node, observed)
            continue
        found = _found(node, observed, "content scored first, then split by finish_reason", reading)
        yield replace(found, verdict="VALUES")


def _routed(scene: Scene) -> Iterator[Judgement]:
    for node, tally, reading in _tallies(scene):
        if not tally.routed:
            continue
        right = f"{tally.correct} of {tally.attempted} attempted"
        found = _found(
            node,
            f"pooled {_share(tally.pooled)} ({tally.correct} of {tally.total}), conditional "
            f"{_share(tally.conditional)} ({right}), routed {tally.routed}",
            "replies that ended in tool_calls in a bucket of their own",
            reading,
        )
        yield replace(found, verdict="VALUES")


def _mode(scene: Scene) -> Iterator[Judgement]:
    plans = {fact.thinking for _, fact, _ in scene.seen(EvalPlan) if fact.thinking is not None}
    if len(plans) != 1:
        return
    planned = plans.pop()
    thoughts: list[tuple[bool, str | None, Reading]] = [
        (one.thought, node, reading)
        for node, fact, reading in scene.seen(EvalSamples)
        for one in fact.samples
        if one.thought is not None
    ]
    thoughts += [(thinks(one.reply), one.node, one.reading) for one in told(scene)]
    if not thoughts:
        return
    used = sum(thought for thought, _, _ in thoughts)
    switch = "on" if planned else "off"
    observed = f"thinking was planned {switch}, {used} of {len(thoughts)} samples hold reasoning"
    _, node, reading = next((one for one in thoughts if one[0] != planned), thoughts[0])
    # One item may need no thought; a model that never thinks was not told to.
    if (used and not planned) or (planned and not used):
        expected = f"thinking {switch} in every sample"
        yield replace(_found(node, observed, expected, reading), verdict="INVALID")
    else:
        yield passed(node, observed)


def missing_of(record: BenchRecord) -> tuple[str, ...]:
    """What a decode speed lacks to be compared with another one."""
    if record.prefill:
        return ()
    lacks = [] if record.prompt_class else ["prompt_class"]
    if record.speculative is not False:
        lacks += [] if record.acceptance is not None else ["acceptance"]
        lacks += [] if record.steps_per_s is not None else ["steps_per_s"]
    return tuple(lacks)


def _bench(scene: Scene) -> Iterator[Judgement]:
    for node, fact, reading in scene.seen(BenchRecords):
        lacking = [(one, lacks) for one in fact.records if (lacks := missing_of(one))]
        for record, lacks in lacking[:8]:
            speed = f"{record.tokens_per_s:g} tok/s"
            of_class = f" of {record.prompt_class} prompts" if record.prompt_class else ""
            found = _found(
                node,
                f"{speed}{of_class}: {' and '.join(lacks)} missing",
                "acceptance, steps/s and the class of the prompts beside every speed",
                reading,
            )
            yield replace(found, verdict="INCOMPLETE")
        if not lacking:
            yield passed(node, f"{len(fact.records)} speeds with acceptance and steps/s")


def _prefill(scene: Scene) -> Iterator[Judgement]:
    measured: list[tuple[str | None, Usage, Reading, bool]] = [
        (node, usage, reading, fact.of_prefill or _short(usage))
        for node, fact, reading in scene.seen(MeasuredUsage)
        for usage in fact.usages
    ]
    measured += [
        (node, Usage(prompt_tokens=one.prompt_tokens, cached_tokens=one.cached_tokens), reading,
         True)
        for node, records, reading in scene.seen(BenchRecords)
        for one in records.records if one.prefill
    ]  # fmt: skip
    for node, usage, reading, of_prefill in measured:
        if usage.cached_tokens is None:
            continue
        prompt = f"{usage.prompt_tokens:,}" if usage.prompt_tokens is not None else "unknown"
        observed = f"{usage.cached_tokens:,} of {prompt} prompt tokens came from the prefix cache"
        if not usage.cached_tokens:
            yield passed(node, observed)
            continue
        found = _found(node, observed, "0 cached tokens where prefill is measured", reading)
        yield replace(found, verdict="INVALID", severity=None if of_prefill else "info")


_PROBED = re.compile(r"(?i)logprob|\becho\b")
"""Words of a server that refuses a probe of log-probabilities."""


def _short(usage: Usage) -> bool:
    return usage.completion_tokens is None or usage.completion_tokens <= _SHORT_TOKENS


def _loglikelihood(scene: Scene) -> Iterator[Judgement]:
    for one in told(scene):
        reply = one.reply
        probes = "probe" in one.answer.purpose or "logprob" in one.answer.purpose
        asked = one.asked.wants_logprobs or reply.logprobs != "absent" or probes
        if not reply.is_completion or not asked:
            continue
        if reply.logprobs == "numbers":
            yield passed(one.node, "log-probabilities of the prompt's tokens came back")
            continue
        yield Judgement(
            one.node, "skipped",
            observed="HTTP 200 without log-probabilities of tokens: logprobs is "
            f"{'missing' if reply.logprobs == 'absent' else 'null or empty'}",
            expected="token_logprobs with numbers",
            why="the server does not do echo with logprobs, so a score of 0 would be ours, not "
            "the model's",
            evidence=evidence([one.reading]), verdict="UNSUPPORTED",
        )  # fmt: skip
    for node, fact, reading in scene.seen(Exchanges):
        for exchange in fact.exchanges:
            if 400 <= (exchange.status or 0) < 500 and _PROBED.search(exchange.message):
                yield Judgement(
                    node, "skipped", observed=f"HTTP {exchange.status}: {exchange.message}",
                    expected="token_logprobs with numbers",
                    why="the server refuses echo with logprobs",
                    evidence=evidence([reading]), verdict="UNSUPPORTED",
                )  # fmt: skip


def _floor(scene: Scene) -> Iterator[Judgement]:
    for node, fact, reading in scene.seen(RepeatedRuns):
        both = agreement(fact.runs)
        scores = " and ".join(str(score) for score in both.scores)
        observed = (
            f"agreement {both.agreeing}/{both.items} = {_share(both.share)}; scores {scores}: "
            f"a delta of {both.delta_items} of {both.items} items is within the floor of "
            f"{both.floor_items}"
        )
        if not both.floor_items:
            yield passed(node, observed)
            continue
        expected = f"differences above {both.floor_items} items before anything is concluded"
        yield replace(_found(node, observed, expected, reading), verdict="VALUES")


CHECKS: tuple[Check, ...] = (
    Check(
        "EVAL.FINISH", "EVL_FINISH_REASON", "answers are scored before their finish_reason",
        ("eval",), "warning", "config", (EvalSamples,), _finish,
        why="a reply at the cap may hold a whole answer and a clean stop may hold none, so the "
        "reason of the end is no verdict",
        fix="score the content, then split by finish_reason; run truncated items again at a "
        "larger cap",
        symptom="scores move by whole points with max_tokens",
        text_only=_RECORDS,
    ),
    Check(
        "EVAL.ROUTED", "EVL_TOOLCALL_BUCKET", "calls of tools are no wrong answers", ("eval",),
        "warning", "config", (EvalSamples,), _routed,
        why="a task of one turn that ends in a call of a tool was not attempted; counted as wrong "
        "it lowers the score of any server that has tools attached",
        fix="count finish_reason tool_calls as routed and report pooled and conditional shares",
        symptom="the score falls once tools are attached, with no more wrong answers than before",
        text_only=_RECORDS,
    ),
    Check(
        "EVAL.LOGLIKELIHOOD", "EVL_LOGLIKELIHOOD_UNSUPPORTED",
        "log-probabilities of prompts are there", ("eval",), "warning", "config",
        (Replies, Exchanges),
        _loglikelihood,
        why="multiple choice by likelihood needs echo with logprobs, which not every server has",
        fix="leave loglikelihood tasks out, or ask for the letter of the answer instead",
        symptom="multiple choice tasks hang or score about 0 while others are well",
        text_only=_LIVE,
    ),
    Check(
        "EVAL.MODE", "EVL_MODE_CONTRADICTION", "samples were made in the planned mode", ("eval",),
        "error", "config", (EvalPlan, EvalSamples), _mode,
        why="the run compares another mode than its name says: the switch was ignored",
        fix="send every spelling of the switch, check the first reply, and run again",
        symptom="two deployments differ by points with thinking off, and one of them thinks",
        text_only=_RECORDS,
    ),
    Check(
        "BENCH.COMPLETE", "EVL_SPEC_FRIENDLY", "speeds tell their acceptance", ("bench",),
        "warning", "config", (BenchRecords,), _bench,
        why="speed is committed tokens per step times steps per second; the first depends on how "
        "easily the prompt's answer is guessed",
        fix="record acceptance and steps/s, for prose, code and structured prompts apart",
        symptom="two honest benchmarks of one server differ by a factor of two",
        text_only=_RECORDS,
    ),
    Check(
        "BENCH.PREFILL", "EVL_CACHED_PREFILL", "measured prefill was computed", ("bench",),
        "error", "config", (MeasuredUsage, BenchRecords), _prefill,
        why="what the prefix cache served was not computed, so its time is no prefill",
        fix="use a new random prompt for every repetition, require cached_tokens 0, and leave out "
        "the first, cold one",
        symptom="prefill is impossibly fast from the second repetition on",
        text_only=_RECORDS,
    ),
    Check(
        "EVAL.FLOOR", "EVL_AGREEMENT_FLOOR", "differences are larger than repeating alone makes",
        ("eval",), "info", "config", (RepeatedRuns,), _floor,
        why="kernels, batches and speculation reorder sums: equal weights differ by some items",
        fix="run everything twice, store the agreement, and call a smaller difference noise",
        symptom="same weights and items, half a point apart on another day",
        text_only=_RECORDS,
    ),
)  # fmt: skip
