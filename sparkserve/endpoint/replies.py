"""What a chat request brings back, read strictly: a broken answer is an error, never a short one.

Pure: takes decoded JSON, knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkserve.errors import EndpointError


@dataclass(frozen=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that came from the engine's cache."""
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class ChatReply:
    """One whole answer."""

    text: str
    reasoning: str
    finish_reason: str
    """``stop``, ``length``, ``tool_calls`` or another reason of the engine."""
    usage: Usage | None
    tool_calls: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class ChatDelta:
    """One piece of a streamed answer; the last one has ``finish_reason`` and ``usage``."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()


def read_reply(data: Any) -> ChatReply:
    """Read a ``chat.completion`` object.

    Raises:
        EndpointError: it is none, or the engine gave the answer up.
    """
    choice = _first_choice(data)
    if choice is None:
        raise EndpointError(f"the answer has no choices: {_shown(data)}", status=200)
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise EndpointError(f"the answer has no message: {_shown(choice)}", status=200)
    return ChatReply(
        text=_text(message, "content"),
        reasoning=_reasoning(message),
        finish_reason=_finished(choice.get("finish_reason")),
        usage=read_usage(data),
        tool_calls=_tool_calls(message),
    )


def read_delta(data: Any) -> ChatDelta:
    """Read a ``chat.completion.chunk`` object; one without choices carries the usage.

    Raises:
        EndpointError: it is none, or the engine gave the answer up.
    """
    choice = _first_choice(data)
    usage = read_usage(data)
    if choice is None:
        return ChatDelta(usage=usage)
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        raise EndpointError(f"a piece of the answer has no delta: {_shown(choice)}", status=200)
    reason = choice.get("finish_reason")
    return ChatDelta(
        text=_text(delta, "content"),
        reasoning=_reasoning(delta),
        finish_reason=None if reason is None else _finished(reason),
        usage=usage,
        tool_calls=_tool_calls(delta),
    )


def read_usage(data: Any) -> Usage | None:
    """Token counts of an answer or a chunk; None where it carries none."""
    usage = data.get("usage") if isinstance(data, Mapping) else None
    if not isinstance(usage, Mapping):
        return None
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(_nested(usage, "prompt_tokens_details", "cached_tokens")),
        reasoning_tokens=_count(
            usage.get("reasoning_tokens")
            or _nested(usage, "completion_tokens_details", "reasoning_tokens")
        ),
    )


def _first_choice(data: Any) -> Mapping[str, Any] | None:
    choices = data.get("choices") if isinstance(data, Mapping) else None
    if not isinstance(choices, list):
        raise EndpointError(f"the answer is no chat completion: {_shown(data)}", status=200)
    if not choices:
        return None
    if not isinstance(choices[0], Mapping):
        raise EndpointError(f"the answer is no chat completion: {_shown(data)}", status=200)
    return choices[0]


def _finished(reason: Any) -> str:
    if not isinstance(reason, str):
        raise EndpointError(f"the answer has finish_reason {reason!r}: it is not whole", status=200)
    if reason in ("abort", "error"):
        raise EndpointError(
            f"the engine gave the answer up (finish_reason {reason})",
            status=200,
            hint="sparkserve logs",
        )
    return reason


def _text(message: Mapping[str, Any], key: str) -> str:
    value = message.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise EndpointError(f"the answer's {key} is {_shown(value)}, expected text", status=200)
    return value


def _reasoning(message: Mapping[str, Any]) -> str:
    # SGLang writes reasoning_content, newer vLLM writes reasoning.
    return _text(message, "reasoning_content") or _text(message, "reasoning")


def _tool_calls(message: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    calls = message.get("tool_calls")
    return tuple(calls) if isinstance(calls, list) else ()


def _nested(data: Mapping[str, Any], outer: str, inner: str) -> Any:
    value = data.get(outer)
    return value.get(inner) if isinstance(value, Mapping) else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
