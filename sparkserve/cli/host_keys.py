"""Host keys of a cluster's nodes: ask for them, compare with what is recorded, ask the user."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkserve.errors import ConfigError, NodeError
from sparkserve.report.cluster_view import KeyEntry, key_lines
from sparkserve.report.console import Console

if TYPE_CHECKING:
    from sparkserve.model.cluster import Cluster, Node
    from sparkserve.transport.hostkeys import HostKey


@dataclass(frozen=True)
class Fetched:
    """What one node showed."""

    entry: KeyEntry
    key: HostKey | None
    """None where there is nothing to record."""
    error: NodeError | None = None


def fetch_all(cluster: Cluster) -> list[Fetched]:
    """Ask all nodes at once; one that does not answer does not hide the others."""
    with ThreadPoolExecutor(len(cluster.nodes), thread_name_prefix="key") as pool:
        return list(pool.map(lambda node: _fetch(cluster, node), cluster.nodes))


def accept(console: Console, fetched: Sequence[Fetched], *, yes: bool) -> list[HostKey]:
    """Show the keys and have new and changed ones accepted.

    Returns:
        The keys to record.

    Raises:
        NodeError: some node did not answer; each is named.
        ConfigError: the user said no, or nobody is there to ask.
    """
    entries = [one.entry for one in fetched]
    console.say(key_lines(entries))
    _refuse_unreached(fetched)
    wanted = [one.key for one in fetched if one.key is not None]
    changed = [one.entry.node for one in fetched if one.entry.state == "changed"]
    if not wanted or yes:
        return wanted
    question = "Do the nodes themselves show the same? Record them?"
    if changed:
        question = (
            f"THE KEY OF {', '.join(changed)} HAS CHANGED.\n"
            "Does the node's own console show the new one? Replace the old one?"
        )
    if not console.can_ask:
        raise ConfigError(
            f"host keys of {', '.join(one.entry.node for one in fetched if one.key)} "
            "are not accepted yet, and nobody is there to ask",
            hint="compare the fingerprints, then run the same command with --yes",
        )
    if not console.ask(question):
        raise ConfigError("host keys not accepted; nothing was written")
    return wanted


def _refuse_unreached(fetched: Sequence[Fetched]) -> None:
    errors = [one.error for one in fetched if one.error is not None]
    if not errors:
        return
    first = errors[0]
    first.message = "\n".join(error.message for error in errors) + "\nnothing was written"
    raise first


def _fetch(cluster: Cluster, node: Node) -> Fetched:
    from sparkserve.transport.connect import fetch_host_key

    if node.is_local:
        return Fetched(KeyEntry(node.name, "", "this machine"), None)
    try:
        key = fetch_host_key(cluster, node)
    except NodeError as error:
        entry = KeyEntry(node.name, node.host, "unreachable", error=error.message)
        return Fetched(entry, None, error)
    recorded = _recorded(key.place)
    same = any(old.line == key.line for old in recorded)
    others = tuple(f"{old.type} {old.fingerprint_sha256}" for old in recorded)
    state = "known" if same else "changed" if recorded else "new"
    entry = KeyEntry(
        node.name,
        key.place,
        state,
        type=key.type,
        fingerprint=key.fingerprint_sha256,
        recorded=others if state == "changed" else (),
    )
    return Fetched(entry, None if same else key)


def _recorded(place: str) -> list[HostKey]:
    """Keys in our own file for one place."""
    import base64
    import binascii

    from sparkserve.paths import known_hosts_file
    from sparkserve.transport.hostkeys import host_key

    path = known_hosts_file()
    if not path.is_file():
        return []
    found = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        parts = text.split()
        if len(parts) < 3 or parts[0] != place:
            continue
        try:
            found.append(host_key(place, parts[1], base64.b64decode(parts[2], validate=True)))
        except binascii.Error:
            # Not a key that could ever match; recording replaces the line.
            continue
    return found
