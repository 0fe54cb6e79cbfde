"""The real `sparkserve` command as controller of simulated Sparks with real sshd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkserve.paths import config_dir
from tests.testbed.cluster import Testbed
from tests.testbed.node import Node
from tests.testbed.shell import wait_until

LIMIT_S = 300


@dataclass
class Finished:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The error as the command told it: on stderr, or in the last event with --json."""
        last = self.events[-1] if self.stdout.startswith("{") else {}
        told = last.get("data", {}).get("error", {}) if last.get("kind") == "result" else {}
        return self.stderr + "\n".join(str(told.get(key) or "") for key in ("message", "hint"))

    @property
    def events(self) -> list[dict[str, Any]]:
        """The NDJSON lines of stdout."""
        return [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]


@dataclass
class Running:
    """A command that still runs; its NDJSON lines are read as they come."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _readers: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        for stream, kept in ((self.process.stdout, self.lines), (self.process.stderr, self.errors)):
            thread = threading.Thread(target=lambda s=stream, k=kept: k.extend(s), daemon=True)
            thread.start()
            self._readers.append(thread)

    def wait_event(self, **wanted: str) -> dict[str, Any]:
        """Wait for an event whose fields have these values."""

        def found() -> dict[str, Any] | None:
            for line in list(self.lines):
                event: dict[str, Any] = json.loads(line)
                if all(event.get(key) == value for key, value in wanted.items()):
                    return event
            if self.process.poll() is not None:
                raise AssertionError(
                    f"ended with {self.process.returncode} before {wanted}: {self.errors}"
                )
            return None

        return wait_until(found, what=f"event {wanted}", deadline_s=LIMIT_S)

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def finish(self) -> Finished:
        code = self.process.wait(timeout=LIMIT_S)
        for reader in self._readers:
            reader.join(timeout=10)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return Finished(code, "".join(self.lines), "".join(self.errors))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.finish()


class Controller:
    """The `sparkserve` command with a profile of its own; ends what it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[Running] = []

    def run(self, *arguments: str | Path, stdin: str | None = None) -> Finished:
        """Run `sparkserve ...` to its end."""
        done = subprocess.run(
            self.argv(arguments),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=os.environ,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str | Path) -> Running:
        """Start `sparkserve ...` and go on."""
        process = subprocess.Popen(
            self.argv(arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
            start_new_session=True,
        )
        running = Running(process)
        self._running.append(running)
        return running

    def status(self) -> dict[str, Any]:
        """What `sparkserve status --json` says of the newest run."""
        asked = self.run("status", "--json")
        assert asked.code in (0, 1), asked.error
        found: dict[str, Any] = json.loads(asked.stdout)["status"]
        return found

    def write_profile(self, data: dict[str, Any]) -> Path:
        """A profile file, named after the profile."""
        path = self.folder / f"{data['name']}.toml"
        path.write_text(toml(data))
        return path

    def close(self) -> None:
        for running in self._running:
            running.close()

    def argv(self, arguments: Sequence[str | Path]) -> list[str]:
        """The whole command line."""
        return [sys.executable, "-m", "sparkserve", *map(str, arguments)]


class Local(Controller):
    """This machine as the only node."""

    def launch(self, **sections: Any) -> Finished:
        """Launch a profile made of these sections and wait for the end of the command."""
        return self.run("launch", "--profile", self.write_profile(sections), "--json")

    def close(self) -> None:
        """End what is left of the newest run, then the commands."""
        self.run("stop", "--now")
        super().close()


class Fleet(Controller):
    """A cluster `fleet` of simulated Sparks, a light-engine profile, and the CLI to drive them."""

    def __init__(self, testbed: Testbed, folder: Path) -> None:
        super().__init__(folder)
        self.testbed = testbed
        self.write_cluster("fleet", len(testbed.nodes))
        (config_dir() / "known_hosts").write_text(testbed.known_hosts_text())

    @property
    def nodes(self) -> list[Node]:
        return list(self.testbed.nodes)

    def write_cluster(self, name: str, count: int) -> None:
        from sparkserve import clusters

        cluster = self.testbed.cluster(name=name)
        clusters.save(cluster.take(count))

    def profile(self, ranks: int, *faults: str, **sections: Any) -> Path:
        """A profile of the light engine; ``faults`` are values of ``--light-fault``."""
        arguments = [part for fault in faults for part in ("--light-fault", fault)]
        data: dict[str, Any] = {
            "name": "light",
            "model": {"path": "none", "served_name": "light-model"},
            "engine": {"kind": "light", "python": sys.executable, "extra_args": arguments},
            "parallel": {"tp": ranks},
            "gate": {"prompt": "What is the capital of France?", "expect": "Paris"},
        }
        for name, values in sections.items():
            data[name] = {**data.get(name, {}), **values} if isinstance(values, dict) else values
        return self.write_profile(data)

    def launch(self, ranks: int, *faults: str, **sections: Any) -> Finished:
        """Launch on the first nodes and wait for the end of the command."""
        profile = self.profile(ranks, *faults, **sections)
        return self.run("launch", "--cluster", "fleet", "--profile", profile, "--json")

    def engine_processes(self) -> dict[str, list[str]]:
        """Processes of ours on the nodes: node name -> command lines (empty nodes left out)."""
        found = {}
        for node in self.nodes:
            if node.running:
                commands = [p.command for p in node.processes()]
                ours = [c for c in commands if "sparkserve" in c or "sglang" in c]
                if ours:
                    found[node.name] = ours
        return found

    def wait_silent(self, *nodes: Node, what: str = "no process of the run is left") -> None:
        """Wait until nothing of sparkserve runs on the nodes (all of them by default)."""
        names = {node.name for node in nodes or self.nodes}
        wait_until(lambda: not set(self.engine_processes()) & names, what=what, deadline_s=LIMIT_S)

    def argv(self, arguments: Sequence[str | Path]) -> list[str]:
        """The whole command line, in the controller's network."""
        return self.testbed.controller_argv(super().argv(arguments))


def toml(data: dict[str, Any]) -> str:
    """A profile as the text of its file."""

    def lines(table: dict[str, Any], prefix: str) -> Iterator[str]:
        plain = {k: v for k, v in table.items() if not isinstance(v, dict)}
        if prefix:
            yield f"[{prefix}]"
        for key, value in plain.items():
            yield f"{key} = {json.dumps(value)}"
        for key, value in table.items():
            if isinstance(value, dict):
                yield from lines(value, f"{prefix}.{key}" if prefix else key)

    return "\n".join(lines(data, "")) + "\n"
