"""The Host protocol: what can be done on a node, whatever way it is reached.

Results tell apart "the command failed" (status ``exited``, exit != 0), "the connection was
lost" and "our time limit passed": three situations with three different next steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from sparkserve.errors import NodeError, RemoteError

T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """What came of one command on one node."""

    node: str
    command: str
    """For messages only: shell-quoted and shortened."""
    status: Literal["exited", "lost", "timed-out"]
    exit_code: int | None
    """None unless status is ``exited``; a signal's number is negative (-128: not known which)."""
    stdout: str
    stderr: str
    elapsed_s: float

    @property
    def ok(self) -> bool:
        """Whether the command ran and returned 0."""
        return self.status == "exited" and self.exit_code == 0

    def tail(self, lines: int = 10) -> str:
        """The last lines of stderr, or of stdout where stderr is empty."""
        text = self.stderr.strip() or self.stdout.strip()
        return "\n".join(text.splitlines()[-lines:])


class Host(Protocol):
    """One node as a place to run commands and put files; safe to use from several threads."""

    @property
    def name(self) -> str:
        """The node's name in the cluster file."""

    def run(self, argv: Sequence[str], *, stdin: str | None = None, timeout_s: float) -> Result:
        """Run a program; each element of argv arrives as it is, never re-parsed by a shell.

        Never raises for the command's own failure: look at the result's status.
        """

    def script(self, text: str, *, timeout_s: float) -> Result:
        """Run a POSIX shell script that travels on stdin."""

    def stream(
        self,
        argv: Sequence[str],
        *,
        on_line: Callable[[str], None],
        cancel: threading.Event,
    ) -> Result:
        """Run a program and hand over each line of its stdout as it comes.

        Returns when the program ends, the connection is lost, or ``cancel`` is set (then the
        remote program is ended too). The result's stdout is empty.
        """

    def put(self, content: bytes, path: str, *, mode: int = 0o644) -> None:
        """Write a file: part name, fsync, hash compared, rename; parents are created.

        Raises:
            RemoteError: no space, no permission, or the hash differs; the old file is intact.
            ConnectionLostError: the link went away; the old file is intact.
        """

    def forward(self, remote_port: int) -> ForwardedPort:
        """Reach a TCP port that listens on the node's loopback; close it after use."""

    def close(self) -> None:
        """Close the connection; commands that run over it end, what detached itself goes on."""


class ForwardedPort(Protocol):
    """A local address that leads to a port on a node's loopback."""

    @property
    def port(self) -> int:
        """Local port on 127.0.0.1."""

    def close(self) -> None:
        """Stop forwarding."""


@dataclass(frozen=True)
class GroupResult(Mapping[str, T]):
    """What each node gave: values of the good ones, errors of the others; none hides another."""

    values_by_node: Mapping[str, T]
    errors_by_node: Mapping[str, NodeError]

    def __getitem__(self, node: str) -> T:
        """Value of one good node."""
        return self.values_by_node[node]

    def __iter__(self) -> Iterator[str]:
        """Names of the good nodes."""
        return iter(self.values_by_node)

    def __len__(self) -> int:
        """Number of good nodes."""
        return len(self.values_by_node)


def map_hosts(hosts: Sequence[Host], work: Callable[[Host], T]) -> GroupResult[T]:
    """Do the same work on all hosts at once; NodeErrors are collected, anything else is raised.

    An interrupt is raised at once: whoever closes the hosts ends what still runs on them.
    """
    values: dict[str, T] = {}
    errors: dict[str, NodeError] = {}
    if not hosts:
        return GroupResult(values, errors)
    pool = ThreadPoolExecutor(max_workers=len(hosts), thread_name_prefix="node")
    try:
        futures = {host.name: pool.submit(work, host) for host in hosts}
        for name, future in futures.items():
            try:
                values[name] = future.result()
            except NodeError as error:
                errors[name] = error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return GroupResult(values, errors)


def require(result: Result, what: str, *, hint: str | None = None) -> Result:
    """Return the result if it is ok.

    Raises:
        RemoteError: it is not; the message holds the command, the status and the last lines.
    """
    if result.ok:
        return result
    how = {
        "exited": f"exit {result.exit_code}",
        "lost": "connection lost",
        "timed-out": f"no end after {result.elapsed_s:.0f} s",
    }[result.status]
    tail = result.tail()
    detail = f"\n{tail}" if tail else ""
    raise RemoteError(
        result.node, f"{what}: {how}: {result.command}{detail}", result=result, hint=hint
    )
