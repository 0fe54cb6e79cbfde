"""Reading a cluster for the doctor: one round trip per node, every answer a reading.

A node that cannot be reached is a reading, too, so that the others are judged all the same.
"""

from __future__ import annotations

import ipaddress
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from sparkserve.checks.diagnose import CLUSTER, COLLECTION, NAMED, PROFILE
from sparkserve.errors import (
    AuthenticationError,
    ConnectionLostError,
    HostKeyError,
    NodeError,
    UnreachableError,
)
from sparkserve.facts.probe import PROBE_LIMIT_S, Context, compose, split
from sparkserve.facts.reader import Ask, probe_ask
from sparkserve.facts.registry import ALL as PROBES
from sparkserve.facts.registry import ASKS, ENGRAM, LAUNCH
from sparkserve.facts.wanted import Wanted, from_keys, wanted_of, wanted_text
from sparkserve.model.cluster import Cluster, Node
from sparkserve.model.diagnosis import Bundle, Unread
from sparkserve.model.profile import THIS_PYTHON, Profile
from sparkserve.model.reading import Reading
from sparkserve.ops.bundle import plain_text
from sparkserve.ops.doors import Doors
from sparkserve.transport.host import GroupResult, Host, Result, map_hosts

READ_LIMIT_S = 60.0
"""For all that is read on one node, connecting not counted."""
ECHO_PEERS = 3
"""Nodes to which one node sends echoes, so that a fleet's echoes grow with it and not with its
square; every node is asked by as many [proposal]."""
CONNECTION = "connection"
"""``what`` of the reading that says whether a node could be used."""
Status = Literal["ok", "unreachable", "refused", "host-key", "lost", "failed"]


@dataclass(frozen=True)
class Subject:
    """What is looked at."""

    cluster: Cluster
    profile: Profile | None
    this_python: str
    """Interpreter that stands for ``engine.python = "this"``."""
    named: str | None = None
    """How the user named profile and nodes, as options of a command."""

    def context(self, node: Node) -> Context:
        """What the questions to one node need to know of the wish and of the others."""
        others = self._others(node)
        context = Context(
            root=self.cluster.root,
            peers=tuple(other.host for other in others if _is_address(other.host)),
            fabric_peers=tuple(o.fabric_address for o in others if o.fabric_address is not None),
        )
        profile = self.profile
        if profile is None:
            return context
        python = profile.engine.python
        return replace(
            context,
            python=self.this_python if python == THIS_PYTHON else python,
            model_path=profile.model.path,
            engram_dir=profile.engram.directory,
        )

    def _others(self, node: Node) -> Sequence[Node]:
        """The nodes behind this one in rank order, as in a circle; it sends echoes to these."""
        nodes = self.cluster.nodes
        place = nodes.index(node)
        return (*nodes[place + 1 :], *nodes[:place])[:ECHO_PEERS]

    @property
    def questions(self) -> tuple[Ask, ...]:
        """Everything that is asked of every node: the probes that make sense here, and all asks."""
        profile = self.profile
        if profile is None:
            # Without a wish there is no interpreter, checkpoint or shard to look for.
            probes = [p for p in LAUNCH if not p.id.startswith(("runtime.python", "checkpoint."))]
        elif profile.engram.directory:
            probes = [p for p in PROBES if p in (*LAUNCH, *ENGRAM)]
        else:
            probes = list(LAUNCH)
        return (*(probe_ask(probe) for probe in probes), *ASKS)


def wish_readings(subject: Subject) -> tuple[Reading, ...]:
    """The wish itself, in the form in which everything is judged and saved."""
    readings = [_own(CLUSTER, subject.cluster.model_dump_json(indent=2))]
    if subject.profile is not None:
        readings.append(_own(PROFILE, subject.profile.model_dump_json(indent=2)))
    if subject.named:
        readings.append(_own(NAMED, subject.named, "text"))
    text = wanted_text(_wanted(subject))
    readings.append(Reading(text=text, label="profile", what="profile", format="yaml"))
    return tuple(readings)


def _wanted(subject: Subject) -> Wanted:
    cluster = subject.cluster
    if subject.profile is not None:
        return wanted_of(subject.profile, cluster)
    ranks = {f"rank_of.{node.name}": rank for rank, node in enumerate(cluster.nodes)}
    alone = len(cluster.nodes) == 1
    topology = "solo" if alone else cluster.topology
    return from_keys({"nodes": len(cluster.nodes), "topology": topology, **ranks})


def read_nodes(subject: Subject, hosts: Sequence[Host], doors: Doors) -> GroupResult[Bundle]:
    """Every connected node's readings, and the errors of nodes that could not be read."""
    nodes = {node.name: node for node in subject.cluster.nodes}
    return map_hosts(hosts, lambda host: _read_node(subject, nodes[host.name], host, doors))


def read_cluster(subject: Subject, hosts: Sequence[Host], doors: Doors) -> Bundle:
    """Ask every connected node everything at once.

    Raises:
        KeyboardInterrupt: at once; whoever closes the hosts ends what still runs on them.
    """
    group = read_nodes(subject, hosts, doors)
    readings: list[Reading] = []
    unread: list[Unread] = []
    for node in subject.cluster.nodes:
        if node.name in group.values_by_node:
            readings += group[node.name].readings
            unread += group[node.name].unread
        elif node.name in group.errors_by_node:
            readings.append(no_connection(node, group.errors_by_node[node.name]))
    return Bundle(readings=tuple(readings), unread=tuple(unread))


def no_connection(node: Node, error: NodeError) -> Reading:
    """What is known of a node that cannot be used."""
    status: Status = "failed"
    if isinstance(error, UnreachableError):
        status = "unreachable"
    elif isinstance(error, AuthenticationError):
        status = "refused"
    elif isinstance(error, HostKeyError):
        status = "host-key"
    elif isinstance(error, ConnectionLostError):
        status = "lost"
    message = error.message.removeprefix(f"{node.name}: ")
    return _connection(node, status, message, error.hint or "")


def _read_node(subject: Subject, node: Node, host: Host, doors: Doors) -> Bundle:
    """Everything about one node.

    Raises:
        NodeError: the node could not be asked at all.
    """
    # Random, so that no file that is printed can end its section.
    marker = f"@@sparkserve-{secrets.token_hex(8)}"
    questions = subject.questions
    clock = f"printf '\\n{marker} clock %s\\n' \"$(date +%s.%N)\"\n"
    begun = doors.now()
    context = subject.context(node)
    # The first question tells the node's clock, so its own time counts as part of the way.
    parts = (compose(some, context, marker) for some in (questions[:1], questions[1:]))
    script = clock.join(["", *parts, ""])
    result = host.script(script, timeout_s=READ_LIMIT_S)
    sections = split(result.stdout, marker)
    _refuse_nothing(node.name, result, answered=bool(sections))
    readings = [
        _connection(node, "ok", "", ""), _collection(node.name, begun, _way_s(result, marker))
    ]  # fmt: skip
    unread = []
    for ask in questions:
        if ask.id in sections:
            status, text = sections[ask.id]
            readings.append(ask.reading(node.name, status, plain_text(text)))
        else:
            unread.append(_unanswered(node.name, ask))
    return Bundle(readings=tuple(readings), unread=tuple(unread))


def _way_s(result: Result, marker: str) -> float:
    """The part of the round trip by which the node's clock may seem to be off.

    That is all but the time that the node worked after it had told its clock.
    """
    times = re.findall(rf"^{marker} clock (\d+\.\d+)$", result.stdout, re.MULTILINE)
    worked_s = float(times[-1]) - float(times[1]) if len(times) == 3 else 0.0
    # A clock that is set meanwhile says nothing.
    return result.elapsed_s - worked_s if 0 < worked_s < result.elapsed_s else result.elapsed_s


def _refuse_nothing(node: str, result: Result, *, answered: bool) -> None:
    if result.status == "lost":
        raise ConnectionLostError(node, "the connection was lost while the node was read")
    if answered:
        return
    if result.status == "timed-out":
        raise NodeError(node, f"no answer within {READ_LIMIT_S:.0f} s")
    raise NodeError(
        node,
        f"no shell that runs scripts: exit {result.exit_code}: {result.tail(3) or 'no output'}",
        hint="give the SSH user a login shell such as /bin/sh on that node",
    )


def _connection(node: Node, status: Status, message: str, hint: str) -> Reading:
    told = {
        "node": node.name, "host": node.host, "user": node.user, "port": node.port,
        "status": status, "message": message, "hint": hint,
    }  # fmt: skip
    return Reading(
        text=json.dumps(told, indent=2, ensure_ascii=False) + "\n",
        label=f"{node.name}: connection",
        node=node.name,
        what=CONNECTION,
        format="json",
    )


def _collection(node: str, begun: datetime, elapsed_s: float) -> Reading:
    told = {"collected_at": begun.isoformat(), "elapsed_s": round(elapsed_s, 3)}
    text = json.dumps(told) + "\n"
    return Reading(text=text, label=f"{node}: {COLLECTION}", node=node, what=COLLECTION,
                   format="json")  # fmt: skip


def _unanswered(node: str, ask: Ask) -> Unread:
    return Unread(
        label=f"{node}: {ask.command or ask.path or ask.what}", node=node, command=ask.command,
        path=ask.path, what=ask.what,
        reason=f"the node's answer ended before it; each question has {PROBE_LIMIT_S} s, "
        f"all together {READ_LIMIT_S:.0f} s",
    )  # fmt: skip


def _is_address(host: str) -> bool:
    """Whether a host is an address: a name of the controller may mean nothing to a node."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _own(what: str, text: str, format: Literal["json", "text"] = "json") -> Reading:
    return Reading(text=text + ("\n" if format == "json" else ""), label=what, what=what,
                   format=format)  # fmt: skip
