"""Clusters: the list, one with its nodes, host keys to be trusted, what an import mapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkserve.clusters import ClusterFile
from sparkserve.report.console import Answer
from sparkserve.report.table import Column, table
from sparkserve.report.text import Line, Span, Style, line

_NODE_COLUMNS = (
    Column("RANK", right=True),
    Column("NODE"),
    Column("SSH"),
    Column("FABRIC"),
    Column("INTERFACE"),
)

_KEY_FILES = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa", "ecdsa-sha2-nistp256": "ecdsa"}
_TO_COMPARE = ("new", "changed")


@dataclass(frozen=True)
class ClusterEntry:
    """One cluster of the list."""

    name: str
    file: ClusterFile | None
    """None where it cannot be read."""
    is_default: bool
    problem: str | None = None


@dataclass(frozen=True)
class KeyEntry:
    """One node's host key as it was shown, and what is recorded for it."""

    node: str
    place: str
    state: str
    """``new``, ``known``, ``changed``, ``unreachable`` or ``this machine``."""
    type: str = ""
    fingerprint: str = ""
    recorded: tuple[str, ...] = ()
    """Type and fingerprint of each recorded key, where another one is shown."""
    error: str = ""


def list_answer(entries: Sequence[ClusterEntry], *, width: int | None) -> Answer:
    """All saved clusters; quiet mode gets their names."""
    columns = (
        Column("CLUSTER"),
        Column("DEFAULT"),
        Column("NODES", right=True),
        Column("TOPOLOGY"),
        Column("PROFILE"),
        Column("HOSTS", elastic=True),
    )
    rows = [_entry_row(entry) for entry in entries]
    none = [line("no clusters; commands use this machine")]
    lines = table(columns, rows, width=width) if rows else none
    return Answer(
        lines,
        {"clusters": [_entry_data(entry) for entry in entries]},
        tuple(entry.name for entry in entries),
    )


def show_answer(file: ClusterFile, reason: str, *, width: int | None) -> Answer:
    """One cluster; reason: why it, empty where the user named it."""
    cluster = file.cluster
    pairs = [
        ("cluster", cluster.name),
        ("why", reason),
        ("file", str(file.path) if file.path else ""),
        ("topology", cluster.topology),
        ("root", f"{cluster.root} on every node"),
        ("ssh key", cluster.identity_file or "the agent's and OpenSSH's own"),
        ("profile", cluster.profile or ""),
        *(("overrides" if i == 0 else " ", one) for i, one in enumerate(_flat(file.overrides))),
    ]
    head = [line(Span(f"{label:<11}", "dim"), text) for label, text in pairs if text]
    return Answer(
        [*head, line(), *node_table(file, width=width)],
        {"cluster": _cluster_data(file)},
        tuple(node.name for node in cluster.nodes),
    )


def node_table(file: ClusterFile, *, width: int | None) -> list[Line]:
    """The nodes in rank order."""
    rows = []
    for rank, node in enumerate(file.cluster.nodes):
        user = f"{node.user}@" if node.user else ""
        port = f":{node.port}" if node.port != 22 else ""
        host = f"[{node.host}]" if ":" in node.host and port else node.host
        where = "this machine" if node.is_local else f"{user}{host}{port}"
        cells = [node.name, where, node.fabric_address or "", node.interface or ""]
        rows.append([Span(str(rank)), Span(cells[0], "name"), *map(Span, cells[1:])])
    return table(_NODE_COLUMNS, rows, width=width)


def key_lines(entries: Sequence[KeyEntry]) -> list[Line]:
    """Host keys for a person to compare; each stands on a line of its own and is never cut."""
    styles: dict[str, Style] = {"known": "good", "changed": "bad", "unreachable": "bad"}
    lines = []
    for entry in entries:
        place = f"  {entry.place}" if entry.place not in ("", entry.node) else ""
        state = Span(entry.state, styles.get(entry.state, ""))
        lines.append(line(Span(entry.node, "name"), place, "  ", state))
        if entry.fingerprint:
            lines.append(line(f"  {entry.type} {entry.fingerprint}"))
        lines += [line("  ", Span("until now ", "bad"), old) for old in entry.recorded]
    if any(entry.error for entry in entries):
        # The error itself follows, and there is nothing to decide yet.
        return lines
    files = {_KEY_FILES.get(entry.type, "*") for entry in entries if entry.state in _TO_COMPARE}
    for name in sorted(files):
        command = f"ssh-keygen -lf /etc/ssh/ssh_host_{name}_key.pub"
        lines.append(line(Span("compare on each node: ", "dim"), command))
    return lines


def key_data(entries: Sequence[KeyEntry]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "node": entry.node,
            "address": entry.place,
            "state": entry.state,
            "type": entry.type or None,
            "fingerprint_sha256": entry.fingerprint or None,
            "recorded": list(entry.recorded),
            "error": entry.error or None,
        }
        for entry in entries
    ]


def saved_answer(
    file: ClusterFile, keys: Sequence[KeyEntry], *, is_default: bool, width: int | None
) -> Answer:
    """A cluster that was just written."""
    name = file.cluster.name
    use = "" if is_default else f"sparkserve cluster use {name}, then "
    lines = [
        line(Span("saved ", "good"), f"cluster {name} in {file.path}"),
        *node_table(file, width=width),
        line(),
        line(Span("next: ", "dim"), f"{use}sparkserve launch --dry-run"),
    ]
    data = {"cluster": _cluster_data(file), "default": is_default, "host_keys": key_data(keys)}
    return Answer(lines, data, (name,))


def import_answer(
    file: ClusterFile,
    used: Mapping[str, str],
    dropped: Sequence[tuple[str, str]],
    *,
    width: int | None,
) -> Answer:
    """What became of every key of a neighbour's file.

    used: key -> where it went. dropped: key and reason.
    """
    saved = line(Span("saved ", "good"), f"cluster {file.cluster.name} in {file.path}")
    taken = [[Span(key, "name"), Span(goes_to)] for key, goes_to in used.items()]
    left = [[Span(key, "name"), Span(reason)] for key, reason in dropped]
    lines = [
        saved if file.path else line("nothing was written"),
        *node_table(file, width=width),
        line(),
        *table((Column("TAKEN OVER"), Column("AS")), taken, width=None),
        *([line(), *table((Column("DROPPED"), Column("WHY")), left, width=None)] if left else []),
    ]
    if file.path:
        command = f"sparkserve cluster trust --cluster {file.cluster.name}"
        lines += [line(), line(Span("next: ", "dim"), command)]
    data = {
        "cluster": _cluster_data(file),
        "used": dict(used),
        "dropped": [{"key": key, "reason": reason} for key, reason in dropped],
    }
    return Answer(lines, data, (file.cluster.name,))


def trusted_answer(keys: Sequence[KeyEntry], path: str) -> Answer:
    """Host keys that were just recorded."""
    recorded = [entry.node for entry in keys if entry.state in ("new", "changed")]
    if recorded:
        lines = [line(Span("recorded ", "good"), f"{', '.join(recorded)} in {path}")]
    else:
        lines = [line("nothing to record: every key was known")]
    return Answer(lines, {"host_keys": key_data(keys), "known_hosts": path}, tuple(recorded))


def _entry_row(entry: ClusterEntry) -> list[Span]:
    mark = "yes" if entry.is_default else ""
    if entry.file is None:
        problem = Span(f"not valid: sparkserve cluster show {entry.name}", "bad")
        return [Span(entry.name, "name"), Span(mark), Span(""), Span(""), Span(""), problem]
    cluster = entry.file.cluster
    return [
        Span(entry.name, "name"),
        Span(mark),
        Span(str(len(cluster.nodes))),
        Span(cluster.topology),
        Span(cluster.profile or ""),
        Span(", ".join(node.host for node in cluster.nodes)),
    ]


def _entry_data(entry: ClusterEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "default": entry.is_default,
        "problem": entry.problem,
        "cluster": entry.file.cluster.model_dump(mode="json") if entry.file else None,
    }


def _cluster_data(file: ClusterFile) -> dict[str, Any]:
    return {
        **file.cluster.model_dump(mode="json"),
        "overrides": dict(file.overrides),
        "path": str(file.path) if file.path else None,
    }


def _flat(table_of: Mapping[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key, value in table_of.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key} = {value}")
    return found
