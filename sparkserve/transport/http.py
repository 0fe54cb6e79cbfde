"""The HTTP door: a small typed client over httpx, which is imported when it is first used.

Never retries, follows no redirects, reads no proxy settings: what the caller asked goes to the
address it named, once. Every failure is an EndpointError; without an answer its status is None.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sparkserve.errors import EndpointError
from sparkserve.transport.sse import EventTooLarge, SseEvent, SseParser

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT_S = 5.0
BODY_LIMIT_BYTES = 64 << 20
"""Largest answer that is kept in memory."""
_ERROR_CHARS = 500


@dataclass(frozen=True)
class BytesReply:
    """An answer whose body comes piece by piece."""

    status: int
    headers: Mapping[str, str]
    """Names in any case."""
    pieces: Iterator[bytes]


@dataclass(frozen=True)
class HttpClient:
    """Requests to one base URL; safe to use from several threads.

    base_url: with or without a closing slash.
    api_key: sent as a bearer token; never part of a message.
    keep_connections: how many stay open between requests, for callers that repeat a request
        whose connection the server had closed meanwhile.
    """

    base_url: str
    api_key: str | None = None
    keep_connections: int = 0

    def __repr__(self) -> str:
        """Without the key."""
        return f"HttpClient({self.base_url!r})"

    def status(self, path: str, *, timeout_s: float) -> int:
        """Status of a GET, whatever it is; the body is not read."""
        with self._response("GET", path, None, timeout_s) as response:
            return int(response.status_code)

    def get_text(self, path: str, *, timeout_s: float) -> str:
        """Body of a GET as text."""
        with self._response("GET", path, None, timeout_s) as response:
            return self._body(response, timeout_s)

    def get_json(self, path: str, *, timeout_s: float) -> Any:
        """Body of a GET as JSON."""
        return self._parsed(path, self.get_text(path, timeout_s=timeout_s))

    def post_json(self, path: str, body: Any, *, timeout_s: float) -> Any:
        """Answer to a POST of JSON, as JSON; ``timeout_s`` limits the whole exchange."""
        with self._response("POST", path, body, timeout_s) as response:
            text = self._body(response, timeout_s)
        return self._parsed(path, text)

    def post_events(self, path: str, body: Any, *, timeout_s: float) -> Iterator[SseEvent]:
        """Server-sent events in answer to a POST of JSON.

        timeout_s: longest silence between two pieces.

        Raises:
            EndpointError: also in the middle, when the connection breaks; the end of the body
                is not judged here.
        """
        with self._response("POST", path, body, timeout_s) as response:
            if response.status_code >= 300:
                self._body(response, timeout_s)
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise EndpointError(
                    f"{self._url(path)} answered with {kind or 'no content type'}, expected "
                    f"text/event-stream: {self._snippet(self._body(response, timeout_s))}",
                    status=response.status_code,
                )
            parser = SseParser()
            try:
                for piece in response.iter_bytes():
                    yield from parser.feed(piece)
            except EventTooLarge as error:
                raise EndpointError(
                    f"{self._url(path)}: {error}", status=response.status_code
                ) from error
            yield from parser.finish()

    @contextmanager
    def get_bytes(
        self, path: str, *, headers: Mapping[str, str], timeout_s: float
    ) -> Iterator[BytesReply]:
        """Answer to a GET, whatever its status, with the body still to be read.

        headers: added to our own; the body comes as the server stores it, never compressed.
        timeout_s: longest silence between two pieces.

        Raises:
            EndpointError: also in the middle, when the connection breaks or stalls.
        """
        with self._response(
            "GET", path, None, timeout_s, {"Accept-Encoding": "identity", **headers}
        ) as response:
            yield BytesReply(response.status_code, response.headers, response.iter_raw())

    def close(self) -> None:
        """Close the connections that were kept."""
        if self.keep_connections:
            self._client.close()

    @cached_property
    def _client(self) -> httpx.Client:
        import httpx

        headers = {"User-Agent": "sparkserve"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return httpx.Client(
            headers=headers,
            trust_env=False,
            follow_redirects=False,
            # A kept connection that the server closes meanwhile would fail a request for
            # nothing, and we do not retry.
            limits=httpx.Limits(max_keepalive_connections=self.keep_connections),
        )

    @contextmanager
    def _response(
        self,
        method: str,
        path: str,
        body: Any,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[httpx.Response]:
        import httpx

        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))
        url = self._url(path)
        try:
            with self._client.stream(
                method, url, json=body, timeout=timeout, headers=headers
            ) as response:
                yield response
        except httpx.ConnectError as error:
            raise EndpointError(
                f"nothing answers at {url}: {error}", hint="sparkserve status"
            ) from error
        except httpx.TimeoutException as error:
            raise EndpointError(
                f"{url} gave no answer within {timeout_s:g} s", hint="sparkserve status"
            ) from error
        except httpx.TransportError as error:
            raise EndpointError(
                f"the connection to {url} broke: {error or type(error).__name__}",
                hint="sparkserve status",
            ) from error
        except (httpx.InvalidURL, httpx.DecodingError, UnicodeError) as error:
            raise EndpointError(f"{url}: {error}") from error

    def _body(self, response: httpx.Response, timeout_s: float) -> str:
        """The whole body as text; raises for every status from 300 on."""
        give_up = time.monotonic() + timeout_s
        data = bytearray()
        for piece in response.iter_bytes():
            data += piece
            if len(data) > BODY_LIMIT_BYTES:
                raise EndpointError(
                    f"{response.url} answered with more than {BODY_LIMIT_BYTES} bytes",
                    status=response.status_code,
                )
            if time.monotonic() > give_up:
                raise EndpointError(f"{response.url} gave no whole answer within {timeout_s:g} s")
        text = data.decode("utf-8", errors="replace")
        if response.status_code >= 300:
            raise self._refusal(response, text)
        return text

    def _refusal(self, response: httpx.Response, text: str) -> EndpointError:
        status = int(response.status_code)
        hint = None
        if status in (401, 403):
            hint = "serving.api_key_file of the profile names the key that the engine was given"
        detail = self._snippet(error_message(text)) or response.reason_phrase
        return EndpointError(
            f"{response.url} answered {status}: {detail}", status=status, hint=hint
        )

    def _parsed(self, path: str, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise EndpointError(
                f"{self._url(path)} answered with something that is no JSON: {self._snippet(text)}",
                status=200,
            ) from error

    def _url(self, path: str) -> str:
        return f"{self.base_url.rstrip('/')}/{path.lstrip('/')}"

    def _snippet(self, text: str) -> str:
        """The beginning of a text for a message, without the key."""
        if self.api_key:
            text = text.replace(self.api_key, "***")
        text = " ".join(text.split())
        return text if len(text) <= _ERROR_CHARS else f"{text[:_ERROR_CHARS]}…"


def error_message(text: str) -> str:
    """What an error body says: OpenAI's, SGLang's and FastAPI's forms, else the text itself."""
    try:
        data = json.loads(text)
    except ValueError:
        return text
    return message_of(data) or text


def message_of(data: Any) -> str | None:
    """The message inside a decoded error body; None where there is none."""
    if isinstance(data, dict):
        for key in ("error", "message", "detail"):
            value = data.get(key)
            if isinstance(value, str):
                return value
            if isinstance(value, dict) and isinstance(value.get("message"), str):
                return str(value["message"])
            if isinstance(value, list) and value:
                return json.dumps(value, ensure_ascii=False)
    return None
