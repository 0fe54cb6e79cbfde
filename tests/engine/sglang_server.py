"""A real SGLang on the CPU for one test: started, waited for, and always torn down whole."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import sparkserve
from sparkserve.adapters import registry
from sparkserve.engram.ownership import Layout
from sparkserve.model.engine_spec import (
    EngineSpec,
    EngramSpec,
    GuardSpec,
    InstallReport,
)
from tests.ports import free_port

START_DEADLINE_S = 600
SHIM = Path(sparkserve.__file__).parent / "sim" / "cpu_shim"
MODEL_PACKAGE = "sparkserve.sim.demo_model"


def wait_until(
    condition: Callable[[], bool], deadline_s: float = 30, what: Callable[[], str] = str
) -> None:
    """Poll until the condition holds.

    what: says what was awaited and what there is instead.

    Raises:
        AssertionError: it never did.
    """
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {what()}"
        time.sleep(0.05)


@dataclass(frozen=True)
class Rank:
    """What one rank is started with."""

    checkpoint: Path
    work_dir: Path
    """Receives engine.json, the log, reports and statistics."""
    engram_dir: Path | None = None
    """Rows served by our adapter from here; None = SGLang's own in-memory tables."""
    layout: Layout = "columns"
    adapters: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"engram_rows": {}})
    """Settings by name; only with ``engram_dir``."""
    engine_path: Path | None = None
    """Folder that holds another SGLang than the installed one."""
    rank: int = 0
    world_size: int = 1
    dist_port: int = 0
    api_key: str | None = None
    """Handed over in a YAML file of mode 0600."""
    extra_args: Sequence[str] = ()
    extra_env: Mapping[str, str] = field(default_factory=dict)

    def argv(self, port: int) -> list[str]:
        """The engine's command line."""
        argv = [sys.executable, "-m", "sglang.launch_server"]
        argv += ["--model-path", str(self.checkpoint), "--served-model-name", "demo"]
        argv += ["--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--mem-fraction-static", "0.1", "--max-total-tokens", "4096"]
        argv += ["--context-length", "1024", "--skip-server-warmup", "--sleep-on-idle"]
        if self.world_size > 1:
            argv += ["--tp-size", str(self.world_size), "--nnodes", str(self.world_size)]
            argv += ["--node-rank", str(self.rank)]
            argv += ["--dist-init-addr", f"127.0.0.1:{self.dist_port}"]
        if self.api_key is not None:
            argv += ["--config", str(self.work_dir / "secrets.yaml")]
        return [*argv, *self.extra_args]

    def environment(self) -> dict[str, str]:
        """The engine's whole environment."""
        kept = ("HOME", "PATH", "TMPDIR", "LANG")
        env = {name: os.environ[name] for name in kept if name in os.environ}
        env |= {
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(str(at) for at in (self.engine_path, SHIM) if at),
            "HF_HUB_OFFLINE": "1",
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_PLUGINS": "sparkserve",
            "SGLANG_EXTERNAL_MODEL_PACKAGE": MODEL_PACKAGE,
            "SGLANG_RUST_BUILD_MODE": "never",
            "SGLANG_HOST_IP": "127.0.0.1",
            "HOST_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        if self.world_size > 1:
            cores = os.cpu_count() or 1
            bound = [str(rank % cores) for rank in range(self.world_size)]
            env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(bound)
        return env | dict(self.extra_env)

    def spec(self, port: int) -> EngineSpec:
        """The EngineSpec; with adapters exactly when rows come from files."""
        engram, adapters = None, ()
        if self.engram_dir is not None:
            engram = EngramSpec(directory=str(self.engram_dir), layout=self.layout)
            adapters = registry.validate(self.adapters, world_size=self.world_size)
        return EngineSpec(
            run_id="test-run",
            profile="test",
            profile_digest="0" * 64,
            node=f"node{self.rank}",
            rank=self.rank,
            world_size=self.world_size,
            run_dir=str(self.work_dir),
            root=str(self.work_dir),
            argv=tuple(self.argv(port)),
            env=self.environment(),
            port=port,
            engram=engram,
            adapters=adapters,
            guard=GuardSpec(port=1, head_address="127.0.0.1"),
        )


@dataclass(frozen=True)
class Server:
    """One running rank."""

    process: subprocess.Popen[bytes]
    port: int
    work_dir: Path
    api_key: str | None = None

    @property
    def log(self) -> str:
        """Everything the rank's processes wrote."""
        return (self.work_dir / "engine.log").read_text(encoding="utf-8", errors="replace")

    def wait_healthy(self) -> None:
        """Poll /health until it answers 200.

        Raises:
            AssertionError: the engine ended or the deadline passed; holds the log's end.
        """
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"exit {self.process.returncode}\n{self.log[-4000:]}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=5).status_code == 200:
                    return
            time.sleep(0.25)
        raise AssertionError(f"not healthy after {START_DEADLINE_S} s\n{self.log[-4000:]}")

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send JSON, with the key where there is one, and return the JSON answer."""
        url = f"http://127.0.0.1:{self.port}{path}"
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        answer = httpx.post(url, json=body, headers=headers, timeout=180)
        answer.raise_for_status()
        return answer.json()

    def chat(self, question: str, max_tokens: int = 24) -> str:
        """The greedy answer to one question."""
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": max_tokens,
        }
        return self.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]

    def logprobs(self, text: str, max_tokens: int = 12) -> list[tuple[float, int]]:
        """(log-probability, token id) of every prompt token and every greedy output token."""
        body = {
            "text": text,
            "sampling_params": {"temperature": 0, "max_new_tokens": max_tokens},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        meta = self.post("/generate", body)["meta_info"]
        both = meta["input_token_logprobs"] + meta["output_token_logprobs"]
        return [(logprob, token) for logprob, token, *_ in both]

    def reports(self) -> list[InstallReport]:
        """The install reports of the rank's processes."""
        files = sorted((self.work_dir / "reports").glob("*.json"))
        return [InstallReport.model_validate_json(file.read_text()) for file in files]

    def open_shards(self) -> set[str]:
        """Names of the row files that any of the rank's processes holds open now."""
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(folder.name)) == self.process.pid:
                    found |= {link.readlink().name for link in (folder / "fd").iterdir()}
        return {name for name in found if name.startswith("engram-l")}

    def engram_layers(self) -> list[dict[str, Any]]:
        """Counters of all layers as the statistics files hold them now."""
        files = sorted((self.work_dir / "stats").glob("engram-*.json"))
        return [layer for file in files for layer in json.loads(file.read_text())["layers"]]


def start(rank: Rank) -> Server:
    """Start one rank in a session of its own."""
    rank.work_dir.mkdir(parents=True, exist_ok=True)
    port = free_port()
    env = rank.environment()
    spec_file = rank.work_dir / "engine.json"
    if rank.engram_dir is not None:
        spec_file.write_text(rank.spec(port).model_dump_json())
        env["SPARKSERVE_ENGINE_SPEC"] = str(spec_file)
    if rank.api_key is not None:
        secrets = rank.work_dir / "secrets.yaml"
        secrets.touch(mode=0o600)
        secrets.write_text(f"api-key: {json.dumps(rank.api_key)}\n")
    with (rank.work_dir / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            rank.argv(port),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=rank.work_dir,
            start_new_session=True,
        )
    return Server(process, port, rank.work_dir, rank.api_key)


def stop(server: Server) -> None:
    """End the rank's whole session: children start no sessions of their own."""
    group = server.process.pid
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    server.process.wait(timeout=30)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process group {group} did not end")


@contextlib.contextmanager
def serving_all(*ranks: Rank) -> Iterator[list[Server]]:
    """All ranks of one engine, once rank 0 is healthy."""
    servers: list[Server] = []
    try:
        servers.extend(start(rank) for rank in ranks)
        servers[0].wait_healthy()
        yield servers
    finally:
        for server in servers:
            stop(server)


@contextlib.contextmanager
def serving(rank: Rank) -> Iterator[Server]:
    """An engine of one rank, once it is healthy."""
    with serving_all(rank) as (server,):
        yield server
