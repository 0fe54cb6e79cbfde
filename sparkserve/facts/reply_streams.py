"""Answers that came as a stream: chunks put together into the reply that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparkserve.facts.jsontext import count, json_values, mapping, words
from sparkserve.facts.probe import UnusableOutput

_TEXTS = ("content", "reasoning_content", "reasoning", "thinking", "reasoning_text")


def whole(values: Iterable[Any]) -> list[Any]:
    """The values of a text, with the chunks of each stream replaced by one reply.

    Chunks belong together by their ``id``; those without one are of one stream. A reply stands
    where its first chunk stood. Values that are no chunks stay as they are.
    """
    found: list[Any] = []
    streams: dict[Any, dict[str, Any]] = {}
    for value in values:
        if not _is_chunk(value, open_stream=bool(streams)):
            found.append(value)
            continue
        name = words(value.get("id"))
        if name not in streams:
            # A last chunk with nothing but counts may lack the id of the others.
            name = next(iter(streams)) if streams and not name else name
        if name not in streams:
            streams[name] = {"choices": []}
            found.append(streams[name])
        _take(streams[name], value)
    return found


def streamed_text(text: str) -> str:
    """What the chunks of a stream say, reasoning first; empty where the text holds none."""
    if '"delta"' not in text:
        return ""
    try:
        replies = whole(json_values(text))
    except UnusableOutput:
        return ""
    messages = [
        mapping(mapping(choice).get("message"))
        for reply in replies
        for choice in mapping(reply).get("choices") or ()
    ]
    keys = (*_TEXTS[1:], _TEXTS[0])
    return "".join(words(message.get(key)) for message in messages for key in keys)


def _is_chunk(value: Any, *, open_stream: bool) -> bool:
    choices = value.get("choices") if isinstance(value, Mapping) else None
    if not isinstance(choices, list):
        return False
    if not choices:
        return open_stream and isinstance(value.get("usage"), Mapping)
    return any("delta" in mapping(choice) for choice in choices)


def _take(reply: dict[str, Any], chunk: Mapping[str, Any]) -> None:
    if isinstance(chunk.get("usage"), Mapping):
        reply["usage"] = chunk["usage"]
    for told in chunk["choices"]:
        part = mapping(told)
        choice = _entry(reply["choices"], part.get("index"), {"message": {"role": "assistant"}})
        message, delta = choice["message"], mapping(part.get("delta"))
        for key in _TEXTS:
            if key in delta:
                message[key] = words(message.get(key)) + words(delta[key])
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            _take_call(message.setdefault("tool_calls", []), mapping(call))
        if part.get("finish_reason") is not None:
            choice["finish_reason"] = part["finish_reason"]


def _take_call(calls: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
    call = _entry(calls, part.get("index"), {"function": {"name": "", "arguments": ""}})
    for key, value in mapping(part.get("function")).items():
        call["function"][key] = words(call["function"].get(key)) + words(value)


def _entry(entries: list[dict[str, Any]], index: Any, fresh: dict[str, Any]) -> dict[str, Any]:
    """The entry of an index, made where it is new; without an index it is the first."""
    wanted = count(index) or 0
    held = next((entry for entry in entries if entry["index"] == wanted), None)
    if held is None:
        held = {"index": wanted, **fresh}
        entries.append(held)
    return held
