"""Where a node's SSH server is and what may be offered to it, as OpenSSH itself would decide.

``ssh -G`` answers for the user's configuration, so aliases, Include, Match and ProxyJump mean
here what they mean on the command line.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sparkserve.errors import ConfigError
from sparkserve.model.cluster import Node
from sparkserve.transport.hostkeys import place_of
from sparkserve.transport.local import LocalHost

_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_SSH_G_TIMEOUT_S = 10.0
# More hops than anybody has; a circle of ProxyJump lines ends here.
_MAX_HOPS = 6


@dataclass(frozen=True)
class Target:
    """One SSH server on the way to a node, or the node's own."""

    node: str
    host: str
    port: int
    user: str
    identity_files: tuple[Path, ...] = ()
    use_agent: bool = True
    known_hosts: tuple[Path, ...] = ()
    """The user's known_hosts files, read after our own."""
    proxy_command: str | None = None
    jumps: tuple[Target, ...] = ()
    """Servers to go through, first the one that is reached directly."""

    @property
    def address(self) -> str:
        """``host:port`` for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def place(self) -> str:
        """Name in known_hosts files."""
        return place_of(self.host, self.port)

    @property
    def ssh_command(self) -> str:
        """The OpenSSH command that reaches the same server, for hints."""
        port = "" if self.port == 22 else f"-p {self.port} "
        return f"ssh {port}{self.user}@{self.host}"


def plain_target(node: Node, identity_file: str | None) -> Target:
    """The target of a node without any look at OpenSSH's configuration.

    Raises:
        ConfigError: the identity file does not exist.
    """
    home = Path.home() / ".ssh"
    keys = _explicit_key(identity_file) or tuple(home / name for name in _DEFAULT_KEYS)
    return Target(
        node=node.name,
        host=node.host,
        port=node.port,
        user=node.user or getpass.getuser(),
        identity_files=keys,
        use_agent=identity_file is None,
    )


def configured_target(
    node: Node, identity_file: str | None, *, config_file: Path | None = None
) -> Target:
    """The target of a node as the user's OpenSSH configuration has it.

    config_file: another configuration than the user's and the system's (``ssh -F``).

    The cluster file's user, port and identity file win over the configuration. Without an
    ``ssh`` program there is no configuration to follow.

    Raises:
        ConfigError: the identity file does not exist, or ssh refuses its own configuration.
    """
    return _configured(node, _explicit_key(identity_file), _Asking(config_file))


@dataclass(frozen=True)
class _Asking:
    config_file: Path | None
    hops: int = 0


def _configured(node: Node, keys: tuple[Path, ...], asking: _Asking) -> Target:
    settings = _ask_ssh(node, asking)
    if settings is None:
        return replace(plain_target(node, None), identity_files=keys, use_agent=not keys)
    target = Target(
        node=node.name,
        host=settings["hostname"][0],
        port=int(settings["port"][0]),
        user=settings["user"][0],
    )
    tokens = {
        "%d": str(Path.home()),
        "%h": target.host,
        "%n": node.host,
        "%p": str(target.port),
        "%r": target.user,
        "%u": getpass.getuser(),
        "%%": "%",
    }
    only = settings.get("identitiesonly", ["no"])[0] == "yes"
    target = replace(
        target,
        identity_files=keys
        or tuple(
            Path(_filled_in(name, tokens)).expanduser() for name in settings.get("identityfile", [])
        ),
        use_agent=not keys and not only,
        known_hosts=tuple(
            Path(name).expanduser()
            for kind in ("userknownhostsfile", "globalknownhostsfile")
            for line in settings.get(kind, [])
            for name in line.split()
        ),
    )
    command = settings.get("proxycommand", ["none"])[0]
    jumps = settings.get("proxyjump", ["none"])[0]
    if jumps != "none":
        return replace(target, jumps=_jumps(node.name, jumps, asking))
    if command == "none":
        return target
    return replace(target, proxy_command=_filled_in(command, tokens))


def _jumps(node: str, chain: str, asking: _Asking) -> tuple[Target, ...]:
    if asking.hops >= _MAX_HOPS:
        raise ConfigError(
            f"{node}: ProxyJump leads through more than {_MAX_HOPS} hosts", hint="ssh -G HOST"
        )
    hops: list[Target] = []
    for text in chain.split(","):
        hop = _configured(_hop_node(node, text), (), replace(asking, hops=asking.hops + 1))
        # Only the first hop's own jumps are followed: the others are reached through it.
        hops.extend([*hop.jumps, replace(hop, jumps=())] if not hops else [replace(hop, jumps=())])
    return tuple(hops)


def _hop_node(node: str, text: str) -> Node:
    user, _, place = text.strip().removeprefix("ssh://").rpartition("@")
    host, port = place, "22"
    if place.startswith("["):
        host, _, tail = place[1:].partition("]")
        port = tail.lstrip(":") or "22"
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
    return Node(name=node, host=host, user=user or None, port=int(port))


def _ask_ssh(node: Node, asking: _Asking) -> Mapping[str, list[str]] | None:
    """What ``ssh -G`` prints, keyword -> values; None where there is no ssh program."""
    argv = ["ssh", "-G"]
    if asking.config_file is not None:
        argv += ["-F", str(asking.config_file)]
    if node.user:
        argv += ["-l", node.user]
    if node.port != 22:
        argv += ["-p", str(node.port)]
    result = LocalHost(node.name).run([*argv, "--", node.host], timeout_s=_SSH_G_TIMEOUT_S)
    if result.exit_code == 127:
        return None
    if not result.ok:
        raise ConfigError(
            f"{node.name}: ssh does not accept its configuration: {result.tail(3)}",
            hint=f"ssh -G {node.host}",
        )
    settings: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        settings.setdefault(keyword, []).append(value)
    return settings


def _filled_in(text: str, tokens: Mapping[str, str]) -> str:
    """Replace OpenSSH's percent tokens; unknown ones stay."""
    return re.sub("%.", lambda found: tokens.get(found.group(), found.group()), text)


def _explicit_key(identity_file: str | None) -> tuple[Path, ...]:
    if identity_file is None:
        return ()
    path = Path(identity_file).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"identity_file {path} does not exist", hint=f"ssh-keygen -t ed25519 -f {path}"
        )
    return (path,)
