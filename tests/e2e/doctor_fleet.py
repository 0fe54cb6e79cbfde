"""A whole simulated cluster as doctor meets it: disks, checkpoint, Engram shards, a profile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.fleet import Running, toml
from tests.engram.checkpoints import Checkpoint
from tests.engram.packing import job_of, pack
from tests.testbed.cluster import Testbed
from tests.testbed.node import Node

ROOT = "/mnt/nvme/sparkserve"
MODEL = "/mnt/nvme/model"
ENGRAM = "/mnt/nvme/engram"
LIMIT_S = 120

Finding = dict[str, Any]


@dataclass
class Answer:
    """What one ``doctor --json`` said."""

    code: int
    result: dict[str, Any]
    stderr: str

    @property
    def findings(self) -> list[Finding]:
        found: list[Finding] = self.result["findings"]
        return found

    @property
    def bad(self) -> list[Finding]:
        """Everything that failed, warnings included."""
        return [one for one in self.findings if one["outcome"] == "fail"]

    @property
    def unknown(self) -> list[Finding]:
        return [one for one in self.findings if one["outcome"] == "unknown"]

    def of(self, code: str) -> list[Finding]:
        """What failed under one code."""
        return [one for one in self.bad if one["code"] == code]


def told(findings: list[Finding]) -> str:
    """Findings in short, for the message of a failed assertion."""
    keys = ("code", "check_id", "node", "outcome", "severity", "observed", "fix")
    return "\n".join(" | ".join(str(one[key])[:160] for key in keys) for one in findings)


class DoctorFleet:
    """Simulated Sparks with everything a launch needs, and the doctor's command line to them."""

    def __init__(self, testbed: Testbed, folder: Path) -> None:
        self.testbed = testbed
        self.folder = folder
        self.config = folder / "config/sparkserve"
        (self.config / "clusters").mkdir(parents=True)
        self.known_hosts = self.config / "known_hosts"
        self.known_hosts.write_text(testbed.known_hosts_text())
        self.write_cluster()
        self.profile = self.write_profile()

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.testbed.nodes

    def write_cluster(self, *, topology: str = "switch", count: int = 4) -> None:
        """The cluster's file, over the first nodes."""
        text = "\n[[nodes]]".join(
            self.testbed.cluster_toml(name="fleet", root=ROOT).split("\n[[nodes]]")[: count + 1]
        )
        lines = [line for line in text.splitlines() if not line.startswith('name = "fleet"')]
        changed = "\n".join(lines).replace('topology = "switch"', f'topology = "{topology}"')
        (self.config / "clusters/fleet.toml").write_text(changed + "\n")

    def write_profile(self, name: str = "v41", **sections: Any) -> Path:
        """A profile over all nodes; ``sections`` override single keys."""
        data: dict[str, Any] = {
            "name": name,
            "model": {"path": MODEL, "served_name": "v41"},
            "engine": {"kind": "sglang", "python": sys.executable},
            "parallel": {"tp": len(self.nodes)},
            "engram": {"directory": ENGRAM, "layout": "columns"},
            "fabric": {
                "hca": ["rocep1s0f0", "roceP2p1s0f0"],
                "gid_policy": "pin",
                "gid_index": 3,
            },
            "limits": {"start_memory_gib": 100},
        }
        for key, values in sections.items():
            data[key] = {**data.get(key, {}), **values}
        path = self.folder / f"{name}.toml"
        path.write_text(toml(data))
        return path

    def fill_disks(self) -> None:
        """Give every node the checkpoint and its rank's shards."""
        checkpoint = Checkpoint(self.folder / "checkpoint").write()
        ranks = len(self.nodes)
        for rank, node in enumerate(self.nodes):
            disk = node.folder / "nvme"
            shutil.copytree(checkpoint.folder, disk / "model")
            done = pack(job_of(checkpoint, disk / "engram", tp=ranks, rank=rank, layout="columns"))
            assert done is not None
            node.inside(["sh", "-c", f"mkdir -p {ROOT}; chown -R spark {ROOT} {MODEL} {ENGRAM}"])

    def doctor(self, *arguments: str | Path, profile: Path | None = None) -> Answer:
        """Run ``doctor`` over the whole cluster."""
        target = ("--cluster", "fleet", "--profile", profile or self.profile)
        return self._answer(("doctor", *target, "--json", *arguments))

    def replay(self, folder: Path, *arguments: str) -> Answer:
        """Judge a saved folder, with no node in reach."""
        return self._answer(("doctor", "--replay", folder, "--json", *arguments), at_nodes=False)

    def start(self, *arguments: str | Path) -> Running:
        """Start a command of the controller and go on."""
        process = subprocess.Popen(
            self._argv(arguments, at_nodes=True), env=self._environment(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        return Running(process)

    def _answer(self, arguments: tuple[str | Path, ...], *, at_nodes: bool = True) -> Answer:
        done = subprocess.run(
            self._argv(arguments, at_nodes=at_nodes), env=self._environment(), text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        result = json.loads(done.stdout) if done.stdout.strip() else {}
        assert "findings" in result, f"exit {done.returncode}: {done.stdout}{done.stderr}"
        return Answer(done.returncode, result, done.stderr)

    def _argv(self, arguments: tuple[str | Path, ...], *, at_nodes: bool) -> list[str]:
        argv = [sys.executable, "-P", "-m", "sparkserve", *map(str, arguments)]
        return self.testbed.controller_argv(argv) if at_nodes else argv

    def _environment(self) -> dict[str, str]:
        own = {"HOME": str(self.folder)}
        own |= {f"XDG_{n}_HOME": str(self.folder / n.lower()) for n in ("CONFIG", "STATE", "CACHE")}
        return {**os.environ, **own}
