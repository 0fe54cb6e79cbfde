"""Why a node could not be used, in sentences: unreachable, not trusted, not authorised."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from sparkserve.errors import AuthenticationError, HostKeyError, UnreachableError
from sparkserve.transport.hostkeys import HostKey
from sparkserve.transport.target import Target


def unreachable(target: Target, error: Exception) -> UnreachableError:
    """The error for a server that could not be talked to."""
    place, node = target.address, target.node
    if isinstance(error, UnreachableError):
        return error
    if isinstance(error, socket.gaierror):
        return UnreachableError(
            node,
            f"the name {target.host} cannot be resolved: {error.strerror or error}",
            hint=f"getent hosts {target.host}",
        )
    if isinstance(error, TimeoutError):
        return UnreachableError(
            node,
            f"no answer from {place}: the node is off, another address is meant, or a firewall "
            "drops the packets",
            hint=f"ping -c 3 {target.host}",
        )
    refused = _errno_of(error)
    if isinstance(error, ConnectionRefusedError) or refused == errno.ECONNREFUSED:
        return UnreachableError(
            node,
            f"{place} refused the connection: the machine is up, but no SSH server listens there",
            hint="on the node: sudo systemctl status ssh",
        )
    if refused in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return UnreachableError(node, f"no route to {place}", hint=f"ip route get {target.host}")
    if isinstance(error, OSError | EOFError):
        return UnreachableError(
            node,
            f"{place} ended the connection during the handshake: {error or type(error).__name__}",
            hint=f"{target.ssh_command} true",
        )
    return UnreachableError(
        node,
        f"{place} answers, but not as an SSH server we understand: {error}",
        hint=f"{target.ssh_command} true",
    )


def unknown_key(target: Target, key: HostKey) -> HostKeyError:
    """The error for a server whose key nobody has accepted yet."""
    return HostKeyError(
        target.node,
        f"host key of {target.address} is not known: {key.type} {key.fingerprint_sha256}; "
        f"compare it with the node's own (there: ssh-keygen -lf {_key_file(key)})",
        hint=f"sparkserve cluster trust {target.node}",
    )


def changed_key(target: Target, *, recorded: HostKey, shown: HostKey) -> HostKeyError:
    """The error for a server that shows another key than the recorded one."""
    return HostKeyError(
        target.node,
        f"HOST KEY OF {target.address} HAS CHANGED: recorded {recorded.type} "
        f"{recorded.fingerprint_sha256}, shown {shown.type} {shown.fingerprint_sha256}; the node "
        "was installed anew, its address went to another machine, or somebody stands in between",
        hint=f"compare at the node's own console (ssh-keygen -lf {_key_file(shown)}); "
        f"only if it is the shown one: sparkserve cluster trust {target.node}",
    )


def refused_keys(
    target: Target, offered: Sequence[str], unusable: Sequence[str], reason: str
) -> AuthenticationError:
    """The error for a server that accepted none of our keys."""
    parts = [
        f"{target.user}@{target.address} accepted no key",
        f"offered: {', '.join(offered) or 'none'}",
    ]
    if unusable:
        parts.append(f"not usable: {', '.join(unusable)}")
    if reason and "Authentication failed" not in reason and "no key" not in reason:
        parts.append(reason)
    port = "" if target.port == 22 else f"-p {target.port} "
    return AuthenticationError(
        target.node, "; ".join(parts), hint=f"ssh-copy-id {port}{target.user}@{target.host}"
    )


def _errno_of(error: Exception) -> int | None:
    # paramiko's NoValidConnectionsError has no errno of its own but errors per address.
    inner = getattr(error, "errors", None)
    if isinstance(inner, dict) and inner:
        error = next(iter(inner.values()))
    return getattr(error, "errno", None)


def _key_file(key: HostKey) -> str:
    kind = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(key.type, "ecdsa")
    return f"/etc/ssh/ssh_host_{kind}_key.pub"
