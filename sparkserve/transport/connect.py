"""Open the hosts of a cluster, and small questions that every user of hosts asks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from sparkserve.errors import ConfigError, NodeError, RemoteError
from sparkserve.model.cluster import Cluster, Node
from sparkserve.paths import known_hosts_file
from sparkserve.transport.host import GroupResult, Host, require
from sparkserve.transport.hostkeys import HostKey
from sparkserve.transport.local import LocalHost
from sparkserve.transport.target import Target, configured_target, plain_target

_QUESTION_S = 30.0
_USER = re.compile(r"~[A-Za-z0-9_][A-Za-z0-9._-]*")


def connect(
    cluster: Cluster, *, known_hosts: Path | None = None, use_ssh_config: bool = True
) -> GroupResult[Host]:
    """Open all nodes of a cluster at once.

    known_hosts: our file of accepted keys; None = ``paths.known_hosts_file()``.
    use_ssh_config: whether the user's OpenSSH configuration and known_hosts are followed.

    Returns:
        Hosts of the nodes that could be opened, in rank order, and errors of the others;
        close them with ``close_hosts``.

    Raises:
        ConfigError: the identity file is missing, or OpenSSH refuses its configuration.
    """
    accepted = known_hosts or known_hosts_file()
    with ThreadPoolExecutor(len(cluster.nodes), thread_name_prefix="connect") as pool:
        futures = {
            node.name: pool.submit(_open, cluster, node, accepted, use_ssh_config=use_ssh_config)
            for node in cluster.nodes
        }
        try:
            wait(futures.values())
            return _gathered(futures)
        except BaseException:
            for future in futures.values():
                future.cancel()
            wait(futures.values())
            close_hosts(f.result() for f in futures.values() if _succeeded(f))
            raise


def close_hosts(hosts: Iterable[Host]) -> None:
    """Close hosts; give it ``group.values()``."""
    for host in hosts:
        host.close()


def fetch_host_key(
    cluster: Cluster,
    node: Node,
    *,
    known_hosts: Path | None = None,
    use_ssh_config: bool = True,
) -> HostKey:
    """Ask a node's SSH server for its host key, to show it before it is recorded.

    Raises:
        UnreachableError: no answer.
        ConfigError: the node is this machine, or as ``connect``.
    """
    if node.is_local:
        raise ConfigError(f"{node.name} is this machine: it has no host key to trust")
    from sparkserve.transport import ssh

    target = _target(cluster, node, use_ssh_config=use_ssh_config)
    return ssh.fetch_host_key(target, known_hosts=known_hosts or known_hosts_file())


def resolve_root(host: Host, root: str) -> str:
    """The absolute form of a node's root: ``~`` is the home of the ssh user on the node.

    Raises:
        ConfigError: the root is neither absolute nor begins with ``~``.
        RemoteError: the node knows no such home.
    """
    head, slash, rest = root.partition("/")
    if root.startswith("/"):
        return root.rstrip("/") or "/"
    if head != "~" and not _USER.fullmatch(head):
        raise ConfigError(f"root {root!r}, expected an absolute path or one that begins with ~/")
    # Only the shell knows; the user's name was checked, so nothing else can stand there.
    result = require(
        host.run(["sh", "-c", f"printf %s {head}"], timeout_s=_QUESTION_S), f"resolve {root}"
    )
    home = result.stdout
    if not home.startswith("/"):
        raise RemoteError(host.name, f"{head} is {home!r}, expected a path", result=result)
    return (home.rstrip("/") + slash + rest).rstrip("/")


def _open(cluster: Cluster, node: Node, known_hosts: Path, *, use_ssh_config: bool) -> Host:
    if node.is_local:
        return LocalHost(node.name)
    from sparkserve.transport import ssh

    target = _target(cluster, node, use_ssh_config=use_ssh_config)
    host = ssh.SshHost(target, known_hosts=known_hosts)
    host.open()
    return host


def _target(cluster: Cluster, node: Node, *, use_ssh_config: bool) -> Target:
    find = configured_target if use_ssh_config else plain_target
    return find(node, cluster.identity_file)


def _gathered(futures: dict[str, Future[Host]]) -> GroupResult[Host]:
    hosts: dict[str, Host] = {}
    errors: dict[str, NodeError] = {}
    for name, future in futures.items():
        try:
            hosts[name] = future.result()
        except NodeError as error:
            errors[name] = error
    return GroupResult(hosts, errors)


def _succeeded(future: Future[Host]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
