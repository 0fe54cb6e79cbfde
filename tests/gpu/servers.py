"""Servers of one comparison: started side by side, asked the same, always torn down whole."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.gpu.place import Place

if TYPE_CHECKING:
    from sparkserve.model.engine_spec import EngineSpec

Layout = Literal["columns", "equal", "strided"]
PROMPT_TOKENS = (6, 40, 300, 1500)
NEW_TOKENS = 12
_ARGS = "server_args="
# A machine without a network has no other interface, and ranks of one machine need none.
_ONE_MACHINE = {
    "SGLANG_HOST_IP": "127.0.0.1",
    "HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_DEBUG": "WARN",
    # Servers that start beside each other make the GPUs' free memory differ for a moment.
    "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0",
}
_TELLING = ("CUDA graph", "startup timings", "Load weight end", "sparkserve", "FATAL")


@dataclass(frozen=True)
class Case:
    """One server."""

    name: str
    checkpoint: Path
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    engram_dir: Path | None = None
    """Rows from the shards in here by our adapters; None = SGLang's tables in memory."""
    adapters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    layout: Layout = "columns"
    """What the shards were packed with."""
    ranks: int = 1
    """Tensor-parallel ranks, each an engine of its own with a GPU of its own, as on a fleet."""


@dataclass(frozen=True)
class Answer:
    """What one prompt gave, greedily."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


class ServerFailed(Exception):
    """A server ended, or did not get ready or answer in time; the message holds its log's end."""


def prompts() -> list[list[int]]:
    """The same random byte tokens for every server."""
    source = random.Random(5)
    return [[source.randrange(250) for _ in range(count)] for count in PROMPT_TOKENS]


def fingerprint(answers: list[Answer]) -> str:
    """Digest of all tokens and log-probabilities, to the last bit."""
    text = json.dumps([(answer.tokens, answer.logprobs) for answer in answers])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def first_difference(one: list[Answer], other: list[Answer]) -> tuple[int, int] | None:
    """(prompt, output position) of the first token or log-probability that differs."""
    for index, (left, right) in enumerate(zip(one, other, strict=True)):
        pairs = zip(
            zip(left.tokens, left.logprobs, strict=True),
            zip(right.tokens, right.logprobs, strict=True),
            strict=True,
        )
        for position, (here, there) in enumerate(pairs):
            if here != there:
                return index, position
    return None


def greatest_difference(one: list[Answer], other: list[Answer]) -> float:
    """Greatest absolute difference of log-probabilities, up to the first token that differs."""
    greatest = 0.0
    for left, right in zip(one, other, strict=True):
        for position, token in enumerate(left.tokens):
            if right.tokens[position] != token:
                break
            difference = abs(left.logprobs[position] - right.logprobs[position])
            greatest = max(greatest, difference)
    return greatest


class Server:
    """One running server: a process per rank, each in a session of its own."""

    def __init__(self, place: Place, case: Case, port: int) -> None:
        """Start it.

        port: rank 0 serves here; the next ones are for the other ranks and for their meeting.
        """
        self.case, self.port = case, port
        self.began = time.monotonic()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.folders = [place.runs / f"{case.name}-{rank}" for rank in range(case.ranks)]
        for rank in range(case.ranks):
            self._start(place, rank)

    def _start(self, place: Place, rank: int) -> None:
        case, folder = self.case, self.folders[rank]
        folder.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-m", "sglang.launch_server"]
        argv += ["--model-path", str(case.checkpoint), "--host", "127.0.0.1"]
        argv += ["--port", str(self.port + rank), *case.arguments]
        named = dict(case.environment)
        if case.ranks > 1:
            argv += ["--tp-size", str(case.ranks), "--nnodes", str(case.ranks)]
            argv += ["--node-rank", str(rank)]
            argv += ["--dist-init-addr", f"127.0.0.1:{self.port + case.ranks}"]
            named |= _ONE_MACHINE | {"CUDA_VISIBLE_DEVICES": str(rank)}
        env = place.environment() | named
        if case.adapters:
            spec = folder / "engine.json"
            spec.write_text(self._spec(rank, argv, named).model_dump_json(), encoding="utf-8")
            env["SPARKSERVE_ENGINE_SPEC"] = str(spec)
        with (folder / "engine.log").open("wb") as log:
            process = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )
        self.processes.append(process)

    def _spec(self, rank: int, argv: list[str], env: dict[str, str]) -> EngineSpec:
        from sparkserve.adapters import registry
        from sparkserve.model.engine_spec import EngineSpec, EngramSpec, GuardSpec

        case, folder = self.case, str(self.folders[rank])
        return EngineSpec(
            run_id=case.name,
            profile="gpu-test",
            profile_digest="0" * 64,
            node=f"gpu{rank}",
            rank=rank,
            world_size=case.ranks,
            run_dir=folder,
            root=folder,
            argv=tuple(argv),
            env=env,
            port=self.port + rank,
            engram=EngramSpec(directory=str(case.engram_dir), layout=case.layout),
            adapters=registry.validate(case.adapters, world_size=case.ranks),
            guard=GuardSpec(port=1, head_address="127.0.0.1"),
        )

    @property
    def log(self) -> str:
        """What rank 0 wrote."""
        return self._log(0)

    def _log(self, rank: int) -> str:
        log = self.folders[rank] / "engine.log"
        return log.read_text(encoding="utf-8", errors="replace")

    def log_end(self) -> str:
        """The last lines of every rank, without SGLang's page of settings."""
        parts = []
        for rank in range(self.case.ranks):
            kept = [line[:300] for line in self._log(rank).splitlines() if _ARGS not in line]
            parts.append("\n".join(kept[-25 // self.case.ranks :]))
        return "\n--- next rank\n".join(parts)

    def telling_lines(self) -> list[str]:
        """Lines about graphs, loading and our adapters."""
        lines = (line[:220] for line in self.log.splitlines() if _ARGS not in line)
        return [line for line in lines if any(word in line for word in _TELLING)][-14:]

    def wait_healthy(self, deadline: float) -> float:
        """Poll /health until it answers 200; gives the seconds since the start.

        deadline: on the monotonic clock.

        Raises:
            ServerFailed: the server ended or the deadline passed.
        """
        while time.monotonic() < deadline:
            ended = [each.returncode for each in self.processes if each.poll() is not None]
            if ended:
                raise ServerFailed(f"exit {ended}\n{self.log_end()}")
            # A server that is starting refuses the connection or answers 503; and a connection
            # to a port that nobody listens on can, rarely, be one with itself.
            not_yet = contextlib.suppress(OSError, http.client.HTTPException)
            with not_yet, self._open("/health", None, 5) as answer:
                if answer.status == 200:
                    return round(time.monotonic() - self.began, 1)
            time.sleep(0.5)
        raise ServerFailed(f"not healthy in time\n{self.log_end()}")

    def ask(self, deadline: float) -> list[Answer]:
        """All prompts one after the other, greedily.

        Raises:
            ServerFailed: no answer in time, or one without all tokens.
        """
        answers = []
        for prompt in prompts():
            body = {
                "input_ids": prompt,
                "sampling_params": {
                    "temperature": 0,
                    "max_new_tokens": NEW_TOKENS,
                    "ignore_eos": True,
                },
                "return_logprob": True,
            }
            left = deadline - time.monotonic()
            try:
                with self._open("/generate", body, max(1.0, left)) as answer:
                    meta = json.load(answer)["meta_info"]
            except OSError as error:
                raise ServerFailed(f"/generate: {error}\n{self.log_end()}") from error
            pairs = [(token, value) for value, token, *_ in meta["output_token_logprobs"]]
            if len(pairs) != NEW_TOKENS:
                raise ServerFailed(f"{len(pairs)} tokens, expected {NEW_TOKENS}")
            tokens, logprobs = zip(*pairs, strict=True)
            answers.append(Answer(tuple(prompt), tokens, logprobs))
        return answers

    def chat(self) -> str:
        """The answer to a chat message, to see that the whole path works."""
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 8,
            "temperature": 0,
        }
        with self._open("/v1/chat/completions", body, 60) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])

    def reports(self) -> list[dict[str, Any]]:
        """Install reports of the server's processes."""
        return self._files("reports/*.json")

    def statistics(self) -> list[dict[str, Any]]:
        """Counters of every Engram layer as the statistics files hold them now."""
        return self._files("stats/*.json")

    def _files(self, pattern: str) -> list[dict[str, Any]]:
        files = [file for folder in self.folders for file in sorted(folder.glob(pattern))]
        return [json.loads(file.read_text()) for file in files]

    def stop(self) -> None:
        """End the whole sessions of all ranks."""
        for process in self.processes:
            for _ in range(50):
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    break
                process.poll()
                time.sleep(0.1)

    def _open(self, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=timeout_s)
