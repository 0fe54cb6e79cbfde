"""A simulated cluster: nodes, wires and the controller's place among them."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from tests.testbed import leavings
from tests.testbed.disk import USER
from tests.testbed.network import FABRIC, Network, enter
from tests.testbed.node import Node
from tests.testbed.options import Options
from tests.testbed.shell import run

if TYPE_CHECKING:
    from sparkserve.model.cluster import Cluster

LASTING_PREFIX = "sst-cli"
_counter = itertools.count(1)


class BootTimes(NamedTuple):
    """How long the parts of `Testbed.up` took."""

    files_s: float
    network_s: float
    boot_s: float


class Testbed:
    """One to sixteen simulated Sparks and a controller; use it as a context manager."""

    __test__ = False

    def __init__(self, options: Options | None = None, *, prefix: str | None = None) -> None:
        self.options = options or Options()
        self.prefix = prefix or f"sst{os.getpid()}.{next(_counter)}"
        self.folder = leavings.BASE / self.prefix
        self.network = Network(self.prefix, self.options.nodes)
        self.nodes = tuple(
            Node(number, self.folder, self.network, self.options)
            for number in range(1, self.options.nodes + 1)
        )

    @classmethod
    def attach(cls, prefix: str = LASTING_PREFIX) -> Testbed:
        """The objects of a cluster that another process made.

        Raises:
            FileNotFoundError: there is none of that name.
        """
        text = (leavings.BASE / prefix / "options.json").read_text()
        return cls(Options.from_json(text), prefix=prefix)

    # -- life --------------------------------------------------------------------------------

    def up(self) -> BootTimes:
        """Remove what dead owners left, then build everything and wait for every sshd."""
        begin = time.monotonic()
        with leavings.lock():
            leavings.sweep()
            leavings.claim(self.prefix, lasting=self.prefix == LASTING_PREFIX)
            try:
                (self.folder / "options.json").write_text(self.options.to_json())
                run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "controller", "-f",
                    self.identity_file)  # fmt: skip
                self._create_nodes()
                (self.folder / "known_hosts").write_text(self.known_hosts_text())
                files = time.monotonic()
                self.network.up()
            except BaseException:
                self._tear_down()
                raise
        network = time.monotonic()
        try:
            self._boot()
        except BaseException:
            self.down()
            raise
        return BootTimes(files - begin, network - files, time.monotonic() - network)

    def down(self) -> None:
        """Remove every process, mount, namespace and file of the cluster; harmless if gone."""
        with leavings.lock():
            if self.folder.is_dir():
                self._tear_down()

    def reset(self) -> None:
        """Make all nodes as new: faults undone, facts as built, disks empty, host keys kept."""
        for node in self.nodes:
            node.destroy()
            node.facts = type(node.facts)()
        self._create_nodes()
        for node in self.nodes:
            node.restore_network()
        self._boot()

    def _tear_down(self) -> None:
        for node in self.nodes:
            node.destroy()
        leavings.remove(self.prefix)

    def _create_nodes(self) -> None:
        public_key = self.identity_file.with_suffix(".pub").read_text()
        for node in self.nodes:
            node.create(public_key)

    def _boot(self) -> None:
        for node in self.nodes:
            node.begin_start()
        for node in self.nodes:
            node.wait_ready()

    def __enter__(self) -> Testbed:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    # -- the controller ----------------------------------------------------------------------

    def enter(self) -> AbstractContextManager[None]:
        """Let the calling thread, and threads started inside, act from the controller's place."""
        return enter(self.network.controller)

    def controller_argv(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs ``argv`` as a process at the controller's place."""
        return ["nsenter", f"--net=/run/netns/{self.network.controller}", "--", *argv]

    def ssh_argv(self, node: Node, argv: Sequence[str] = (), *, user: str = USER) -> list[str]:
        """OpenSSH's command line from the controller to a node; ``argv`` is joined by ssh."""
        options = {
            "IdentityFile": self.identity_file,
            "UserKnownHostsFile": self.known_hosts_file,
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": 5,
            "LogLevel": "ERROR",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        command = ["ssh", "-F", "none", *words, f"{user}@{node.address}", *argv]
        return self.controller_argv(command)

    @property
    def identity_file(self) -> Path:
        """Private key that ``spark`` and ``root`` of every node accept."""
        return self.folder / "id_ed25519"

    @property
    def known_hosts_file(self) -> Path:
        """The nodes' host keys, for management and fabric addresses and names."""
        return self.folder / "known_hosts"

    def known_hosts_text(self) -> str:
        """The nodes' original host keys in OpenSSH's format, one line a node."""
        lines = []
        for node in self.nodes:
            key = " ".join(node.host_key_file.with_suffix(".pub").read_text().split()[:2])
            lines.append(f"{node.address},{node.fabric_address},{node.name} {key}\n")
        return "".join(lines)

    # -- as sparkserve sees it ---------------------------------------------------------------

    def cluster(self, *, name: str = "testbed", root: str = "~/sparkserve") -> Cluster:
        """The cluster as sparkserve's model: user spark, management and fabric addresses."""
        from sparkserve.model.cluster import Cluster
        from sparkserve.model.cluster import Node as ModelNode

        topology = {1: "solo", 2: "pair"}.get(len(self.nodes), "switch")
        return Cluster.model_validate(
            {
                "name": name,
                "topology": topology,
                "root": root,
                "identity_file": str(self.identity_file),
                "nodes": [
                    ModelNode(
                        name=node.name,
                        host=node.address,
                        user=USER,
                        fabric_address=node.fabric_address,
                        interface=FABRIC,
                    )
                    for node in self.nodes
                ],
            }
        )

    def cluster_toml(self, *, name: str = "testbed", root: str = "~/sparkserve") -> str:
        """The same cluster as the text of a cluster file."""
        model = self.cluster(name=name, root=root)
        lines = [f'{key} = "{getattr(model, key)}"'
                 for key in ("name", "topology", "root", "identity_file")]  # fmt: skip
        for node in model.nodes:
            lines.append("\n[[nodes]]")
            fields = node.model_dump(exclude_none=True, exclude_defaults=True)
            lines += [f'{key} = "{value}"' for key, value in fields.items()]
        return "\n".join(lines) + "\n"


def take_down_lasting() -> bool:
    """Remove the cluster that ``up`` left for people; False where there is none."""
    with leavings.lock():
        leavings.sweep()
        there = (leavings.BASE / LASTING_PREFIX).is_dir()
        if there:
            leavings.remove(LASTING_PREFIX)
    return there
