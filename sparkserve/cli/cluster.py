"""``sparkserve cluster init | show | list | use | trust | import``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkserve.cli import complete
from sparkserve.cli.command import bare, command, group
from sparkserve.cli.options import ClusterOpt, OptionGroup, YesOpt
from sparkserve.errors import ConfigError
from sparkserve.report.console import Answer, Console

if TYPE_CHECKING:
    from sparkserve.model.cluster import Cluster
    from sparkserve.report.cluster_view import ClusterEntry
    from sparkserve.transport.hostkeys import HostKey

app = group(summary="Clusters: the nodes, how they are reached, their host keys.")
app.callback()(bare)

NameArg = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="Cluster; else the default one.",
        autocompletion=complete.clusters,
        show_default=False,
    ),
]


@dataclass(frozen=True)
class InitOptions(OptionGroup):
    """What a cluster file holds besides its name."""

    hosts: Annotated[
        list[str] | None,
        typer.Option("--hosts", "-H", metavar="A,B", help="Nodes in rank order, user@host:port."),
    ] = None
    hosts_file: Annotated[
        Path | None, typer.Option("--hosts-file", metavar="FILE", help="The same, one a line.")
    ] = None
    fabric: Annotated[
        str | None,
        typer.Option("--fabric", metavar="A,B", help="Addresses on the fast network, per node."),
    ] = None
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="SSH user where none is named.")
    ] = None
    root: Annotated[
        str | None,
        typer.Option("--root", metavar="DIR", help="sparkserve's folder on the nodes."),
    ] = None
    identity: Annotated[
        Path | None,
        typer.Option("--identity", "-i", metavar="FILE", help="SSH private key on this machine."),
    ] = None
    default: Annotated[
        bool, typer.Option("--default", help="Use it where no cluster is named.")
    ] = False


@dataclass(frozen=True)
class ImportOptions(OptionGroup):
    """What an import needs to be told."""

    head_local: Annotated[
        bool, typer.Option("--head-local", help="Rank 0 is this machine, without SSH.")
    ] = False
    default: Annotated[
        bool, typer.Option("--default", help="Use it where no cluster is named.")
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show what would be taken over; write nothing.")
    ] = False


def init(
    console: Console,
    options: InitOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the cluster.")] = "sparks",
    yes: YesOpt = False,
) -> None:
    """Save a cluster: its nodes and their host keys.

    The nodes are named in rank order. Their keys are recorded once you have compared them. Every
    node must answer; where one does not, nothing is
    written.
    """
    cluster = _described(name, options)
    _store(console, cluster, {}, yes=yes, default=options.default)


def show(console: Console, name: NameArg = None) -> None:
    """Show a cluster: its nodes, paths and overrides."""
    from sparkserve.ops.target import Target, resolve_cluster
    from sparkserve.report.cluster_view import show_answer

    file, reason = resolve_cluster(Target(cluster=name))
    console.answer(show_answer(file, "" if name else reason, width=console.width))


def list_clusters(console: Console) -> None:
    """List the saved clusters."""
    from sparkserve import clusters
    from sparkserve.report.cluster_view import list_answer

    default = _default_name(console)
    entries = [_entry(name, is_default=name == default) for name in clusters.names()]
    console.answer(list_answer(entries, width=console.width))


def use(
    console: Console,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Cluster to use from now on.",
            autocompletion=complete.clusters,
            show_default=False,
        ),
    ] = None,
    none: Annotated[
        bool, typer.Option("--none", help="No cluster: commands use this machine again.")
    ] = False,
) -> None:
    """Choose the cluster that commands use where none is named."""
    from sparkserve import clusters
    from sparkserve.report.text import line

    if (name is None) is not none:
        raise ConfigError("name one cluster, or say --none", hint="sparkserve cluster list")
    clusters.set_default(name)
    said = f"commands use cluster {name}" if name else "commands use this machine"
    console.answer(Answer([line(said)], {"default": name}))


def trust(
    console: Console,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="NODE", help="Node of the cluster, or user@host:port.", show_default=False
        ),
    ] = None,
    cluster: ClusterOpt = None,
    yes: YesOpt = False,
) -> None:
    """Record the host keys of nodes, once you have compared them.

    A key that has changed is shown beside the recorded one.
    """
    from sparkserve.cli.host_keys import accept, fetch_all
    from sparkserve.paths import known_hosts_file
    from sparkserve.report.cluster_view import trusted_answer

    fetched = fetch_all(_to_trust(node, cluster))
    _record(accept(console, fetched, yes=yes))
    entries = [one.entry for one in fetched]
    console.answer(trusted_answer(entries, str(known_hosts_file())))


def import_env(
    console: Console,
    options: ImportOptions,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The .env of a published recipe.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the cluster.")] = "sparks",
    yes: YesOpt = False,
) -> None:
    """Make a cluster of a recipe's .env file.

    Every key is told: where it went, or why it was dropped. No node is asked; passwords and keys
    are never stored.
    """
    from sparkserve import clusters
    from sparkserve.interop import import_env_file
    from sparkserve.report.cluster_view import import_answer

    clusters.path_of(name)
    found = import_env_file(file, name=name, head_is_local=options.head_local)
    path = None
    if not options.dry_run:
        _allow_replacing(console, name, yes=yes)
        path = clusters.save(found.cluster, overrides=found.overrides)
        if options.default:
            clusters.set_default(name)
    saved = clusters.ClusterFile(found.cluster, found.overrides, path)
    dropped = [(one.key, one.reason) for one in found.dropped]
    console.answer(import_answer(saved, found.used, dropped, width=console.width))


def _described(name: str, options: InitOptions) -> Cluster:
    """The cluster that the options describe."""
    from sparkserve import clusters

    clusters.path_of(name)
    if bool(options.hosts) is (options.hosts_file is not None):
        raise ConfigError(
            "name the nodes with --hosts or with --hosts-file",
            hint=f"sparkserve cluster init {name} --hosts spark1,spark2",
        )
    if options.hosts_file is not None:
        cluster = clusters.from_hosts_file(options.hosts_file, name=name)
    else:
        hosts = [host for text in options.hosts or () for host in text.split(",")]
        cluster = clusters.from_hosts(hosts, name=name)
    identity = options.identity
    if identity is not None and not identity.expanduser().is_file():
        raise ConfigError(f"--identity {identity} does not exist")
    changes: dict[str, Any] = {
        "nodes": _completed(cluster, options),
        **({"root": options.root} if options.root else {}),
        **({"identity_file": str(identity)} if identity else {}),
    }
    return cluster.model_validate({**cluster.model_dump(), **changes})


def _completed(cluster: Cluster, options: InitOptions) -> list[dict[str, Any]]:
    """The nodes with user and fabric address; none of them where this machine is meant."""
    fabric = [part.strip() or None for part in options.fabric.split(",")] if options.fabric else []
    if fabric and len(fabric) != len(cluster.nodes):
        raise ConfigError(
            f"--fabric has {len(fabric)} addresses, expected {len(cluster.nodes)}: one per node"
        )
    nodes = []
    for rank, node in enumerate(cluster.nodes):
        user = node.user if node.is_local else node.user or options.user
        address = fabric[rank] if fabric else None
        nodes.append({**node.model_dump(), "user": user, "fabric_address": address})
    return nodes


def _store(
    console: Console, cluster: Cluster, overrides: dict[str, Any], *, yes: bool, default: bool
) -> None:
    """Have the host keys accepted, then write keys, cluster file and choice."""
    from sparkserve import clusters
    from sparkserve.cli.host_keys import accept, fetch_all
    from sparkserve.report.cluster_view import saved_answer

    _allow_replacing(console, cluster.name, yes=yes)
    fetched = fetch_all(cluster)
    _record(accept(console, fetched, yes=yes))
    path = clusters.save(cluster, overrides=overrides)
    if default:
        clusters.set_default(cluster.name)
    file = clusters.ClusterFile(cluster, overrides, path)
    is_default = _default_name(console) == cluster.name
    entries = [one.entry for one in fetched]
    console.answer(saved_answer(file, entries, is_default=is_default, width=console.width))


def _allow_replacing(console: Console, name: str, *, yes: bool) -> None:
    from sparkserve import clusters

    path = clusters.path_of(name)
    if yes or not path.exists():
        return
    if not console.can_ask:
        raise ConfigError(f"cluster {name} exists already: {path}", hint="--yes replaces it")
    if not console.ask(f"Cluster {name} exists already. Replace {path}?"):
        raise ConfigError(f"cluster {name} was left as it is")


def _to_trust(node: str | None, cluster: str | None) -> Cluster:
    """The cluster narrowed to the node; a node that no cluster knows is a host of its own."""
    from sparkserve import clusters
    from sparkserve.ops.target import Target, resolve_cluster

    file, reason = resolve_cluster(Target(cluster=cluster))
    if node is None:
        if all(one.is_local for one in file.cluster.nodes):
            raise ConfigError(
                f"no node has a host key to trust ({reason})", hint="sparkserve cluster trust NODE"
            )
        return file.cluster
    homes = [file.cluster]
    if cluster is None:
        homes += [other for name in clusters.names() if (other := _readable(name)) is not None]
    for home in homes:
        for one in home.nodes:
            if node in (one.name, one.host):
                return home.model_copy(update={"nodes": (one,)})
    if cluster is not None:
        known = ", ".join(one.name for one in file.cluster.nodes)
        raise ConfigError(f"cluster {cluster} has no node {node!r}, expected one of: {known}")
    return clusters.from_hosts([node])


def _readable(name: str) -> Cluster | None:
    from sparkserve import clusters

    try:
        return clusters.load(name).cluster
    except ConfigError:
        # `cluster list` tells what is wrong with it; here other clusters are looked at too.
        return None


def _record(keys: Sequence[HostKey]) -> None:
    from sparkserve.transport.hostkeys import record_host_key

    for key in keys:
        record_host_key(key)


def _default_name(console: Console) -> str | None:
    from sparkserve import clusters

    try:
        return clusters.default_name()
    except ConfigError as error:
        console.warn(error.message)
        return None


def _entry(name: str, *, is_default: bool) -> ClusterEntry:
    from sparkserve import clusters
    from sparkserve.report.cluster_view import ClusterEntry

    try:
        return ClusterEntry(name, clusters.load(name), is_default)
    except ConfigError as error:
        return ClusterEntry(name, None, is_default, error.message)


command(
    app,
    "init",
    examples=[
        "sparkserve cluster init lab --hosts spark1,spark2 --default",
        "sparkserve cluster init lab --hosts a@s1,a@s2 --fabric 10.1.0.1,10.1.0.2",
    ],
)(init)
command(app, "list", examples=["sparkserve cluster list"])(list_clusters)
command(app, "show", examples=["sparkserve cluster show lab --json"])(show)
command(app, "use", examples=["sparkserve cluster use lab", "sparkserve cluster use --none"])(use)
command(
    app,
    "trust",
    examples=["sparkserve cluster trust spark2", "sparkserve cluster trust --cluster lab"],
)(trust)
command(
    app,
    "import",
    examples=[
        "sparkserve cluster import ./.env lab --default",
        "sparkserve cluster import ./.env --head-local --dry-run",
    ],
)(import_env)
