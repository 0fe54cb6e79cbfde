"""A checkpoint's folder over http, with byte ranges, that can hold its clients back."""

from __future__ import annotations

import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.testbed.cluster import Testbed
from tests.testbed.network import CONTROLLER_ADDRESS
from tests.testbed.shell import wait_until

_PIECE_BYTES = 32 << 10
_SMALL_BYTES = 16 << 10


class TableServer:
    """Serves from the controller's place; ``hold`` bounds what each node gets of the tables."""

    def __init__(self, testbed: Testbed, folder: Path, *, token: str | None = None) -> None:
        self.folder = folder
        self.token = token
        self.sent: Counter[str] = Counter()
        """Bytes of tables that each address got."""
        self._limit_bytes: int | None = None
        self._change = threading.Condition()
        handler = type("Handler", (_Handler,), {"tables": self})
        with testbed.enter():
            self._server = ThreadingHTTPServer((CONTROLLER_ADDRESS, 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Address of the folder."""
        return f"http://{CONTROLLER_ADDRESS}:{self._server.server_port}/v41"

    def hold(self, limit_bytes: int) -> None:
        """Give nobody more than so many bytes of tables, until ``go``."""
        with self._change:
            self.sent.clear()
            self._limit_bytes = limit_bytes

    def go(self) -> None:
        """Let everybody have the rest."""
        with self._change:
            self._limit_bytes = None
            self._change.notify_all()

    def wait_held(self, count: int) -> None:
        """Wait until so many nodes have what they may have."""

        def held() -> bool:
            limit = self._limit_bytes or 0
            return sum(sent >= limit for sent in self.sent.values()) >= count

        wait_until(held, what=f"{count} nodes held", deadline_s=60)

    def may_send(self, address: str, size_bytes: int) -> None:
        """Count a piece, and wait where it is one too many."""
        with self._change:
            self._change.wait_for(
                lambda: self._limit_bytes is None or self.sent[address] < self._limit_bytes
            )
            self.sent[address] += size_bytes

    def close(self) -> None:
        """Stop serving."""
        self.go()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    tables: TableServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.tables.folder / self.path.rpartition("/")[2]
        if self.tables.token and self.headers["Authorization"] != f"Bearer {self.tables.token}":
            self._answer(401, b"", {})
        elif not path.is_file():
            self._answer(404, b"", {})
        else:
            self._file(path)

    def _file(self, path: Path) -> None:
        size = path.stat().st_size
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        headers = {"ETag": f'"{path.name}"'}
        if found is None:
            self._answer(200, path.read_bytes(), headers)
            return
        start, end = int(found[1]), min(int(found[2] or size), size - 1)
        with path.open("rb") as file:
            file.seek(start)
            part = file.read(end + 1 - start)
        span = f"bytes {start}-{start + len(part) - 1}/{size}"
        self._answer(206, part, headers | {"Content-Range": span})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        try:
            for at in range(0, len(body), _PIECE_BYTES):
                piece = body[at : at + _PIECE_BYTES]
                # Headers are small, and a second packer must come to the lock.
                if len(body) > _SMALL_BYTES and self.path.endswith(".safetensors"):
                    self.tables.may_send(self.client_address[0], len(piece))
                self.wfile.write(piece)
        except OSError:
            # The node has gone: that is what some tests are about.
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
