"""Answers of an endpoint: replies, status lines, what was asked, usage of repeated requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sparkserve.facts.exchanges import Exchange, exchanges_of
from sparkserve.facts.jsontext import count, json_objects, json_values, mapping
from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.facts.reply_forms import Reply, Usage, replies_of, usage_of
from sparkserve.facts.reply_streams import whole
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading

_WRAPPERS = ("response", "reply", "body", "answer", "completion")
_THINKING = ("thinking", "enable_thinking", "think", "reasoning", "enable_reasoning")
_CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")


class Asked(Model):
    """What a request asked for, as far as a text tells."""

    thinking: bool | None = None
    thinking_key: str | None = None
    """Under which name thinking was switched, such as ``enable_thinking``."""
    max_tokens: int | None = None
    wants_logprobs: bool | None = None


class SentRequest(Fact):
    """One request that was sent."""

    asked: Asked


class Answered(Model):
    """One reply and what it answers."""

    reply: Reply
    asked: Asked = Asked()
    purpose: str = ""
    """How the text was called, in lower case, such as ``verify reply``."""


class Replies(Fact):
    """Replies of a server."""

    answers: tuple[Answered, ...]


class Exchanges(Fact):
    """What an endpoint answered to requests, by status."""

    exchanges: tuple[Exchange, ...]


class RepeatedUsage(Fact):
    """Token counts of equal requests, in the order in which they were sent."""

    usages: tuple[Usage, ...]


class MeasuredUsage(Fact):
    """Token counts of requests whose time was taken."""

    usages: tuple[Usage, ...]
    of_prefill: bool
    """Whether the text says that prefill was measured."""


def asked_of(data: Mapping[str, Any]) -> Asked:
    """What a request's body, or a part of it, asks for."""
    inner = [data, *(mapping(data.get(key)) for key in ("extra_body", "sampling_params"))]
    kwargs = [mapping(one.get("chat_template_kwargs")) for one in inner]
    flat: dict[str, Any] = {}
    for table in (*kwargs, *reversed(inner)):
        flat |= table
    key = next((key for key in _THINKING if isinstance(flat.get(key), bool)), None)
    cap = next((found for name in _CAPS if (found := count(flat.get(name))) is not None), None)
    logprobs = flat.get("logprobs", flat.get("return_logprob"))
    wants = "echo" in flat or "return_logprob" in flat
    return Asked(
        thinking=flat[key] if key else None,
        thinking_key=key,
        max_tokens=cap,
        wants_logprobs=bool(logprobs) if wants else None,
    )


def asked_in(text: str) -> Asked:
    """What a line of words or a command says about a request: JSON in it, or ``key=value``."""
    try:
        found = json_objects(text)
    except UnusableOutput:
        found = []
    pairs = re.findall(r"\b(\w{4,40})[\"']?\s{0,3}[=:]\s{0,3}(true|false|[0-9]{1,9})\b", text, re.I)
    flat = {key: json.loads(value.lower()) for key, value in pairs if not value.startswith("0")}
    table = dict(flat)
    for one in found:
        table |= one
    return asked_of(table)


def both(one: Asked, other: Asked) -> Asked:
    """What is known of one request; what the first does not say, the second does."""
    update = {k: v for k, v in other.model_dump().items() if getattr(one, k) is None}
    return one.model_copy(update=update)


def _asked(reading: Reading) -> Asked:
    told = Asked()
    for line in (reading.what, reading.command, reading.note, reading.label):
        told = both(told, asked_in(line or ""))
    return told


def _answers(reading: Reading, values: Iterable[Any]) -> Iterator[Answered]:
    asked, purpose = _asked(reading), (reading.what or "").lower()
    for value in values:
        for data in value if isinstance(value, list) else [value]:
            if not isinstance(data, Mapping):
                continue
            own = asked_of(mapping(data.get("request")))
            held = next((data[k] for k in _WRAPPERS if isinstance(data.get(k), Mapping)), data)
            for reply in replies_of(held):
                yield Answered(reply=reply, asked=both(own, asked), purpose=purpose)


def _answer(reading: Reading) -> Iterable[Fact]:
    try:
        values = whole(json_values(reading.text))
    except UnusableOutput:
        values = []
    answers = tuple(_answers(reading, values))
    exchanges = exchanges_of(reading, values, shown=_shown(answers))
    if not answers and not exchanges:
        raise UnusableOutput("neither a reply nor a status of an endpoint")
    if answers:
        yield Replies(answers=answers)
    if exchanges:
        yield Exchanges(exchanges=exchanges)


def _shown(answers: Iterable[Answered]) -> bool | None:
    """Whether something was generated; None where there is no reply at all."""
    replies = [one.reply for one in answers]
    if not replies:
        return None
    return any(one.text.strip() or one.reasoning.strip() or one.calls for one in replies)


def _sent(reading: Reading) -> Iterable[Fact]:
    asked = asked_in(reading.text)
    if asked.max_tokens is None and re.fullmatch(r"\s*[0-9][0-9_,]{0,12}\s*", reading.text):
        asked = asked.model_copy(update={"max_tokens": count(reading.text)})
    if asked == Asked():
        raise UnusableOutput("nothing about output tokens or thinking")
    yield SentRequest(asked=asked)


def _usages(reading: Reading) -> tuple[Usage, ...]:
    found = []
    for data in json_objects(reading.text, "usages", "requests", "results", "data"):
        held = next((data[k] for k in _WRAPPERS if isinstance(data.get(k), Mapping)), data)
        usage = usage_of(mapping(held.get("usage")) or held)
        if usage.prompt_tokens is not None or usage.cached_tokens is not None:
            found.append(usage)
    if not found:
        raise UnusableOutput("no prompt_tokens")
    return tuple(found)


def _repeated(reading: Reading) -> Iterable[Fact]:
    yield RepeatedUsage(usages=_usages(reading))


def _measured(reading: Reading) -> Iterable[Fact]:
    words = f"{reading.what} {reading.note} {reading.label}".lower()
    of_prefill = re.search(r"prefill|bench|ttft", words) is not None
    yield MeasuredUsage(usages=_usages(reading), of_prefill=of_prefill)


_COUNT = r"(?:\d+|two|three|four|five|six|several|the|all)"
_SAME = r"(?:identical|equal|same|repeated|repeats?|repetitions?)"
_URL = r"\S*/(?:v1(?:/\S*)?|health\S*|healthz|ping|readyz?|livez|generate|api/(?:chat|generate))"
READERS: tuple[Reader, ...] = (
    Reader("replies.repeated", (RepeatedUsage,), _repeated, whats=(
        rf".*\b(?:usages?|cached_tokens|replies|token counts)\b.* {_SAME}\b.*",
        rf"(?:{_COUNT} )?{_SAME} requests?\b.*", r"prefix[- ]cache (?:probe|test|replies|usage).*",
    )),
    Reader("replies.measured", (MeasuredUsage,), _measured, whats=(
        r"(?:token |request |prefill |bench\w* |api )?usages?(?: object)?(?: of .*)?",
        r"(?:usage of (?:the )?)?(?:bench\w*|prefill)\b.*\busage",
        r"(?:prefill|ttft) (?:reply|probe|sample|request|measurement)s?",
    )),
    Reader("replies.sent", (SentRequest,), _sent, whats=(
        r"(?:the )?(?:request'?s? |chat )?(?:max_\w*tokens|(?:output|token) (?:cap|limit))"
        r"(?: of .*)?",
        r"(?:the )?(?:chat |sent )?request(?:'s)?(?: body| json| payload)",
    )),
    Reader("replies.answer", (Replies, Exchanges), _answer,
        commands=(rf"curl\b.*?{_URL}.*", rf"(?:wget|http|https|xh)\b.*?{_URL}.*"),
        whats=(
            r"(?!.*\b(?:tail|stream|ssh|arp|ping)\b).*\b(?:reply|replies|responses?)\b.*",
            r"(?:chat |text )?completions?(?: \w+)?",
            rf"(?:curl )?(?:GET|POST|HEAD) {_URL}.*", rf"{_URL}.*",
            r"(?:readiness|liveness|health|endpoint|api)(?: endpoint)? "
            r"(?:checks?|probes?|status|statuses|ladder|states?)\b.*",
        ),
    ),
)  # fmt: skip
"""In the order in which they are tried."""
ASKS: tuple[Ask, ...] = ()
