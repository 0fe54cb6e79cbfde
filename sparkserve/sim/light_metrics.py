"""Counters of the light engine under the names that SGLang 0.5.23 gives them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sparkserve.sim.light_options import Options

_BUCKETS_S = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0)


class Counting:
    """One running request."""

    def __init__(self, metrics: Metrics, *, streaming: bool) -> None:
        self._metrics = metrics
        self._streaming = streaming
        self.begin = time.monotonic()
        self.first_s: float | None = None
        self.tokens = 0

    def token(self) -> None:
        """Count one generated token at once, so that progress shows while a request runs."""
        if self.first_s is None:
            self.first_s = time.monotonic() - self.begin
        self.tokens += 1
        self._metrics.add_token(streaming=self._streaming)


class Metrics:
    """Counts requests and tokens; safe to use from several threads."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._running = 0
        self._prompt_tokens = {False: 0, True: 0}
        self._generated = {False: 0, True: 0}
        self._requests = {False: 0, True: 0}
        self._first_s: list[float] = []
        self._whole_s: list[float] = []
        self.throughput = 0.0
        """Tokens per second of the last finished request."""

    def add_token(self, *, streaming: bool) -> None:
        """Count one generated token."""
        with self._lock:
            self._generated[streaming] += 1

    @contextmanager
    def request(self, prompt_tokens: int, *, streaming: bool) -> Iterator[Counting]:
        """Count one request while it runs."""
        counting = Counting(self, streaming=streaming)
        with self._lock:
            self._running += 1
            self._prompt_tokens[streaming] += prompt_tokens
        try:
            yield counting
        finally:
            elapsed_s = time.monotonic() - counting.begin
            with self._lock:
                self._running -= 1
                self._requests[streaming] += 1
                self._whole_s.append(elapsed_s)
                if counting.first_s is not None:
                    self._first_s.append(counting.first_s)
                self.throughput = counting.tokens / max(elapsed_s, 1e-6)

    def render(self) -> str:
        """Text in Prometheus' format."""
        model = f'model_name="{self._options.served_name}"'
        gauge = f'{{engine_type="unified",{model},moe_ep_rank="0",pp_rank="0",tp_rank="0"}}'
        with self._lock:
            gauges = {
                "num_running_reqs": self._running,
                "num_queue_reqs": 0,
                "num_used_tokens": 0,
                "token_usage": 0.0,
                "cache_hit_rate": 0.0,
                "gen_throughput": round(self.throughput, 2) if self._running else 0.0,
                "max_total_num_tokens": self._options.kv_tokens,
            }
            lines = [text for name, value in gauges.items()
                     for text in _family(name, "gauge", [(gauge, value)])]  # fmt: skip
            lines += _family("prompt_tokens_total", "counter", self._split(self._prompt_tokens))
            lines += _family("generation_tokens_total", "counter", self._split(self._generated))
            lines += _family("num_requests_total", "counter", self._split(self._requests))
            for name, values in (
                ("time_to_first_token_seconds", self._first_s),
                ("e2e_request_latency_seconds", self._whole_s),
            ):
                lines += _histogram(name, values, f'engine_type="unified",{model}')
        return "\n".join(lines) + "\n"

    def _split(self, values: dict[bool, int]) -> list[tuple[str, float]]:
        model = f'engine_type="unified",model_name="{self._options.served_name}"'
        return [
            (f'{{{model},is_streaming="{str(streaming).lower()}"}}', count)
            for streaming, count in values.items()
        ]


def _family(name: str, kind: str, samples: list[tuple[str, float]]) -> list[str]:
    head = [f"# TYPE sglang:{name} {kind}"]
    return head + [f"sglang:{name}{labels} {float(value)}" for labels, value in samples]


def _histogram(name: str, values: list[float], labels: str) -> list[str]:
    lines = [f"# TYPE sglang:{name} histogram"]
    for bound in _BUCKETS_S:
        below = sum(value <= bound for value in values)
        lines.append(f'sglang:{name}_bucket{{{labels},le="{bound}"}} {float(below)}')
    lines.append(f'sglang:{name}_bucket{{{labels},le="+Inf"}} {float(len(values))}')
    lines.append(f"sglang:{name}_count{{{labels}}} {float(len(values))}")
    lines.append(f"sglang:{name}_sum{{{labels}}} {sum(values)}")
    return lines
