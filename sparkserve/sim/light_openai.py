"""OpenAI shapes of the light engine: requests read, answers and chunks written.

Fields and their order follow SGLang 0.5.23. Must not know sockets.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from sparkserve.sim.light_answers import (
    Answerer,
    Generation,
    Wish,
    content_text,
    last_user_text,
    tokens_of,
)
from sparkserve.sim.light_log import ENGINE_VERSION
from sparkserve.sim.light_options import Options

_TEMPLATE_TOKENS = 4
"""Tokens that the chat template adds to each message."""

Kind = Literal["chat", "text"]


class BadRequest(Exception):
    """The request cannot be served; SGLang answers 400."""

    def answer(self) -> dict[str, Any]:
        """Body of the answer."""
        return {
            "object": "error",
            "message": str(self),
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        }


@dataclass(frozen=True)
class Request:
    """One request, with the answer already decided."""

    kind: Kind
    id: str
    model: str
    prompt_tokens: int
    generation: Generation
    stream: bool
    include_usage: bool


def read_request(kind: Kind, body: bytes, options: Options, answerer: Answerer) -> Request:
    """Read a completion request and decide its answer.

    Raises:
        BadRequest: not JSON, no prompt, or longer than the context.
    """
    try:
        data = json.loads(body)
    except ValueError as error:
        raise BadRequest(f"Invalid JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadRequest("Invalid JSON: expected an object")
    prompt, prompt_tokens = _chat_prompt(data) if kind == "chat" else _text_prompt(data)
    default = options.context_tokens - prompt_tokens if kind == "chat" else 16
    wanted = data.get("max_completion_tokens") or data.get("max_tokens")
    limit = int(wanted or max(0, default))
    if limit + prompt_tokens > options.context_tokens:
        raise BadRequest(
            "Requested token count exceeds the model's maximum context length of "
            f"{options.context_tokens} tokens. You requested a total of {limit + prompt_tokens} "
            f"tokens: {prompt_tokens} tokens from the input messages and {limit} tokens for the "
            "completion. Please reduce the number of tokens in the input messages or the "
            "completion to fit within the limit."
        )
    stop = data.get("stop") or ()
    stops = (stop,) if isinstance(stop, str) else tuple(str(text) for text in stop)
    wish = Wish(prompt, limit, stops, ignore_eos=bool(data.get("ignore_eos")))
    return Request(
        kind=kind,
        id=uuid.uuid4().hex,
        model=str(data.get("model") or options.served_name),
        prompt_tokens=prompt_tokens,
        generation=answerer.generate(wish),
        stream=bool(data.get("stream")),
        include_usage=bool((data.get("stream_options") or {}).get("include_usage")),
    )


def _chat_prompt(data: dict[str, Any]) -> tuple[str, int]:
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("Messages cannot be empty")
    texts = [content_text(m.get("content")) for m in messages if isinstance(m, dict)]
    return last_user_text(messages), sum(len(tokens_of(t)) + _TEMPLATE_TOKENS for t in texts)


def _text_prompt(data: dict[str, Any]) -> tuple[str, int]:
    prompt = data.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise BadRequest("Prompt cannot be empty")
    return prompt, len(tokens_of(prompt))


def _usage(request: Request, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def whole(request: Request, generation: Generation) -> dict[str, Any]:
    """Body of an answer that is not streamed."""
    choice: dict[str, Any] = {"index": 0}
    if request.kind == "chat":
        choice["message"] = {
            "role": "assistant",
            "content": generation.text,
            "reasoning_content": None,
            "tool_calls": None,
        }
    else:
        choice["text"] = generation.text
    choice |= {"logprobs": None, "finish_reason": generation.finish_reason, "matched_stop": None}
    return {
        "id": request.id,
        "object": "chat.completion" if request.kind == "chat" else "text_completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [choice],
        "usage": _usage(request, len(generation.tokens)),
        "metadata": {"weight_version": "default"},
    }


def chunks(request: Request, tokens: Iterator[str]) -> Iterator[str]:
    """Events of a streamed answer, the closing ``[DONE]`` included."""
    if request.kind == "chat":
        yield _chunk(request, {"role": "assistant", "content": ""}, None)
    count = 0
    for token in tokens:
        count += 1
        yield _chunk(request, {"content": token}, None)
    yield _chunk(request, {"content": None}, request.generation.finish_reason)
    if request.include_usage:
        yield json.dumps({**_envelope(request), "choices": [], "usage": _usage(request, count)})
    yield "[DONE]"


def _envelope(request: Request) -> dict[str, Any]:
    return {
        "id": request.id,
        "object": "chat.completion.chunk" if request.kind == "chat" else "text_completion",
        "created": int(time.time()),
        "model": request.model,
    }


def _chunk(request: Request, delta: dict[str, Any], finish_reason: str | None) -> str:
    choice: dict[str, Any] = {"index": 0}
    if request.kind == "chat":
        whole_delta = {"role": None, "content": None, "reasoning_content": None} | delta
        choice["delta"] = {**whole_delta, "tool_calls": None}
    else:
        choice["text"] = delta["content"] or ""
    choice |= {"logprobs": None, "finish_reason": finish_reason, "matched_stop": None}
    return json.dumps({**_envelope(request), "choices": [choice], "usage": None})


def model_list(options: Options) -> dict[str, Any]:
    """Body of /v1/models."""
    card = {
        "id": options.served_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": options.served_name,
        "parent": None,
        "max_model_len": options.context_tokens,
    }
    return {"object": "list", "data": [card]}


def model_info(options: Options) -> dict[str, Any]:
    """Body of /model_info."""
    return {
        "model_path": options.model_path,
        "tokenizer_path": options.model_path,
        "is_generation": True,
        "weight_version": "default",
        "engine_version": ENGINE_VERSION,
    }
