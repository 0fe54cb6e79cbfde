"""A checkpoint behind http(s): byte ranges, one request per run of rows.

Every request may fail and is repeated from the byte that was reached: after a broken connection
at once and then ever later, after 429 and 503 when the server says. A file that changes between
two requests is an error, never a mixture. Redirects are followed here, because the bearer token
must not follow them to another host.
"""

from __future__ import annotations

import email.utils
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, urljoin, urlsplit

from sparkserve.engram.direct_file import Arena
from sparkserve.engram.pack_error import PackError
from sparkserve.errors import EndpointError
from sparkserve.model.pack import PackCode
from sparkserve.transport.http import BytesReply, HttpClient

_TIMEOUT_S = 60.0
_CONNECTIONS = 16
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 5
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_RUN_OUT = frozenset({401, 403, 404, 410})
"""What a redirect's address answers when its time is over."""
_QUERY = re.compile(r"\?\S+")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True)
class Patience:
    """How long to bear with a server."""

    attempts: int = 8
    """Failures in a row, without one byte between them, before giving up."""
    first_wait_s: float = 0.5
    """Doubled with every further failure."""
    first_attempts: int = 3
    """The same before any server answered at all: a wrong address does not get right by waiting."""
    longest_wait_s: float = 120.0
    """A server that asks for more than this is not waited for."""
    sleep: Callable[[float], None] = time.sleep


class HttpFolder:
    """A folder of files behind http(s)."""

    parallel_reads = 4
    align_bytes = 1

    def __init__(self, url: str, token: str | None, patience: Patience = Patience()) -> None:
        """Nothing is asked yet.

        url: of the folder, such as ``https://host/model/resolve/<revision>``.

        Raises:
            PackError: no such address can be, or it holds a name or password.
        """
        self.place = _folder_url(url)
        self._fetcher = _Fetcher(token, patience)

    def read_small(self, name: str, limit_bytes: int) -> bytes | None:
        """A whole file; None where there is none."""
        url = f"{self.place}/{name}"
        data = bytearray()

        def take(reply: BytesReply) -> None:
            data.clear()
            for piece in reply.pieces:
                data.extend(piece)
                if len(data) > limit_bytes:
                    raise PackError(
                        PackCode.SOURCE_HEADER, f"longer than {limit_bytes} bytes", path=url
                    )

        found = self._fetcher.fetch(url, _Request({}, take, lambda: 0, missing_ok=True))
        return bytes(data) if found else None

    def open(self, name: str) -> HttpFile:
        """Ask for a file's first byte, which tells its size and version."""
        return HttpFile(name, f"{self.place}/{quote(name)}", self._fetcher)

    def close(self) -> None:
        """Close the connections."""
        self._fetcher.close()


class HttpFile:
    """One file behind http(s), pinned to the version that was seen first."""

    def __init__(self, name: str, url: str, fetcher: _Fetcher) -> None:
        self.name = name
        self.place = url
        self._fetcher = fetcher
        self.size_bytes = 0
        self.version = ""
        self._validator: str | None = None

        def take(reply: BytesReply) -> None:
            self.size_bytes = self._range_of(reply, 0, 1)[1]
            etag, modified = reply.headers.get("etag"), reply.headers.get("last-modified")
            strong = etag is not None and not etag.startswith("W/")
            self._validator = etag if strong else modified
            self.version = f"etag:{self._validator}" if self._validator else ""

        fetcher.fetch(url, _Request({"Range": "bytes=0-0"}, take, lambda: 0))

    def read(self, offset_bytes: int, length_bytes: int, arena: Arena) -> memoryview:
        """Exactly the bytes asked for; one request unless the connection breaks."""
        view = arena.take(length_bytes)
        if length_bytes == 0:
            return view
        if offset_bytes + length_bytes > self.size_bytes:
            missing = offset_bytes + length_bytes - self.size_bytes
            raise PackError(
                PackCode.SHORT_READ,
                f"the file ends here, {missing} bytes are missing",
                path=self.place,
                offset_bytes=self.size_bytes,
            )
        got = 0

        def headers() -> dict[str, str]:
            wanted = {"Range": f"bytes={offset_bytes + got}-{offset_bytes + length_bytes - 1}"}
            return wanted | ({"If-Range": self._validator} if self._validator else {})

        def take(reply: BytesReply) -> None:
            nonlocal got
            self._range_of(reply, offset_bytes + got, offset_bytes + length_bytes)
            for piece in reply.pieces:
                if got + len(piece) > length_bytes:
                    raise self._short(offset_bytes + length_bytes, "more bytes than asked for")
                view[got : got + len(piece)] = piece
                got += len(piece)
            if got < length_bytes:
                raise EndpointError(f"{self.place} ended its answer early")

        self._fetcher.fetch(self.place, _Request(headers, take, lambda: got))
        return view

    def check_unchanged(self) -> None:
        """Every answer was compared already."""

    def close(self) -> None:
        """Nothing stays open."""

    def _range_of(self, reply: BytesReply, start: int, end: int) -> tuple[int, int]:
        """(first byte, size of the file) of an answer that is what was asked for."""
        if reply.status == 200:
            if self._validator:
                raise self._changed("another version of it was sent")
            raise PackError(
                PackCode.SHORT_READ,
                "the server sends whole files only, expected byte ranges (status 206)",
                path=self.place,
                hint="download the checkpoint and pack from its folder",
            )
        match = _CONTENT_RANGE.fullmatch(reply.headers.get("content-range", ""))
        if reply.status != 206 or match is None:
            raise self._short(
                start, f"answer {reply.status} without a usable Content-Range, expected 206"
            )
        first, last, size = (int(text) for text in match.groups())
        if (first, last + 1) != (start, end):
            raise self._short(start, f"bytes {first} to {last} came, expected {start} to {end - 1}")
        seen = reply.headers.get("etag")
        if (
            self._validator
            and seen
            and self.version.startswith('etag:"')
            and (seen != self._validator)
        ):
            raise self._changed(f"its ETag is {seen}, expected {self._validator}")
        if self.size_bytes not in (0, size):
            raise self._changed(f"it has {size} bytes, expected {self.size_bytes}")
        return first, size

    def _changed(self, how: str) -> PackError:
        return PackError(
            PackCode.SOURCE_CHANGED,
            f"the file changed while it was read: {how}",
            path=self.place,
            hint="pin the revision in the URL and pack again with --replace",
        )

    def _short(self, offset_bytes: int, message: str) -> PackError:
        return PackError(PackCode.SHORT_READ, message, path=self.place, offset_bytes=offset_bytes)


@dataclass(frozen=True)
class _Request:
    """One thing to fetch, however many attempts it takes."""

    headers: Mapping[str, str] | Callable[[], Mapping[str, str]]
    take: Callable[[BytesReply], None]
    """Consumes a good answer; an EndpointError means once more."""
    reached: Callable[[], int]
    """Grows with every byte that was kept."""
    missing_ok: bool = False


@dataclass
class _Fetcher:
    """Repeats requests within bounds and follows redirects; safe for several threads."""

    token: str | None = field(repr=False)
    patience: Patience
    _targets: dict[str, str] = field(default_factory=dict)
    """Where a URL led last time; such addresses run out, so a refusal asks anew."""
    _clients: dict[tuple[str, str | None], HttpClient] = field(default_factory=dict, repr=False)
    _answered: bool = False
    """Whether any server said anything yet."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch(self, url: str, request: _Request) -> bool:
        """Do it; False only where the file is missing and may be.

        Raises:
            PackError: it cannot be had.
        """
        failures, before = 0, request.reached()
        while True:
            wait_s: float | None = None
            try:
                outcome = self._once(url, request)
                if outcome is not None:
                    return outcome
                reason = "the redirect's address has run out"
            except _Busy as busy:
                reason, wait_s = str(busy), busy.wait_s
            except EndpointError as error:
                # What a redirect adds to an address is often a signature that opens it.
                reason = _QUERY.sub("?...", error.message)
            failures = 1 if request.reached() > before else failures + 1
            before = request.reached()
            self._rest(url, failures, wait_s, reason)

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            for client in self._clients.values():
                client.close()

    def _rest(self, url: str, failures: int, wait_s: float | None, reason: str) -> None:
        patience = self.patience
        asked = wait_s
        if wait_s is None:
            backoff = patience.first_wait_s * 2 ** (failures - 1)
            # Ranks that failed together must not come back together.
            wait_s = min(backoff * random.uniform(0.75, 1.25), patience.longest_wait_s)
        attempts = patience.attempts
        if not self._answered:
            attempts = min(attempts, patience.first_attempts)
        if failures >= attempts or wait_s > patience.longest_wait_s:
            waits = f", which asks to wait {asked:g} s" if asked is not None else ""
            raise PackError(
                PackCode.SOURCE_UNREACHABLE,
                f"gave up after {failures} attempts{waits}: {reason}",
                path=url,
                hint="run the same command later: what is packed stays",
            )
        patience.sleep(wait_s)

    def _once(self, url: str, request: _Request) -> bool | None:
        """True = done, False = missing, None = ask again from the start."""
        with self._lock:
            target = remembered = self._targets.get(url, url)
        headers = request.headers() if callable(request.headers) else request.headers
        for _ in range(_MAX_REDIRECTS + 1):
            client, path = self._client(target, self.token if _same_host(url, target) else None)
            with client.get_bytes(path, headers=headers, timeout_s=_TIMEOUT_S) as reply:
                self._answered = True
                if reply.status in _REDIRECTS:
                    target = self._redirected(url, target, reply)
                    continue
                if reply.status in _RUN_OUT and target == remembered != url:
                    with self._lock:
                        if self._targets.get(url) == remembered:
                            del self._targets[url]
                    return None
                if reply.status == 404 and request.missing_ok:
                    return False
                if reply.status >= 300:
                    raise self._refused(url, reply)
                with self._lock:
                    self._targets[url] = target
                request.take(reply)
                return True
        raise PackError(
            PackCode.SOURCE_UNREACHABLE, f"more than {_MAX_REDIRECTS} redirects", path=url
        )

    def _client(self, target: str, token: str | None) -> tuple[HttpClient, str]:
        parts = urlsplit(target)
        origin = f"{parts.scheme}://{parts.netloc}"
        with self._lock:
            key = (origin, token)
            if key not in self._clients:
                self._clients[key] = HttpClient(origin, token, keep_connections=_CONNECTIONS)
            client = self._clients[key]
        return client, target.removeprefix(origin)

    def _redirected(self, url: str, target: str, reply: BytesReply) -> str:
        try:
            location = urljoin(target, reply.headers.get("location", ""))
            scheme, host = _scheme_and_host(location)
        except ValueError as error:
            raise PackError(
                PackCode.SOURCE_UNREACHABLE, f"redirected to no address: {error}", path=url
            ) from error
        if scheme not in ("http", "https") or not host:
            raise PackError(
                PackCode.SOURCE_UNREACHABLE, "redirected to something that is not http", path=url
            )
        if urlsplit(target).scheme == "https" and scheme != "https":
            raise PackError(PackCode.SOURCE_UNREACHABLE, "redirected from https to http", path=url)
        return location

    def _refused(self, url: str, reply: BytesReply) -> Exception:
        if reply.status in _AGAIN:
            return _Busy(f"answer {reply.status}", _retry_after_s(reply.headers))
        if reply.status in (401, 403):
            return PackError(
                PackCode.SOURCE_REFUSED,
                f"answer {reply.status}: the server wants {'another' if self.token else 'a'} token",
                path=url,
                hint="put a token into a file of mode 0600 and name it with --token-file",
            )
        code = PackCode.SOURCE_MISSING if reply.status in (404, 410) else PackCode.SHORT_READ
        return PackError(code, f"answer {reply.status}", path=url)


class _Busy(Exception):
    """The server asks to come back; wait_s: when, None = it does not say."""

    def __init__(self, reason: str, wait_s: float | None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def _folder_url(url: str) -> str:
    try:
        _, host = _scheme_and_host(url)
    except ValueError as error:
        raise PackError(PackCode.JOB, f"source {url!r} is no address: {error}") from error
    if not host:
        raise PackError(PackCode.JOB, f"source {url!r} names no host")
    if urlsplit(url).username is not None:
        # Not repeated here: every message and event would carry the password on.
        raise PackError(
            PackCode.JOB,
            "the source's address holds a user or password",
            hint="put a token into a file of mode 0600 and name it with --token-file",
        )
    return url.rstrip("/")


def _scheme_and_host(url: str) -> tuple[str, str | None]:
    """Raises ValueError where the address, or only its port, cannot be."""
    parts = urlsplit(url)
    _ = parts.port
    return parts.scheme, parts.hostname


def _same_host(one: str, other: str) -> bool:
    a, b = urlsplit(one), urlsplit(other)
    return (a.scheme, a.hostname, a.port) == (b.scheme, b.hostname, b.port)


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from either form of Retry-After; None where there is none."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        when = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())
