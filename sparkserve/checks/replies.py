"""Whether replies of an endpoint are what was asked for, and whether it answers at all."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from sparkserve.checks import ladder
from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.scene import Scene, evidence
from sparkserve.endpoint.plausible import implausible
from sparkserve.facts.rendered import RequestBody
from sparkserve.facts.replies import (
    Answered,
    Asked,
    RepeatedUsage,
    Replies,
    SentRequest,
    asked_of,
    both,
)
from sparkserve.facts.reply_forms import Reply, Usage
from sparkserve.model.reading import Reading

_LIVE = "only a reply shows it: `sparkserve verify` asks the endpoint, doctor asks nothing of it"
_FEW_REPEATS = 8
_MOST_SAME_SHARE = 0.6
"""Share of one token above which an answer is degenerate (case of garbled output)."""
_JUDGED_CHARS = 4000
_UNIT = re.compile(r"(\S.{0,19}?)\1{7,}", re.DOTALL)
_LEAST_PROMPT_TOKENS = 512
"""Below it a prompt may be too short for any page of a prefix cache [proposal]."""


class Told(NamedTuple):
    """One reply with its place, and what its request asked for."""

    node: str | None
    answer: Answered
    asked: Asked
    reading: Reading

    @property
    def reply(self) -> Reply:
        """The reply itself."""
        return self.answer.reply


def told(scene: Scene) -> list[Told]:
    """Every reply; where just one request is known, it is what all replies answer."""
    sent = [fact.asked for _, fact, _ in scene.seen(SentRequest)]
    sent += [asked_of(fact.body) for _, fact, _ in scene.seen(RequestBody)]
    found = []
    for node, replies, reading in scene.seen(Replies):
        for answer in replies.answers:
            asked = both(answer.asked, sent[0]) if len(sent) == 1 else answer.asked
            found.append(Told(node, answer, asked, reading))
    return found


def _failed(one: Told, observed: str, expected: str, fix: str = "") -> Judgement:
    return Judgement(
        one.node, "fail", observed=observed, expected=expected, fix=fix,
        evidence=evidence([one.reading]),
    )  # fmt: skip


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return f'"{line[:60]}..."' if len(line) > 60 else f'"{line}"'


def thinks(reply: Reply) -> bool:
    """Whether a reply holds reasoning, or was charged for some."""
    return bool(reply.reasoning.strip()) or (reply.usage.reasoning_tokens or 0) > 0


def _thinking(scene: Scene) -> Iterator[Judgement]:
    for one in told(scene):
        if one.asked.thinking is not False:
            continue
        key = one.asked.thinking_key or "thinking"
        if not thinks(one.reply):
            yield passed(one.node, f"{key} = false: no reasoning")
            continue
        tokens = one.reply.usage.reasoning_tokens
        shown = _excerpt(one.reply.reasoning) if one.reply.reasoning else f"{tokens} tokens"
        yield _failed(
            one,
            f"{key} = false was ignored: the reply holds reasoning, {shown}",
            f"no reasoning where {key} is false",
            f"let the chat template read {key} as well, or send every spelling that it may read",
        )


def truncated_in_thinking(reply: Reply) -> bool:
    """Whether all the output went into reasoning: no answer to score, and none that is wrong."""
    empty = not reply.text.strip() and not reply.calls
    return reply.finish == "length" and empty and thinks(reply)


def _content(scene: Scene) -> Iterator[Judgement]:
    for one in told(scene):
        if not truncated_in_thinking(one.reply):
            continue
        tokens = one.reply.usage.completion_tokens
        spent = f"all {tokens} tokens" if tokens else "all tokens"
        found = _failed(
            one,
            f"no content, finish_reason length: {spent} went into reasoning",
            "an answer behind the reasoning",
        )
        yield replace(found, verdict="TRUNCATED_IN_THINKING")


def broken_arguments(arguments: str) -> str | None:
    """Why the arguments of a call are no JSON; None where they are, or where there are none."""
    if not arguments.strip():
        return None
    try:
        json.loads(arguments)
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return str(error).partition(":")[0].lower()
    return None


def _tools(scene: Scene) -> Iterator[Judgement]:
    for one in told(scene):
        reply = one.reply
        if not reply.calls:
            continue
        faults = []
        spent, cap = reply.usage.completion_tokens, one.asked.max_tokens
        if spent is not None and cap is not None and spent >= cap and reply.finish != "length":
            faults.append(f"cut at the cap of {cap} tokens and reported as {reply.finish}")
        faults += [
            f"arguments of {call.name} are invalid JSON ({reason})"
            for call in reply.calls
            if (reason := broken_arguments(call.arguments)) is not None
        ]
        if faults:
            yield _failed(one, "; ".join(faults), "whole arguments, or finish_reason length")
        else:
            yield passed(one.node, f"arguments of {len(reply.calls)} tool calls are valid JSON")


def degenerate(text: str) -> str | None:
    """Which token or short unit makes up most of a text; None where none does.

    Notes: judged from eight repeats on, so that short answers and ``no no no`` stay.
    """
    words = text[:_JUDGED_CHARS].split()
    if len(words) >= _FEW_REPEATS:
        word, count = Counter(words).most_common(1)[0]
        if count >= _FEW_REPEATS and count / len(words) > _MOST_SAME_SHARE:
            return f"{word[:20]!r} is {count} of {len(words)} words"
    visible = "".join(words)
    runs = {match[1]: len(match[0]) for match in _UNIT.finditer(visible)}
    unit = max(runs, key=lambda one: runs[one], default=None)
    if unit is not None and runs[unit] > _MOST_SAME_SHARE * len(visible):
        return f"{unit!r} repeats {runs[unit] // len(unit)} times"
    return None


def _garbled(scene: Scene) -> Iterator[Judgement]:
    for one in told(scene):
        text = one.reply.text.strip() or one.reply.reasoning.strip()
        verified = re.search(r"verif|smoke|sanity|greedy", one.answer.purpose) is not None
        reason = degenerate(text)
        if reason is None and verified:
            reason = implausible(text) if text or one.reply.finish != "length" else None
        asked_words = f"{one.answer.purpose} {one.reading.note} {one.reading.command or ''}"
        if reason is None and "capital of France" in asked_words and "Paris" not in text:
            reason = f"the capital of France is said to be {_excerpt(text)}"
        if reason is not None:
            yield _failed(one, f"degenerate output: {reason}", "a plausible answer")
        elif verified:
            yield passed(one.node, f"plausible text: {_excerpt(text)}")


def _parser(scene: Scene) -> Iterator[Judgement]:
    for one in told(scene):
        asked = one.asked.thinking is True
        if one.reply.raw_tags:
            found = _failed(
                one, "reasoning stands in the content, with its tags", "reasoning in its own field"
            )
            yield found if asked else replace(found, severity="warning")
        elif asked and thinks(one.reply):
            yield passed(one.node, "reasoning stands in its own field")
        elif asked and one.reply.finish == "stop" and one.reply.text.strip():
            yield _failed(one, "thinking was asked for and no reasoning came back", "reasoning")


def reuse(usages: Sequence[Usage]) -> tuple[int | None, ...]:
    """Cached tokens of the repeats that must hit: the first request fills, the second may miss."""
    return tuple(usage.cached_tokens for usage in usages[2:])


def _prefix(scene: Scene) -> Iterator[Judgement]:
    for node, fact, reading in scene.seen(RepeatedUsage):
        cached = reuse(fact.usages)
        known = [tokens for tokens in cached if tokens is not None]
        prompt = max((u.prompt_tokens for u in fact.usages if u.prompt_tokens), default=0)
        shown = ", ".join("unknown" if c is None else f"{c:,}"
                          for c in (u.cached_tokens for u in fact.usages))  # fmt: skip
        if any(known):
            yield passed(node, f"cached tokens of {len(fact.usages)} equal requests: {shown}")
        elif known and (prompt == 0 or prompt >= _LEAST_PROMPT_TOKENS):
            yield Judgement(
                node, "fail",
                observed=f"no reuse at all: cached tokens of {len(fact.usages)} equal requests of "
                f"{prompt:,} tokens: {shown}",
                expected="cached tokens from the third request on",
                evidence=evidence([reading]),
            )  # fmt: skip
        else:
            reason = "no request after the second tells its cached tokens"
            if known:
                reason = f"a prompt of {prompt} tokens is too short to tell"
            yield Judgement(node, "unknown", observed=reason, severity="info")


CHECKS: tuple[Check, ...] = (
    *ladder.CHECKS,
    Check(
        "SRV.GARBLED", "ENG_GARBLED_FROM_DRIFT", "answers are language", ("verify", "watch"),
        "error", "engine", (Replies,), _garbled,
        why="an engine built from another commit than was tested answers quickly, and nonsense; "
        "health and speed look well",
        fix="build from the pinned commit, compare image ids over the ranks, then "
        "`sparkserve verify` again",
        symptom="every reply repeats one token from its start while /health says 200",
        text_only=_LIVE,
    ),
    Check(
        "SRV.THINKING", "SRV_THINKING_ALIAS", "thinking can be switched off", ("verify",),
        "error", "config", (Replies,), _thinking,
        why="chat templates read one spelling of the switch and ignore the others silently, so "
        "that scores and latency are those of a model that thinks",
        fix="let the server accept enable_thinking and thinking alike",
        symptom="enable_thinking = false changes nothing",
        text_only=_LIVE,
    ),
    Check(
        "SRV.PARSER", "SRV_REASONING_PARSER_INIT", "reasoning has its own field", ("verify",),
        "error", "engine", (Replies,), _parser,
        why="without a working reasoning parser clients take thoughts for answers",
        fix="start the engine with the model's reasoning parser and look for its line at the start "
        "of the log",
        symptom="answers begin with a think tag, or no reasoning comes back although it was "
        "asked for",
        text_only=_LIVE,
    ),
    Check(
        "SRV.CONTENT", "SRV_CONTENT_NULL", "answers are not cut inside the reasoning",
        ("verify", "eval"), "warning", "config", (Replies,), _content,
        why="the output cap ended the reply before the answer began: it is neither right nor wrong",
        fix="raise max_tokens or lower the reasoning effort, and ask again before scoring",
        symptom="HTTP 200 with empty content; everything is in the reasoning",
        text_only=_LIVE,
    ),
    Check(
        "SRV.TOOLCALL", "SRV_TOOLCALL_TRUNCATED", "tool calls are whole", ("verify", "eval"),
        "error", "engine", (Replies, SentRequest), _tools,
        why="a call that was cut at the output cap is handed out as if it were whole, and sending "
        "it back poisons the conversation",
        fix="drop a call whose arguments are no JSON, keep finish_reason length, raise max_tokens",
        symptom="a tool call with unterminated arguments, then HTTP 400 for the next turn",
        text_only=_LIVE,
    ),
    Check(
        "SRV.PREFIX_CACHE", "SRV_PREFIX_CACHE_ZERO", "repeated prompts come from the cache",
        ("verify",), "warning", "engine", (RepeatedUsage,), _prefix,
        why="without reuse every turn of an agent prefills its whole conversation again",
        fix="keep sliding-window checkpoints (retention interval 4096, a multiple of 128), and "
        "leave the draft model's group out of the prefix match",
        symptom="cached_tokens stays 0 on identical prompts; minutes until the first token",
        text_only=_LIVE,
    ),
)  # fmt: skip
