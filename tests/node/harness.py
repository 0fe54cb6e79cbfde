"""Real guards on this machine: one root per rank, a small program as the engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkserve.model.engine_spec import EngineSpec, Expectations, GuardSpec
from sparkserve.node import processes
from tests.ports import free_port
from tests.testbed.shell import wait_until

SLEEPER = "import signal, time; print('engine up', flush=True); time.sleep(600)"


@dataclass
class Rank:
    """One rank under a real guard process."""

    spec: EngineSpec
    key: str = "ab" * 32
    process: subprocess.Popen[bytes] | None = None

    @property
    def run_dir(self) -> Path:
        return Path(self.spec.run_dir)

    @property
    def spec_path(self) -> Path:
        return self.run_dir / "engine.json"

    @property
    def state(self) -> dict[str, Any]:
        path = self.run_dir / "state.json"
        return json.loads(path.read_text()) if path.exists() else {"state": "absent"}

    def start(self) -> Rank:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.spec_path.write_text(self.spec.model_dump_json())
        (self.run_dir / "guard.key").write_text(self.key)
        log = (self.run_dir / "guard.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sparkserve.node", "guard", "--spec", str(self.spec_path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        return self

    def wait_state(self, *names: str) -> dict[str, Any]:
        wait_until(
            lambda: self.state["state"] in names,
            what=f"rank {self.spec.rank} is in {names}",
            deadline_s=30,
        )
        return self.state

    def wait_log(self, text: str) -> None:
        wait_until(lambda: text in self.log, what=f"{text!r} in the log", deadline_s=30)

    @property
    def log(self) -> str:
        path = self.run_dir / "engine.log"
        return path.read_text() if path.exists() else ""

    @property
    def carriers(self) -> list[int]:
        return [process.pid for process in processes.carrying(str(self.spec_path))]

    def signal_guard(self, number: signal.Signals) -> None:
        os.kill(int(self.state["guard_pid"]), number)

    def wait_gone(self) -> None:
        wait_until(lambda: not self.carriers, what="no process carries the run", deadline_s=30)

    def close(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                os.kill(self.process.pid, signal.SIGCONT)
                self.process.kill()
            self.process.wait()
        for pid in self.carriers:
            os.kill(pid, signal.SIGKILL)


@dataclass
class Run:
    """The ranks of one run on this machine."""

    folder: Path
    ranks: list[Rank] = field(default_factory=list)

    def make(
        self,
        engines: Sequence[str],
        *,
        guard: dict[str, Any] | None = None,
        expect: Expectations | None = None,
    ) -> list[Rank]:
        """One rank per engine program (Python source); not started yet."""
        port = free_port()
        self.ranks = [
            Rank(
                EngineSpec(
                    run_id="run-1",
                    profile="test",
                    profile_digest="0" * 64,
                    node=f"spark{rank + 1}",
                    rank=rank,
                    world_size=len(engines),
                    run_dir=str(self.folder / f"node{rank}" / "state" / "runs" / "run-1"),
                    root=str(self.folder / f"node{rank}"),
                    argv=(sys.executable, "-c", program),
                    env={"MARK": "set-by-spec"},
                    port=1,
                    expect=expect or Expectations(),
                    guard=GuardSpec(
                        **{
                            "port": port,
                            "head_address": "127.0.0.1",
                            "heartbeat_s": 0.2,
                            "lost_after_s": 2.0,
                            "join_timeout_s": 20.0,
                            **(guard or {}),
                        }
                    ),
                )
            )
            for rank, program in enumerate(engines)
        ]
        return self.ranks

    def start(self, engines: Sequence[str], **options: Any) -> list[Rank]:
        """Make the ranks and start them all; returns when every engine runs."""
        for rank in self.make(engines, **options):
            rank.start()
        for rank in self.ranks:
            rank.wait_state("running", "failed")
        return self.ranks

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
