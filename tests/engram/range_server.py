"""A file server on the loopback that knows byte ranges, and misbehaves as it is told."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote


class Seen(NamedTuple):
    """One request."""

    path: str
    range: str | None
    token: str | None
    if_range: str | None


class Handler(BaseHTTPRequestHandler):
    server: RangeServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        seen = Seen(
            self.path,
            self.headers.get("Range"),
            self.headers.get("Authorization"),
            self.headers.get("If-Range"),
        )
        with server.lock:
            server.seen.append(seen)
            count = server.counts[seen.path]
            server.counts[seen.path] += 1
            for trouble in server.troubles:
                if trouble(self, seen, count):
                    return
        self.serve(seen)

    def serve(self, seen: Seen, *, cut: int | None = None, shift: int = 0) -> None:
        """A good answer; cut = bytes after which the connection breaks."""
        path = self.server.folder / unquote(seen.path.partition("?")[0]).lstrip("/")
        if not path.is_file():
            self.answer(404)
            return
        content, etag = self.server.content(path)
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", seen.range or "")
        if match is None or (seen.if_range not in (None, etag)):
            self.answer(200, content, {"ETag": etag})
            return
        start, last = int(match[1]) + shift, min(int(match[2]) + shift, len(content) - 1)
        headers = {"ETag": etag, "Content-Range": f"bytes {start}-{last}/{len(content)}"}
        self.answer(206, content[start : last + 1], headers, cut=cut)

    def answer(
        self,
        status: int,
        content: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content if cut is None else content[:cut])
        self.close_connection = cut is not None

    def log_message(self, *_: object) -> None:
        """Say nothing."""


Trouble = Callable[[Handler, Seen, int], bool]
"""Answers a request itself and says True, or lets it be; count = earlier ones of its path."""


class RangeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.lock = threading.RLock()
        self.seen: list[Seen] = []
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.troubles: list[Trouble] = []
        self.files: dict[Path, tuple[int, bytes, str]] = {}

    def content(self, path: Path) -> tuple[bytes, str]:
        """A file and its ETag, read anew when it changed."""
        stamp = path.stat().st_mtime_ns
        with self.lock:
            if self.files.get(path, (None,))[0] != stamp:
                data = path.read_bytes()
                self.files[path] = (stamp, data, f'"{hashlib.md5(data).hexdigest()}"')
            return self.files[path][1:]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """A client that went away is no failure of a test."""


@contextmanager
def serving(folder: Path) -> Iterator[RangeServer]:
    server = RangeServer(folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
