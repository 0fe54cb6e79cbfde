"""``sparkserve logs``: the engine log of one rank or of all, from the nodes."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable
from dataclasses import dataclass

from sparkserve.errors import ConfigError, NodeError
from sparkserve.model import run_files
from sparkserve.model.cluster import Cluster
from sparkserve.model.record import RunRecord
from sparkserve.ops.doors import Doors, worst
from sparkserve.ops.keyfile import read_api_key
from sparkserve.ops.run_choice import NEWEST, RunChoice, choose
from sparkserve.transport.host import Host, map_hosts

OnLine = Callable[[str, int, str], None]
"""Takes (node, rank, line); may be called from several threads."""


@dataclass(frozen=True)
class LogsRequest:
    """Whose log to show."""

    choice: RunChoice = NEWEST
    node: str | None = None
    """Node name or rank number; None = all ranks."""
    lines: int = 120
    follow: bool = False
    guard: bool = False
    """The guard's log in place of the engine's."""


def run(request: LogsRequest, doors: Doors, on_line: OnLine, cancel: threading.Event) -> RunRecord:
    """Hand over the lines of a run's logs; with ``follow`` until ``cancel`` is set.

    Returns:
        The run's record.

    Raises:
        ConfigError: no such run or node.
        NodeError: no node could be read.
    """
    record = choose(request.choice).record()
    cluster = _narrowed(record.cluster, request.node)
    group = doors.connect(cluster)
    hosts = list(group.values_by_node.values())
    tell = _without_key(record, on_line)
    try:
        read = map_hosts(hosts, lambda host: _read(host, record, request, tell, cancel))
    finally:
        cancel.set()
        for host in hosts:
            host.close()
    errors = [*group.errors_by_node.values(), *read.errors_by_node.values()]
    if errors and len(errors) == len(cluster.nodes):
        raise worst(errors)
    for error in errors:
        on_line(error.node, record.cluster.rank_of(error.node), f"({error.message})")
    return record


def _without_key(record: RunRecord, on_line: OnLine) -> OnLine:
    """Hand lines on without the run's API key: an engine may print what it was given."""
    try:
        key = read_api_key(record.profile.serving.api_key_file)
    except ConfigError:
        # The file is gone, and with it the only place where the key could be looked up.
        key = None
    if key is None:
        return on_line
    return lambda node, rank, line: on_line(node, rank, line.replace(key, "***"))


def _narrowed(cluster: Cluster, wanted: str | None) -> Cluster:
    if wanted is None:
        return cluster
    for rank, node in enumerate(cluster.nodes):
        if wanted in (node.name, str(rank)):
            return cluster.model_copy(update={"nodes": (node,)})
    known = ", ".join(f"{rank} {node.name}" for rank, node in enumerate(cluster.nodes))
    raise ConfigError(f"the run has no node {wanted!r}, expected one of: {known}")


def _read(
    host: Host,
    record: RunRecord,
    request: LogsRequest,
    on_line: OnLine,
    cancel: threading.Event,
) -> None:
    name = run_files.GUARD_LOG if request.guard else run_files.ENGINE_LOG
    path = f"{record.run_dirs[host.name]}/{name}"
    rank = record.cluster.rank_of(host.name)
    tail = ["tail", "-n", str(request.lines), *(["-F"] if request.follow else []), path]
    argv = [
        "sh",
        "-c",
        f"[ -e {shlex.quote(path)} ] || exit 66; exec {shlex.join(tail)} 2>/dev/null",
    ]
    result = host.stream(argv, on_line=lambda line: on_line(host.name, rank, line), cancel=cancel)
    if result.status == "exited" and result.exit_code == 66:
        raise NodeError(host.name, f"no log at {path}")
    if result.status == "lost" and not cancel.is_set():
        raise NodeError(host.name, "the connection was lost")
