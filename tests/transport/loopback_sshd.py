"""A real sshd on 127.0.0.1 with keys of its own, for tests that need no namespaces."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkserve.model.cluster import Cluster, Node
from tests.ports import free_port

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def wait_until(condition, what, seconds=20.0):
    """Poll a condition; fail with a sentence when the deadline has passed."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.02)
    return value


def make_key(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Generate a key pair."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)],
        check=True,
    )
    return path


class LoopbackSshd:
    """One sshd process; start, stop and give it another host key at will."""

    def __init__(self, folder: Path, *, extra: str = "") -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.port = free_port()
        self.user_key = make_key(folder / "user_key")
        self.host_key = make_key(folder / "host_key")
        self.authorized = folder / "authorized_keys"
        self.authorized.write_text((folder / "user_key.pub").read_text())
        self.known_hosts = folder / "known_hosts"
        self.extra = extra
        self._process: subprocess.Popen[bytes] | None = None
        self.trust()

    def trust(self) -> None:
        """Write our known_hosts file anew with the present host key."""
        kind, blob, *_ = Path(f"{self.host_key}.pub").read_text().split()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {kind} {blob}\n")

    def start(self) -> None:
        """Start sshd and wait until it listens."""
        Path("/run/sshd").mkdir(exist_ok=True)
        config = self.folder / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.host_key}\n"
            f"AuthorizedKeysFile {self.authorized}\nPidFile none\nUsePAM no\nStrictModes no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            f"PermitRootLogin prohibit-password\nMaxStartups 100\nPrintMotd no\n{self.extra}\n"
        )
        log = (self.folder / "sshd.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [str(SSHD), "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log
            )
        wait_until(self._listens, f"sshd listens on {self.port}: {self.log()}")

    def stop(self) -> None:
        """End the listening process; open sessions go on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def sessions(self) -> list[int]:
        """Pids of the sshd processes that serve our open connections."""
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                line = (folder / "status").read_text()
                if self._process and f"\nPPid:\t{self._process.pid}\n" in line:
                    found.append(int(folder.name))
        return found

    def log(self) -> str:
        """What sshd wrote to its log."""
        path = self.folder / "sshd.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def node(self, name: str = "spark1") -> Node:
        """The server as a node."""
        return Node(name=name, host="127.0.0.1", port=self.port, user=getpass.getuser())

    def cluster(self, *, name: str = "loop") -> Cluster:
        """A cluster of this one node."""
        return Cluster(name=name, nodes=(self.node(),), identity_file=str(self.user_key))

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def needs_sshd() -> None:
    """Skip where no sshd can run."""
    if SSHD is None:
        pytest.skip("needs sshd (apt-get install openssh-server)")
    if os.geteuid() != 0:
        pytest.skip("needs root to run sshd")


@contextlib.contextmanager
def running_sshd(folder: Path, *, extra: str = "") -> Iterator[LoopbackSshd]:
    """An sshd that is gone afterwards."""
    needs_sshd()
    server = LoopbackSshd(folder, extra=extra)
    server.start()
    try:
        yield server
    finally:
        server.stop()
