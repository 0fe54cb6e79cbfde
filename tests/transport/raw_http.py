"""A server that answers each request with the bytes a test chose."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class Request:
    """One request as it came over the wire."""

    head: str
    body: bytes

    @property
    def line(self) -> str:
        """Method and path."""
        return self.head.split(" HTTP/")[0]

    @property
    def json(self) -> object:
        """The decoded body."""
        return json.loads(self.body)


@dataclass
class RawServer:
    """Collects requests and plays answers: bytes, or a function that gets the socket."""

    port: int
    answers: list[bytes | Callable[[socket.socket], None]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    def say(self, *answers: bytes | Callable[[socket.socket], None]) -> None:
        """Answer the next requests so; the last answer is repeated."""
        self.answers = list(answers)


def response(body: bytes | str, *, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """A whole answer with a length."""
    data = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def chunked(*pieces: bytes, end: bool = True, kind: str = "text/event-stream") -> bytes:
    """A streamed answer; without ``end`` it breaks off."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece)
    return head.encode() + body + (b"0\r\n\r\n" if end else b"")


def _read(client: socket.socket) -> Request | None:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(65536)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    text = head.decode()
    length = 0
    for line in text.splitlines():
        if line.lower().startswith("content-length:"):
            length = int(line.split(":")[1])
    while len(body) < length:
        body += client.recv(65536)
    return Request(text, body)


@contextlib.contextmanager
def raw_server() -> Iterator[RawServer]:
    """A running server."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = RawServer(listener.getsockname()[1])

    def loop() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                request = _read(client)
                if request is None:
                    continue
                server.requests.append(request)
                answer = server.answers[0]
                if len(server.answers) > 1:
                    server.answers.pop(0)
                if callable(answer):
                    answer(client)
                else:
                    client.sendall(answer)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
