"""Which profile on which nodes: the bare command's choices, with the reason for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkserve import clusters, profiles
from sparkserve.errors import ConfigError
from sparkserve.model.cluster import Cluster
from sparkserve.profiles import ResolvedProfile

LOCAL_PROFILE = "local-demo"
_BY_NODES = {1: "dsv4-solo", 3: "dsv41-tp3", 4: "dsv41-tp4", 8: "dsv41-tp8"}


@dataclass(frozen=True)
class Target:
    """What the user named; everything may be left out."""

    profile: str | None = None
    cluster: str | None = None
    hosts: tuple[str, ...] = ()
    hosts_file: Path | None = None
    nodes: int | None = None
    settings: tuple[str, ...] = ()
    """``key=value`` texts of ``--set``."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Profile values of other options, nested as in a profile file."""


@dataclass(frozen=True)
class Resolved:
    """The profile and the nodes that a command works on."""

    profile: ResolvedProfile
    cluster: Cluster
    reasons: tuple[str, ...]
    """Why this profile and these nodes, one sentence each."""


def resolve_cluster(target: Target) -> tuple[clusters.ClusterFile, str]:
    """The nodes: ``--hosts``, a hosts file, ``--cluster``, the default cluster, this machine.

    Returns:
        The cluster and the sentence that says why it.

    Raises:
        ConfigError: an unknown cluster, a bad host list, or two sources at once.
    """
    named = [
        name
        for name, value in (
            ("--hosts", target.hosts),
            ("--hosts-file", target.hosts_file),
            ("--cluster", target.cluster),
        )
        if value
    ]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)} contradict each other: name one of them")
    if target.hosts:
        cluster = clusters.from_hosts(list(target.hosts))
        return clusters.ClusterFile(cluster), "nodes from --hosts"
    if target.hosts_file is not None:
        cluster = clusters.from_hosts_file(target.hosts_file)
        return clusters.ClusterFile(cluster), f"nodes from {target.hosts_file}"
    if target.cluster is not None:
        return clusters.load(target.cluster), f"cluster {target.cluster}"
    default = clusters.default_name()
    if default is not None:
        return clusters.load(default), f"default cluster {default}"
    return clusters.ClusterFile(clusters.this_machine()), "this machine: no cluster is named"


def resolve(target: Target, environment: Mapping[str, str]) -> Resolved:
    """Profile and nodes of a command.

    Raises:
        ConfigError: unknown or contradictory names and values.
    """
    file, cluster_reason = resolve_cluster(target)
    name, profile_reason = _profile_name(target, file.cluster)
    resolved = profiles.load(
        name,
        layers=[
            profiles.layer_from_settings(target.settings),
            profiles.layer_from_values(target.values, origin="command line"),
            profiles.layer_from_environment(environment),
            profiles.layer_from_cluster(file.cluster.name, file.overrides),
        ],
    )
    cluster, count_reason = _take(file.cluster, target.nodes, resolved)
    reasons = (cluster_reason, profile_reason, count_reason)
    return Resolved(resolved, cluster, tuple(reason for reason in reasons if reason))


@dataclass(frozen=True)
class Seen:
    """The nodes to look at, and the profile where one is known."""

    cluster: Cluster
    resolved: Resolved | None
    reasons: tuple[str, ...]


def resolve_to_look(target: Target, environment: Mapping[str, str]) -> Seen:
    """As ``resolve``, but a cluster for which no profile comes can be looked at, too.

    Raises:
        ConfigError: unknown or contradictory names and values.
    """
    file, cluster_reason = resolve_cluster(target)
    named = target.profile or file.cluster.profile or target.settings or target.values
    if named or _usual_profile(target, file.cluster) is not None:
        resolved = resolve(target, environment)
        return Seen(resolved.cluster, resolved, resolved.reasons)
    cluster, have = file.cluster, len(file.cluster.nodes)
    if target.nodes is not None and target.nodes > have:
        raise ConfigError(
            f"cluster {cluster.name} has {have} node{'s' if have > 1 else ''}, "
            f"expected {target.nodes}",
            hint="sparkserve cluster list",
        )
    count = target.nodes or have
    without = f"no profile: none comes with sparkserve for {count} nodes"
    return Seen(cluster.take(count), None, (cluster_reason, without))


def _usual_profile(target: Target, cluster: Cluster) -> str | None:
    """Name of the profile that is meant where none is named; None where none comes with us."""
    if all(node.is_local for node in cluster.nodes):
        return LOCAL_PROFILE
    name = _BY_NODES.get(target.nodes or len(cluster.nodes))
    return name if name in profiles.names() else None


def _profile_name(target: Target, cluster: Cluster) -> tuple[str, str]:
    if target.profile is not None:
        return target.profile, ""
    if cluster.profile is not None:
        return cluster.profile, f"profile {cluster.profile}: the cluster's own"
    name = _usual_profile(target, cluster)
    if name == LOCAL_PROFILE:
        return LOCAL_PROFILE, f"profile {LOCAL_PROFILE}: no Spark is named"
    count = target.nodes or len(cluster.nodes)
    if name is None:
        raise ConfigError(
            f"no profile comes with sparkserve for {count} node{'s' if count > 1 else ''}, "
            f"expected --profile with one of: {', '.join(profiles.names())}",
            hint="sparkserve profile list",
        )
    return name, f"profile {name}: {count} nodes"


def _take(cluster: Cluster, wanted: int | None, resolved: ResolvedProfile) -> tuple[Cluster, str]:
    tp = resolved.profile.parallel.tp
    have = len(cluster.nodes)
    count = wanted if wanted is not None else tp
    if have < count:
        only = (
            "only this machine is known"
            if cluster.name == clusters.LOCAL_NAME
            else (f"cluster {cluster.name} has {have} node{'s' if have > 1 else ''}")
        )
        raise ConfigError(
            f"{only}, expected {count} nodes",
            hint="sparkserve cluster list",
        )
    if count != tp:
        raise ConfigError(
            f"--nodes {count} contradicts profile {resolved.profile.name}: "
            f"parallel.tp = {tp} ({resolved.origins.get('parallel.tp', 'default')}), "
            "one rank runs on each node",
            hint=f"leave --nodes out, or add --set parallel.tp={count}",
        )
    if have > count:
        return cluster.take(count), f"the first {count} of {have} nodes"
    return cluster, ""
