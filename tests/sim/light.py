"""Starts ranks of the light engine and talks to them."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ports import free_port

DEADLINE_S = 20


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < end, f"still not: {what}"
        time.sleep(0.01)
    return value


@dataclass
class Rank:
    """One running rank of the engine."""

    process: subprocess.Popen[str]
    port: int
    log_file: Path

    def request(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            data = body if isinstance(body, str | None) else json.dumps(body)
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def chat(self, question: str, **fields: Any) -> dict[str, Any]:
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 64, **fields}
        status, text = self.request("POST", "/v1/chat/completions", body)
        assert status == 200, text
        return json.loads(text)

    def status(self, path: str = "/health") -> int | None:
        try:
            return self.request("GET", path)[0]
        except OSError:
            return None

    def log(self) -> str:
        return self.log_file.read_text().replace("\r", "\n")

    def wait_ready(self) -> None:
        wait_until(lambda: self.status() == 200 or self.process.poll() is not None, "ready")
        assert self.process.poll() is None, self.log()

    def wait_log(self, text: str) -> None:
        wait_until(lambda: text in self.log(), f"log line {text!r}")

    def wait_exit(self) -> int:
        return self.process.wait(timeout=DEADLINE_S)

    def scheduler(self) -> int | None:
        pid = self.process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except FileNotFoundError:
            return None
        return int(children[0]) if children else None


StartRank = Callable[..., Rank]


def start_group(start: StartRank, size: int, *argv: str) -> list[Rank]:
    meeting = f"127.0.0.1:{free_port()}"
    common = ["--tp-size", str(size), "--nnodes", str(size), "--dist-init-addr", meeting, *argv]
    # the head last, as launches do, so that the others have to wait for it
    ranks = [start(*common, "--node-rank", str(rank)) for rank in reversed(range(size))]
    return ranks[::-1]
