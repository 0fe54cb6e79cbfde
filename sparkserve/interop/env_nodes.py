"""Node lists and SSH settings of an env file to a Cluster."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from pydantic import ValidationError

from sparkserve.interop.env_source import EnvSource
from sparkserve.model.cluster import Cluster, Node

_LEGACY = re.compile(r"WORKER(\d+)_(IP|HOST)")
_PLACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:%-]*")
_HEAD_ADDRESSES = ("HEAD_IP", "HEAD_NODE_IP", "MASTER_ADDR", "MASTER_IP")
_USERS = ("WORKER_USER", "SSH_USER")
_PORTS = ("WORKER_SSH_PORT", "SSH_PORT")
_KEYS = ("WORKER_KEY", "SSH_KEY", "SSH_KEY_FILE", "SSH_KEY_PATH", "SSH_IDENTITY_FILE")
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_TOPOLOGIES = {1: "solo", 2: "pair"}
MAX_NODES = 8


def take_cluster(source: EnvSource, name: str, *, head_is_local: bool) -> Cluster:
    """The cluster of an env file: the head is rank 0, the workers follow in their order.

    Raises:
        ConfigError: lists of different lengths, counts that contradict each other, no head
            where one is needed, or a place that is no host.
    """
    source.require_known(key for key in source.names if _names_nodes(key))
    addresses = _list(source, "IP")
    hosts = _list(source, "HOST")
    if addresses and hosts and len(addresses) != len(hosts):
        raise source.error(
            "WORKER_HOSTS", f"names {len(hosts)} workers, WORKER_IPS {len(addresses)}"
        )
    count = 1 + max(len(addresses), len(hosts))
    if count > MAX_NODES:
        raise source.error("WORKER_IPS", f"makes {count} nodes, expected at most {MAX_NODES}")
    for key in ("NNODES", "TP_SIZE"):
        told = source.take_int(key, "number of nodes" if key == "NNODES" else "parallel.tp")
        if told is not None and told != count:
            raise source.error(key, f"= {told}, but the head and {count - 1} workers are {count}")
    head_address = _head_address(source)
    head_host = source.take("HEAD_HOST", "nodes") or head_address
    if head_is_local:
        head_host = "local"
    if head_host is None:
        if count > 1:
            raise source.error("HEAD_IP", "is missing: workers cannot find the head")
        head_host = "local"
    workers: list[str | None] = [*addresses] if addresses else [None] * (count - 1)
    fabric = [head_address, *workers]
    places = [head_host, *(hosts or addresses)]
    return _built(source, name, list(zip(places, fabric, strict=True)))


def _names_nodes(key: str) -> bool:
    lists = ("WORKER_IPS", "WORKER_HOSTS", "HEAD_HOST", "DIST_INIT_ADDR", "NNODES", "TP_SIZE")
    return key in (*lists, *_HEAD_ADDRESSES) or _LEGACY.fullmatch(key) is not None


def _built(source: EnvSource, name: str, places: list[tuple[str, str | None]]) -> Cluster:
    user = _first(source, _USERS, "nodes.user")
    head_user = source.take("HEAD_USER", "nodes.user") or user
    port = int(_port(source) or 22)
    interface = _interface(source)
    names = _names([host for host, _ in places])
    data: Mapping[str, object] = {
        "name": name,
        "topology": _TOPOLOGIES.get(len(places), "switch"),
        "identity_file": _first(source, _KEYS, "identity_file"),
        "nodes": [
            Node(
                name=names[rank],
                host=host,
                user=None if host == "local" else (head_user if rank == 0 else user),
                port=22 if host == "local" else port,
                fabric_address=address if address != host else None,
                interface=interface,
            )
            for rank, (host, address) in enumerate(places)
        ],
    }
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        problem = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise source.error("WORKER_IPS", f"cannot make a cluster: {problem}") from error


def _list(source: EnvSource, kind: str) -> list[str]:
    """The workers' addresses or hosts: the list, or the legacy numbered keys."""
    key = f"WORKER_{kind}S"
    text = source.take(key, "nodes")
    numbered = sorted(
        (int(match[1]), other)
        for other in source.names
        if (match := _LEGACY.fullmatch(other)) and match[2] == kind and source.peek(other)
    )
    if text is not None:
        for _, other in numbered:
            source.drop(other, f"{key} is set and wins over the old numbered form")
        return [_place(source, key, word) for word in text.replace(",", " ").split()]
    if [number for number, _ in numbered] != list(range(1, len(numbered) + 1)):
        raise source.error(
            numbered[0][1], f"is numbered {numbered[0][0]}, expected 1 to {len(numbered)} in a row"
        )
    return [_place(source, other, source.take(other, "nodes") or "") for _, other in numbered]


def _head_address(source: EnvSource) -> str | None:
    found: dict[str, str] = {}
    for key in _HEAD_ADDRESSES:
        value = source.take(key, "nodes")
        if value is not None:
            found[key] = _place(source, key, value)
    rendezvous = source.peek("DIST_INIT_ADDR")
    if rendezvous is not None:
        found["DIST_INIT_ADDR"] = _place(source, "DIST_INIT_ADDR", rendezvous.rpartition(":")[0])
    if len(set(found.values())) > 1:
        told = ", ".join(f"{key} = {value}" for key, value in found.items())
        raise source.error(next(iter(found)), f"contradicts another name of the head: {told}")
    return next(iter(found.values()), None)


def _place(source: EnvSource, key: str, word: str) -> str:
    if not _PLACE.fullmatch(word):
        raise source.error(key, f"holds {word!r}, which is no host or address")
    if ":" in word:
        try:
            ipaddress.IPv6Address(word)
        except ValueError:
            raise source.error(key, f"holds {word!r}, which is no host or address") from None
    return word


def _first(source: EnvSource, keys: tuple[str, ...], goes_to: str) -> str | None:
    """The first of several names for one thing; the others are dropped, equal or not."""
    chosen: str | None = None
    winner = ""
    for key in keys:
        value = source.peek(key)
        if value is None:
            continue
        if chosen is None:
            chosen, winner = source.take(key, goes_to), key
        else:
            source.drop(key, f"{winner} is set and wins" if value != chosen else f"as {winner}")
    return chosen


def _port(source: EnvSource) -> int | None:
    key = next((key for key in _PORTS if source.peek(key)), None)
    port = source.take_int(key, "nodes.port") if key else None
    if key is not None and port is not None and not 1 <= port <= 65535:
        raise source.error(key, f"= {port}, expected 1 to 65535")
    for other in _PORTS:
        if other != key:
            source.drop(other, f"{key} is set and wins")
    return port


def _interface(source: EnvSource) -> str | None:
    name = _first(source, _INTERFACES, "nodes.interface")
    if name is None:
        return None
    # NCCL's leading = means "exactly this one", which is what we mean anyway.
    plain = name.lstrip("=")
    if "," in plain or plain.startswith("^"):
        for key in _INTERFACES:
            source.drop(key, "sparkserve binds one interface; it is found by the node's address")
        return None
    return plain


def _names(hosts: list[str]) -> list[str]:
    """Short host names where they are names and differ, else spark1, spark2, ..."""
    short = [host.partition(".")[0] for host in hosts]
    named = all(
        host != "local" and ":" not in host and not host.replace(".", "").isdigit()
        for host in hosts
    )
    if named and len(set(short)) == len(short):
        return short
    return [f"spark{rank + 1}" for rank in range(len(hosts))]
