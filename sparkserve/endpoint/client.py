"""A client of the OpenAI-compatible endpoint, about as much of it as sparkserve asks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparkserve.endpoint.metrics import Sample, parse_metrics
from sparkserve.endpoint.replies import ChatDelta, ChatReply, read_delta, read_reply
from sparkserve.errors import EndpointError
from sparkserve.transport.http import HttpClient, message_of

_QUICK_S = 10.0
_CHAT_S = 600.0
_DONE = "[DONE]"


class Endpoint:
    """One endpoint; safe to use from several threads; holds no open connection between calls.

    base_url: ends in ``/v1``. api_key: bearer token. model: name sent with every request; None
        asks the endpoint once for what it serves.

    Every method raises EndpointError when there is no answer (status None) or an error.
    """

    def __init__(
        self, base_url: str, api_key: str | None = None, *, model: str | None = None
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._api = HttpClient(self.base_url, api_key)
        self._server = HttpClient(self.base_url.removesuffix("/v1"), api_key)
        self._model = model

    def health(self, *, timeout_s: float = _QUICK_S) -> bool:
        """Whether ``/health`` says 200; proves a listening server, not a working model.

        Raises:
            EndpointError: no answer at all.
        """
        return self._server.status("/health", timeout_s=timeout_s) == 200

    def models(self, *, timeout_s: float = _QUICK_S) -> tuple[str, ...]:
        """Names of the served models."""
        data = self._api.get_json("/models", timeout_s=timeout_s)
        rows = data.get("data") if isinstance(data, Mapping) else None
        if not isinstance(rows, list):
            raise EndpointError(f"{self.base_url}/models has no list of models", status=200)
        return tuple(str(row["id"]) for row in rows if isinstance(row, Mapping) and "id" in row)

    def metrics(self, *, timeout_s: float = _QUICK_S) -> list[Sample]:
        """The engine's own counters, from ``/metrics``."""
        return parse_metrics(self._server.get_text("/metrics", timeout_s=timeout_s))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        temperature: float | None = None,
        timeout_s: float = _CHAT_S,
        extra: Mapping[str, Any] | None = None,
    ) -> ChatReply:
        """One whole answer.

        temperature: None leaves the engine's default. extra: further fields of the request,
            such as ``{"seed": 1}``. timeout_s: for the whole exchange.
        """
        body = self._body(messages, max_tokens, temperature, extra)
        return read_reply(self._api.post_json("/chat/completions", body, timeout_s=timeout_s))

    def chat_stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        temperature: float | None = None,
        timeout_s: float = _CHAT_S,
        extra: Mapping[str, Any] | None = None,
    ) -> Iterator[ChatDelta]:
        """An answer piece by piece; the last piece has ``finish_reason`` and ``usage``.

        timeout_s: longest silence between two pieces.

        Raises:
            EndpointError: also after pieces have come: an error event, a broken connection, or
                an end without ``finish_reason``. What came before is then not a whole answer.
        """
        body = self._body(messages, max_tokens, temperature, extra)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        last: ChatDelta | None = None
        usage = None
        for event in self._api.post_events("/chat/completions", body, timeout_s=timeout_s):
            if event.data == _DONE:
                break
            delta = read_delta(self._chunk(event.event, event.data))
            usage = delta.usage or usage
            if delta.finish_reason is not None:
                last = delta
            elif delta.text or delta.reasoning or delta.tool_calls:
                yield delta
        if last is None:
            raise EndpointError(
                f"{self.base_url} ended its answer without finish_reason: it is not whole",
                hint="sparkserve logs",
            )
        yield replace(last, usage=usage)

    def _chunk(self, kind: str, text: str) -> Any:
        try:
            data = json.loads(text)
        except ValueError as error:
            raise EndpointError(
                f"{self.base_url} sent a piece that is no JSON (a cut stream?): {text[:200]}"
            ) from error
        if kind == "error" or (isinstance(data, dict) and data.get("error")):
            inner = data.get("error") if isinstance(data, dict) else None
            code = inner.get("code") if isinstance(inner, dict) else None
            raise EndpointError(
                f"{self.base_url} ended its answer with an error: {message_of(data) or text}",
                status=code if isinstance(code, int) else 200,
                hint="sparkserve logs",
            )
        return data

    def _body(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int,
        temperature: float | None,
        extra: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._served_model(),
            "messages": [dict(message) for message in messages],
            "max_tokens": max_tokens,
        }
        if temperature is not None:
            body["temperature"] = temperature
        return body | dict(extra or {})

    def _served_model(self) -> str:
        if self._model is None:
            served = self.models()
            if not served:
                raise EndpointError(f"{self.base_url} serves no model", status=200)
            self._model = served[0]
        return self._model
