"""Cluster files and host lists: from TOML or a command line to a Cluster, and back.

One file per fleet, ``<config>/clusters/<name>.toml``: the fields of ``model.cluster.Cluster``
but its name, ``[[nodes]]`` in rank order, and ``[overrides]`` for the profile.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkserve.errors import ConfigError
from sparkserve.files import save_file
from sparkserve.model.cluster import Cluster, Node, Topology
from sparkserve.paths import config_dir
from sparkserve.tomlfile import emit_toml, read_toml

LOCAL_NAME = "this-machine"
MAX_NODES = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?\.?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class ClusterFile:
    """A cluster as it is kept on disk."""

    cluster: Cluster
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Nested profile values of the ``[overrides]`` table; judged when a profile is loaded."""
    path: Path | None = None
    """None until it is saved."""


def folder() -> Path:
    """Where cluster files lie."""
    return config_dir() / "clusters"


def path_of(name: str) -> Path:
    """Where the file of a cluster lies or would lie.

    Raises:
        ConfigError: the name cannot be a file's name.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"cluster name {name!r}, expected letters, digits, dots, dashes and underscores"
        )
    return folder() / f"{name}.toml"


def names() -> tuple[str, ...]:
    """Names of the saved clusters, sorted."""
    if not folder().is_dir():
        return ()
    return tuple(sorted(path.stem for path in folder().glob("*.toml") if path.is_file()))


def load(name: str) -> ClusterFile:
    """Read a saved cluster.

    Raises:
        ConfigError: no such cluster (nearest match and list in the message), or its file is
            wrong (file and key named).
    """
    path = path_of(name)
    if not path.is_file():
        near = difflib.get_close_matches(name, names(), n=1)
        guess = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError(
            f"no cluster {name!r}{guess}; there are: {', '.join(names()) or 'none'}",
            hint="sparkserve cluster list"
            if names()
            else f"sparkserve cluster init {name} --hosts spark1,spark2",
        )
    data = read_toml(path)
    overrides = data.pop("overrides", {})
    if not isinstance(overrides, dict):
        raise ConfigError(f"{path}: overrides = {overrides!r}, expected a table")
    if data.setdefault("name", name) != name:
        raise ConfigError(
            f"{path}: name = {data['name']!r}, expected the file's own name {name!r}",
            hint="leave the line out or rename the file",
        )
    cluster = _validated(data, path)
    for node in cluster.nodes:
        _check_node(node, path)
    return ClusterFile(cluster, overrides, path)


def save(cluster: Cluster, *, overrides: Mapping[str, Any] | None = None) -> Path:
    """Write a cluster's file, atomically, in place of any older one.

    Raises:
        ConfigError: its name cannot be a file's name, or the file cannot be written.
    """
    data = cluster.model_dump(mode="json", exclude_none=True, exclude={"name", "nodes"})
    data["nodes"] = [
        {
            key: value
            for key, value in node.model_dump(mode="json", exclude_none=True).items()
            if (key, value) != ("port", 22)
        }
        for node in cluster.nodes
    ]
    if overrides:
        data["overrides"] = dict(overrides)
    path = path_of(cluster.name)
    text = f"# Cluster {cluster.name}: nodes in rank order, rank 0 first.\n{emit_toml(data)}"
    save_file(path, text.encode(), mode=0o600)
    return path


def default_name() -> str | None:
    """Name of the cluster that commands use when none is named; None if none was chosen.

    Raises:
        ConfigError: the chosen cluster's file is gone.
    """
    mark = _default_file()
    if not mark.is_file():
        return None
    name = mark.read_text(encoding="utf-8").strip()
    if name not in names():
        raise ConfigError(
            f"the default cluster {name!r} has no file {path_of(name)}; "
            f"there are: {', '.join(names()) or 'none'}",
            hint="sparkserve cluster use --none",
        )
    return name


def set_default(name: str | None) -> None:
    """Choose the default cluster; None forgets the choice.

    Raises:
        ConfigError: no such cluster, or the choice cannot be written.
    """
    if name is None:
        _default_file().unlink(missing_ok=True)
        return
    load(name)
    save_file(_default_file(), f"{name}\n".encode(), mode=0o600)


def this_machine() -> Cluster:
    """The cluster of one node that is the machine sparkserve runs on, reached without SSH."""
    return Cluster(name=LOCAL_NAME, nodes=(Node(name="local", host="local"),), topology="solo")


def from_hosts(hosts: str | Sequence[str], *, name: str = "hosts") -> Cluster:
    """Make a cluster from ``user@host:port`` texts in rank order.

    hosts: a list, or one text with commas; ``[v6address]:port`` for IPv6; ``local`` or
        ``localhost`` alone is this machine without SSH.

    Raises:
        ConfigError: nothing, an empty or malformed entry, a host twice, more than eight.
    """
    entries = hosts.split(",") if isinstance(hosts, str) else list(hosts)
    return _from_entries([(entry.strip(), "host list") for entry in entries], name)


def from_hosts_file(path: Path, *, name: str | None = None) -> Cluster:
    """Make a cluster from a file with one host a line; ``#`` starts a comment.

    Raises:
        ConfigError: the file cannot be read, or as ``from_hosts``, with the line's number.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read hosts file {path}: {error}") from error
    entries = [
        (line.partition("#")[0].strip(), f"{path} line {number}")
        for number, line in enumerate(lines, start=1)
    ]
    return _from_entries([entry for entry in entries if entry[0]], name or path.stem)


def parse_host(text: str, *, where: str = "host list") -> Node:
    """Read one ``user@host:port``; the node is named after the host.

    Raises:
        ConfigError: the text is not a host; ``where`` stands in the message.
    """
    if not text:
        raise ConfigError(f"{where}: an empty host", hint="write hosts as a,b,c without gaps")
    if text in ("local", "localhost"):
        return Node(name="local", host="local")
    user, at, rest = text.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise ConfigError(f"{where}: {text!r} has no valid user before the @")
    host, port = _host_and_port(rest, text, where)
    return Node(name=_node_name(host), host=host, user=user or None, port=port)


def _host_and_port(rest: str, text: str, where: str) -> tuple[str, int]:
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket or not _is_ipv6(host) or (tail and not tail.startswith(":")):
            raise ConfigError(f"{where}: {text!r}, expected [IPv6 address]:port")
        return host, _port(tail[1:], text, where) if tail else 22
    if rest.count(":") > 1:
        raise ConfigError(
            f"{where}: {text!r} looks like an IPv6 address", hint=f"write it as [{rest}]"
        )
    host, colon, port = rest.partition(":")
    if not _HOST.fullmatch(host):
        raise ConfigError(f"{where}: {text!r} is no host, expected user@host:port")
    return host, _port(port, text, where) if colon else 22


def _port(digits: str, text: str, where: str) -> int:
    if digits.isascii() and digits.isdigit() and 1 <= int(digits) <= 65535:
        return int(digits)
    raise ConfigError(f"{where}: {text!r} has port {digits!r}, expected 1 to 65535")


def _check_node(node: Node, path: Path) -> None:
    """Names become folders and host and user reach SSH: nothing odd may stand in them."""
    if not _NAME.fullmatch(node.name):
        raise ConfigError(f"{path}: node name {node.name!r}, expected letters, digits and .-_")
    if not (_HOST.fullmatch(node.host) or _is_ipv6(node.host)):
        raise ConfigError(f"{path}: host {node.host!r} of {node.name} is no name or address")
    if node.user is not None and not _USER.fullmatch(node.user):
        raise ConfigError(f"{path}: user {node.user!r} of {node.name} is no user name")
    if not 1 <= node.port <= 65535:
        raise ConfigError(f"{path}: port {node.port} of {node.name}, expected 1 to 65535")


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _node_name(host: str) -> str:
    if host.replace(".", "").isdigit():
        return host
    if ":" in host:
        return re.sub(r"[^A-Za-z0-9]+", "-", host).strip("-")
    return host.partition(".")[0]


def _from_entries(entries: Iterable[tuple[str, str]], name: str) -> Cluster:
    nodes: list[Node] = []
    for text, where in entries:
        node = parse_host(text, where=where)
        for other in nodes:
            if (other.host, other.port) == (node.host, node.port):
                raise ConfigError(f"{where}: {text!r} names the same host and port twice")
        nodes.append(node)
    if not nodes:
        raise ConfigError("no hosts given", hint="sparkserve cluster init --hosts spark1,spark2")
    if len(nodes) > MAX_NODES:
        raise ConfigError(f"{len(nodes)} hosts given, expected at most {MAX_NODES}")
    data = {
        "name": name,
        "nodes": [node.model_dump(mode="json") for node in _with_distinct_names(nodes)],
        "topology": _topology(len(nodes)),
    }
    return _validated(data, None)


def _with_distinct_names(nodes: Sequence[Node]) -> list[Node]:
    """Rename nodes whose short names collide: by the full host name, then by the port too."""
    distinct = list(nodes)
    for rename in (
        lambda node: node.host if ":" not in node.host else node.name,
        lambda node: f"{node.name}-{node.port}",
    ):
        taken = [node.name for node in distinct]
        distinct = [
            node.model_copy(update={"name": rename(node)}) if taken.count(node.name) > 1 else node
            for node in distinct
        ]
    return distinct


def _topology(count: int) -> Topology:
    # Only the small ones follow from the count; a triangle or ring must be said.
    return {1: "solo", 2: "pair"}.get(count, "switch")  # type: ignore[return-value]


def _validated(data: Mapping[str, Any], path: Path | None) -> Cluster:
    try:
        return Cluster.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        problems = [_sentence(dict(item)) for item in error.errors()]
        place = f"{path}: " if path else ""
        text = problems[0] if len(problems) == 1 else "".join(f"\n  - {one}" for one in problems)
        raise ConfigError(f"{place}{text}") from error


def _sentence(item: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        known = list(Node.model_fields if key.startswith("nodes.") else Cluster.model_fields)
        near = difflib.get_close_matches(key.rpartition(".")[2], [*known, "overrides"], n=1)
        return f"{key} is not a setting" + (f"; did you mean {near[0]}?" if near else "")
    if item["type"] == "missing":
        return f"{key} is missing"
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    expected = str(item["msg"]).removeprefix("Input should be ")
    return f"{key} = {json.dumps(item['input'], default=str)}, expected {expected}"


def _default_file() -> Path:
    return folder() / "default"
