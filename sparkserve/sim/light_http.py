"""HTTP side of the light engine: the routes of SGLang that clients and probes use.

Shapes follow the protocol classes of SGLang 0.5.23. Must not know ranks or processes.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from sparkserve.sim import light_openai as openai
from sparkserve.sim.light_answers import Answerer, Generation
from sparkserve.sim.light_log import ENGINE_VERSION, Log, scheduler_prefix
from sparkserve.sim.light_metrics import Metrics
from sparkserve.sim.light_options import Options

HEALTH_TIMEOUT_S = 20.0
"""How long /health waits for a token, as SGLang does, before it says 503."""


class Service:
    """State of a rank's HTTP side."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.answerer = Answerer(options)
        self.metrics = Metrics(options)
        self.log = Log()
        self.batch_log = Log(scheduler_prefix(options.rank, options.tp))
        self.state: Literal["starting", "up", "stopping"] = "starting"
        self.group_broken = threading.Event()
        """A peer is gone, so no collective ends any more."""
        self.started = time.time()

    def generate(self, request: openai.Request) -> Iterator[str]:
        """Yield the tokens of one answer as they come; hangs when the group is broken."""
        generation = request.generation
        self.batch_log.line(
            f"Prefill batch, #new-seq: 1, #new-token: {request.prompt_tokens}, #cached-token: 0, "
            "token usage: 0.00, #running-req: 0, #queue-req: 0, #pending-token: 0, "
            "cuda graph: False, input throughput (token/s): 1000.00"
        )
        with self.metrics.request(request.prompt_tokens, streaming=request.stream) as counting:
            for token in generation.tokens:
                if self.group_broken.is_set():
                    threading.Event().wait()
                if self.options.token_s:
                    time.sleep(self.options.token_s)
                counting.token()
                yield token
        self.batch_log.line(
            f"Decode batch, #running-req: 1, #token: {len(generation.tokens)}, "
            "token usage: 0.00, cuda graph: True, gen throughput (token/s): 100.00, #queue-req: 0"
        )

    def health_status(self) -> int:
        """Status of /health: whether a token could be generated."""
        if self.options.has("health-500"):
            return 500
        if self.options.rank > 0:
            return 200
        if self.state != "up":
            return 503
        if self.group_broken.is_set():
            time.sleep(HEALTH_TIMEOUT_S)
            return 503
        return 200

    def info(self) -> dict[str, Any]:
        """Answer of /server_info."""
        options = self.options
        return {
            "model_path": options.model_path,
            "served_model_name": options.served_name,
            "host": options.host,
            "port": options.port,
            "tp_size": options.tp,
            "nnodes": options.nodes,
            "context_length": options.context_tokens,
            "max_total_num_tokens": options.kv_tokens,
            "max_running_requests": options.max_running_requests,
            "internal_states": [{"last_gen_throughput": self.metrics.throughput}],
            "startup_time": self.started,
            "version": ENGINE_VERSION,
            "frontend": "light",
        }


class Server(ThreadingHTTPServer):
    """Listens; one thread per connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, service: Service) -> None:
        self.service = service
        self.address_family = socket.AF_INET6 if ":" in service.options.host else socket.AF_INET
        super().__init__((service.options.host, service.options.port), Handler)

    def server_bind(self) -> None:
        """Bind without the base class's name look-up, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no error of the engine's."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Answer a GET."""
        service = self.server.service
        path = self.path.partition("?")[0]
        routes: dict[str, Callable[[], None]] = {
            "/health": lambda: self._empty(service.health_status()),
            "/health_generate": lambda: self._empty(service.health_status()),
            "/ping": lambda: self._empty(200),
        }
        if service.options.metrics:
            routes["/metrics"] = lambda: self._text(service.metrics.render())
        if service.options.rank == 0:
            model = openai.model_list(service.options)
            routes |= {
                "/ready": lambda: self._empty(200 if service.state == "up" else 503),
                "/v1/models": lambda: self._json(200, model),
                "/server_info": lambda: self._json(200, service.info()),
                "/get_server_info": lambda: self._json(200, service.info()),
                "/model_info": lambda: self._json(200, openai.model_info(service.options)),
                "/get_model_info": lambda: self._json(200, openai.model_info(service.options)),
            }
        self._serve(routes.get(path), path)

    def do_POST(self) -> None:
        """Answer a POST."""
        path = self.path.partition("?")[0]
        routes: dict[str, Callable[[], None]] = {}
        if self.server.service.options.rank == 0:
            routes = {
                "/v1/chat/completions": lambda: self._complete("chat"),
                "/v1/completions": lambda: self._complete("text"),
                "/flush_cache": lambda: self._text("Cache flushed.\n"),
                "/abort_request": lambda: self._empty(200),
            }
        self._serve(routes.get(path), path)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the access line is written once the status is known."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Write uvicorn's access line, where it is wanted."""
        if self.path.startswith(self.server.service.options.unlogged):
            return
        words = {200: "OK", 401: "Unauthorized", 404: "Not Found", 503: "Service Unavailable"}
        number = int(code)
        client = f"{self.client_address[0]}:{self.client_address[1]}"
        self.server.service.log.line(
            f'INFO:     {client} - "{self.requestline}" {number} {words.get(number, "")}'
        )

    def _serve(self, route: Callable[[], None] | None, path: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self._body = self.rfile.read(length)
        with contextlib.suppress(ConnectionError):  # the client went away
            if not self._authorized(path):
                self._json(401, {"error": "Unauthorized"})
            elif route is None:
                self._json(404, {"detail": "Not Found"})
            else:
                route()

    def _authorized(self, path: str) -> bool:
        key = self.server.service.options.api_key
        if not key or path.startswith(("/health", "/ready", "/metrics")):
            return True
        scheme, _, given = (self.headers.get("Authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), key.encode())

    def _complete(self, kind: Literal["chat", "text"]) -> None:
        service = self.server.service
        try:
            request = openai.read_request(kind, self._body, service.options, service.answerer)
        except openai.BadRequest as error:
            self._json(400, error.answer())
            return
        if request.stream:
            self._stream(openai.chunks(request, service.generate(request)))
            return
        generation = Generation(tuple(service.generate(request)), request.generation.finish_reason)
        self._json(200, openai.whole(request, generation))

    def _stream(self, events: Iterator[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _json(self, status: int, content: Any) -> None:
        self._send(status, "application/json", json.dumps(content).encode())

    def _text(self, text: str) -> None:
        self._send(200, "text/plain; version=0.0.4; charset=utf-8", text.encode())

    def _empty(self, status: int) -> None:
        self._send(status, "text/plain", b"")

    def _send(self, status: int, content_type: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
