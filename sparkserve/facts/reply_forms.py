"""Answers of language model servers in their several shapes, as one.

OpenAI chat and completion replies (reasoning under either of its two names), SGLang's own
``/generate``, and the replies of Anthropic's and Ollama's interfaces. Streams: reply_streams.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from sparkserve.facts.jsontext import count, mapping, number, words
from sparkserve.model.base import Model

Finish = Literal["stop", "length", "tool_calls", "other"]
_FINISHES: dict[str, Finish] = {
    "stop": "stop", "end_turn": "stop", "stop_sequence": "stop", "eos": "stop", "eos_token": "stop",
    "length": "length", "max_tokens": "length", "max_output_tokens": "length",
    "max_length": "length", "limit": "length", "model_length": "length",
    "tool_calls": "tool_calls", "tool_use": "tool_calls", "function_call": "tool_calls",
}  # fmt: skip
_THOUGHT = re.compile(r"\s*<think(?:ing)?>(.*?)(?:</think(?:ing)?>|\Z)", re.DOTALL)
_END_OF_THOUGHT = re.compile(r"</think(?:ing)?>")
_REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_text")


class Usage(Model):
    """Token counts; None = the reply does not say, which is not 0."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that came from the engine's cache."""
    reasoning_tokens: int | None = None


class Call(Model):
    """One call of a tool."""

    name: str
    arguments: str
    """JSON text, whole or cut."""


class Reply(Model):
    """One answer, or one of several choices."""

    text: str = ""
    """What the user is shown."""
    reasoning: str = ""
    told_reasoning: bool = False
    """Whether the reply has a place for reasoning, be it empty."""
    raw_tags: bool = False
    """Whether reasoning with its tags stands in the text: nobody took it out."""
    finish: Finish | None = None
    calls: tuple[Call, ...] = ()
    usage: Usage = Usage()
    is_completion: bool = False
    """A completion without roles, such as a probe of log-probabilities uses."""
    logprobs: Literal["absent", "null", "numbers"] = "absent"
    """Of the prompt's tokens, where they were asked for."""


def finish_of(value: Any) -> Finish | None:
    """A reason in our words; None where there is none."""
    if isinstance(value, Mapping):
        value = value.get("type")
    if not isinstance(value, str) or not value.strip():
        return None
    return _FINISHES.get(value.strip().lower(), "other")


def usage_of(data: Mapping[str, Any]) -> Usage:
    """Counts of a ``usage`` object or of one that holds them beside other keys."""
    details = mapping(data.get("prompt_tokens_details")) or mapping(
        data.get("input_tokens_details")
    )
    thought = mapping(data.get("completion_tokens_details")) or mapping(
        data.get("output_tokens_details")
    )
    return Usage(
        prompt_tokens=_first(data, "prompt_tokens", "input_tokens", "prompt_eval_count"),
        completion_tokens=_first(data, "completion_tokens", "output_tokens", "eval_count"),
        cached_tokens=_either(
            count(details.get("cached_tokens")),
            _first(data, "cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens"),
        ),
        reasoning_tokens=_either(
            count(thought.get("reasoning_tokens")), _first(data, "reasoning_tokens")
        ),
    )


def replies_of(data: Mapping[str, Any]) -> Iterator[Reply]:
    """Every choice of one reply; none where the object is no reply."""
    usage = usage_of(mapping(data.get("usage")))
    choices = data.get("choices")
    if isinstance(choices, list):
        yield from (_choice(one, usage) for one in choices if isinstance(one, Mapping))
    elif isinstance(data.get("meta_info"), Mapping) and isinstance(data.get("text"), str):
        meta = data["meta_info"]
        told = {**data, "finish_reason": meta.get("finish_reason")}
        reply = _choice(told, usage_of(meta))
        asked = meta.get("input_token_logprobs")
        yield reply if asked is None else reply.model_copy(update={"logprobs": _numbers(asked)})
    elif isinstance(data.get("message"), Mapping):
        told = {**data, "finish_reason": data.get("finish_reason", data.get("done_reason"))}
        yield _choice(told, usage_of(data) if usage == Usage() else usage)
    elif data.get("role") == "assistant":
        told = {"message": data, "finish_reason": data.get("stop_reason")}
        yield _choice(told, usage)


def _choice(choice: Mapping[str, Any], usage: Usage) -> Reply:
    message = mapping(choice.get("message"))
    is_completion = not message and isinstance(choice.get("text"), str)
    shown, thought = _content(message.get("content") if message else choice.get("text"))
    reasoning = next((words(message[key]) for key in _REASONING if words(message.get(key))), "")
    tagged = _THOUGHT.match(shown)
    told = any(key in message for key in _REASONING)
    return Reply(
        text=_THOUGHT.sub("", shown, count=1) if tagged else shown,
        reasoning=reasoning or thought or (tagged[1].strip() if tagged else ""),
        told_reasoning=told or bool(thought) or tagged is not None,
        raw_tags=bool(tagged or _END_OF_THOUGHT.search(shown)),
        finish=finish_of(choice.get("finish_reason") or choice.get("stop_reason")),
        calls=tuple(_calls(message)),
        usage=usage,
        is_completion=is_completion,
        logprobs=_logprobs(choice),
    )


def _content(content: Any) -> tuple[str, str]:
    """(text, reasoning) of a message's content, which is text or a list of parts."""
    if not isinstance(content, list):
        return words(content), ""
    parts = [part for part in content if isinstance(part, Mapping)]
    shown = "".join(words(part.get("text")) for part in parts if part.get("type") != "reasoning")
    thought = "".join(words(part.get("thinking") or part.get("reasoning")) for part in parts)
    return shown, thought


def _calls(message: Mapping[str, Any]) -> Iterator[Call]:
    listed = message.get("tool_calls")
    calls = [mapping(one) for one in listed] if isinstance(listed, list) else []
    if isinstance(message.get("function_call"), Mapping):
        calls.append({"function": message["function_call"]})
    for call in calls:
        function = mapping(call.get("function")) or call
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments if arguments is not None else {})
        yield Call(name=words(function.get("name")) or "a tool", arguments=arguments)


def _logprobs(choice: Mapping[str, Any]) -> Literal["absent", "null", "numbers"]:
    if "logprobs" not in choice:
        return "absent"
    told = mapping(choice["logprobs"])
    listed = told.get("token_logprobs")
    if listed is None and isinstance(told.get("content"), list):
        listed = [mapping(one).get("logprob") for one in told["content"]]
    return _numbers(listed)


def _numbers(listed: Any) -> Literal["null", "numbers"]:
    """Whether a list holds a number; those of SGLang stand first in a list of their own."""
    entries = listed if isinstance(listed, list) else []
    firsts = [one[0] if isinstance(one, list) and one else one for one in entries]
    return "numbers" if any(number(one) is not None for one in firsts) else "null"


def _first(data: Mapping[str, Any], *keys: str) -> int | None:
    return next((found for key in keys if (found := count(data.get(key))) is not None), None)


def _either(one: int | None, other: int | None) -> int | None:
    return other if one is None else one
