"""A real guard beside a real engine process: wedges and starts that run out of memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sparkserve.node import processes, wedge_watch
from tests.node.harness import Rank, Run
from tests.ports import free_port
from tests.testbed.shell import wait_until

WORKING, SPINNING, UNKNOWN = "96, 46.10", "96, 19.84", "96, [N/A]"
FAST = {"wedge": {"after_s": 1.0}, "wedge_sample_s": 0.2}


class Gpu:
    """A stand-in for nvidia-smi that prints what it is told, in the form of the real one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.figures = folder / "gpu.csv"
        self.calls = folder / "calls"
        bin_dir = folder / "bin"
        bin_dir.mkdir()
        script = bin_dir / "nvidia-smi"
        script.write_text(f'#!/bin/sh\necho "$@" >> {self.calls}\nexec cat {self.figures}\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{bin_dir}:/usr/bin:/bin")
        self.show(SPINNING)

    def show(self, figures: str) -> None:
        self.figures.write_text(f"{figures}\n")


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(tmp_path, monkeypatch)


def serve(run: Run, action: str, *, token_s: float = 600.0) -> Rank:
    """A light engine under a guard; it answers health while a token takes ``token_s``."""
    port = free_port()
    (rank,) = run.make([""], guard={"wedge_action": action, **FAST})
    argv = [
        *(sys.executable, "-m", "sparkserve.sim.light_engine", "--model-path", "none"),
        *("--port", str(port), "--enable-metrics", "--light-token-seconds", str(token_s)),
    ]
    env = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"}
    rank.spec = rank.spec.model_copy(update={"argv": tuple(argv), "env": env, "port": port})
    rank.start()
    rank.wait_log("fired up and ready to roll")
    wait_until(lambda: status_of(port) == 200, what="/health answers 200", deadline_s=30)
    return rank


def status_of(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return int(reply.status)
    except OSError:
        return 0


@pytest.fixture
def ask() -> Iterator[Any]:
    """Sends requests to which nobody waits for the answer."""
    sent: list[socket.socket] = []

    def send(rank: Rank) -> socket.socket:
        question = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
        body = json.dumps(question)
        connection = socket.create_connection(("127.0.0.1", rank.spec.port), timeout=30)
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        sent.append(connection)
        return connection

    yield send
    for connection in sent:
        connection.close()


def wait_guard_log(rank: Rank, text: str) -> None:
    path = rank.run_dir / "guard.log"
    wait_until(lambda: text in path.read_text(), what=f"{text!r} in guard.log", deadline_s=30)


class TestWedge:
    def test_is_reported_while_health_still_answers(self, run: Run, gpu: Gpu, ask: Any) -> None:
        rank = serve(run, "report")
        since = rank.state["at_s"]
        ask(rank)
        wait_until(lambda: rank.state.get("notice"), what="a notice", deadline_s=30)
        state = rank.state
        assert state["state"] == "running"
        assert state["notice"].startswith("engine wedged: 1 requests run, no token came for ")
        assert "96 % busy at 19.84 W" in state["notice"]
        assert state["at_s"] == since
        assert status_of(rank.spec.port) == 200
        assert "--query-gpu=utilization.gpu,power.draw" in gpu.calls.read_text()

    def test_stops_the_run_where_the_profile_wants_it(self, run: Run, gpu: Gpu, ask: Any) -> None:
        rank = serve(run, "stop")
        ask(rank)
        state = rank.wait_state("failed")
        assert state["reason"].startswith("engine wedged: 1 requests run")
        assert state["origin_rank"] == 0
        rank.wait_gone()

    @pytest.mark.parametrize(
        ("figures", "words"),
        [(WORKING, "the GPU works or is idle"), (UNKNOWN, "power and use of the GPU are unknown")],
    )
    def test_is_none_at_honest_or_unknown_power(
        self, run: Run, gpu: Gpu, ask: Any, figures: str, words: str
    ) -> None:
        gpu.show(figures)
        rank = serve(run, "stop")
        ask(rank)
        wait_guard_log(rank, words)
        calls = len(gpu.calls.read_text().splitlines())
        # Far more looks than a wedge needs, so that one would have ended the run by now.
        wait_until(
            lambda: len(gpu.calls.read_text().splitlines()) >= calls + 10,
            what="ten more looks", deadline_s=30,
        )  # fmt: skip
        assert rank.state["state"] == "running"

    def test_notice_goes_when_a_token_comes(self, run: Run, gpu: Gpu, ask: Any) -> None:
        rank = serve(run, "report", token_s=4.0)
        ask(rank)
        wait_guard_log(rank, "engine wedged")
        wait_guard_log(rank, "the engine generates again")
        assert rank.state["state"] == "running"

    def test_gpu_that_does_not_answer_is_unknown_and_left_behind(
        self, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script = Path(gpu.figures.parent / "bin" / "nvidia-smi")
        script.write_text("#!/bin/sh\nexec sleep 600\n")
        monkeypatch.setattr(wedge_watch, "_ASK_LIMIT_S", 0.3)
        assert asyncio.run(wedge_watch.GpuQuestion().ask()) == ""
        pid, status = os.waitpid(-1, 0)
        assert pid > 0
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM

    def test_node_without_a_gpu_is_unknown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        assert asyncio.run(wedge_watch.GpuQuestion().ask()) == ""

    def test_question_that_nothing_can_end_stays_the_only_one(
        self, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script = Path(gpu.figures.parent / "bin" / "nvidia-smi")
        script.write_text(f'#!/bin/sh\necho "$@" >> {gpu.calls}\nexec sleep 600\n')
        stuck: list[processes.Process] = []

        def survive(found: list[processes.Process], *, grace_s: float) -> list[processes.Process]:
            # Stands for a process that sleeps in the kernel, which no signal reaches.
            stuck.extend(found)
            return list(found)

        monkeypatch.setattr(wedge_watch, "_ASK_LIMIT_S", 0.3)
        monkeypatch.setattr(processes, "end", survive)
        question = wedge_watch.GpuQuestion()
        answers = [asyncio.run(question.ask()) for _ in range(3)]
        assert (answers, len(stuck)) == (["", "", ""], 1)
        assert len(gpu.calls.read_text().splitlines()) == 1
        os.kill(stuck[0].pid, signal.SIGKILL)
        os.waitpid(stuck[0].pid, 0)
        script.write_text(f"#!/bin/sh\nexec cat {gpu.figures}\n")
        assert asyncio.run(question.ask()) == f"{SPINNING}\n"

    def test_gpu_is_asked_only_while_requests_get_nowhere(self, run: Run, gpu: Gpu) -> None:
        rank = serve(run, "report")
        log = rank.run_dir / "engine.log"
        wait_until(
            lambda: log.read_text().count('"GET /metrics') >= 5, what="five looks", deadline_s=30
        )
        assert not gpu.calls.exists()


class TestStart:
    LOADED = "[2026-09-14 10:31:00 TP0] Load weight end. elapsed=6.00 s"
    READY = "The server is fired up and ready to roll!"
    RULE: ClassVar[dict[str, Any]] = {"start_memory": {"floor_gib": 1e6}, "start_sample_s": 0.1}

    def engine(self, *lines: str) -> str:
        return f"import time\nprint({chr(10).join(lines)!r}, flush=True)\ntime.sleep(600)"

    def test_below_the_floor_after_the_weights_ends_the_run(self, run: Run) -> None:
        (rank,) = run.start([self.engine(self.LOADED)], guard=self.RULE)
        reason = rank.wait_state("failed")["reason"]
        assert "is below the floor of 1e+06 GiB, between the weights and ready" in reason

    def test_engine_that_is_ready_is_left_alone(self, run: Run) -> None:
        (rank,) = run.start([self.engine(self.LOADED, self.READY)], guard=self.RULE)
        wait_guard_log(rank, "the start is over")
        assert rank.state["state"] == "running"

    DRAFT = "[2026-09-14 10:31:02 TP0] Load weight begin. avail mem=35.00 GB"

    @pytest.mark.parametrize("loads", [("Load weight begin.",), (LOADED, DRAFT)])
    def test_weights_of_model_and_draft_may_take_what_they_need(
        self, run: Run, loads: tuple[str, ...]
    ) -> None:
        ready = run.folder / "go"
        program = (
            f"import os, time\nprint({chr(10).join(loads)!r}, flush=True)\n"
            f"while not os.path.exists({str(ready)!r}): time.sleep(0.05)\n"
            f"print({self.READY!r}, flush=True)\ntime.sleep(600)"
        )
        (rank,) = run.start([program], guard=self.RULE)
        rank.wait_log("Load weight begin.")
        assert rank.state["state"] == "running"
        ready.touch()
        wait_guard_log(rank, "the start is over")
        assert rank.state["state"] == "running"
