"""The effects a use case is given from outside, and the way it tells what happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sparkserve.errors import NodeError
from sparkserve.model.cluster import Cluster
from sparkserve.model.event import Event, EventKind, Observer
from sparkserve.transport.host import GroupResult, Host

Connect = Callable[[Cluster], GroupResult[Host]]


def utc_now() -> datetime:
    """The current time, aware."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Doors:
    """Everything a use case may touch outside itself; opened by the CLI or a test."""

    connect: Connect
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that override profile values (``SPARKSERVE_...``)."""
    now: Callable[[], datetime] = utc_now


@dataclass
class Emitter:
    """Makes events and hands them to every observer."""

    observers: list[Observer]
    now: Callable[[], datetime]
    run_id: str | None = None
    secrets: tuple[str, ...] = ()
    """Texts that are replaced by ``***`` wherever they turn up (an engine may log its key)."""

    def emit(
        self,
        kind: EventKind,
        message: str = "",
        *,
        node: str | None = None,
        rank: int | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Tell one thing that happened."""
        event = Event(
            at=self.now(),
            kind=kind,
            run_id=self.run_id,
            node=node,
            rank=rank,
            message=self.hidden(message),
            data=self.hidden(dict(data or {})),
        )
        for observer in self.observers:
            observer.event(event)

    def hidden(self, value: Any) -> Any:
        """Plain JSON data without the secrets, wherever in it they stand."""
        if isinstance(value, str):
            for secret in self.secrets:
                value = value.replace(secret, "***")
        elif isinstance(value, Mapping):
            value = {key: self.hidden(inner) for key, inner in value.items()}
        elif isinstance(value, list | tuple):
            value = [self.hidden(inner) for inner in value]
        return value


def connect_all(doors: Doors, cluster: Cluster) -> list[Host]:
    """Hosts of all nodes in rank order.

    Raises:
        NodeError: some node could not be used; all good connections are closed again, and the
            message names every bad node.
    """
    group = doors.connect(cluster)
    if not group.errors_by_node:
        return [group[node.name] for node in cluster.nodes]
    for host in group.values_by_node.values():
        host.close()
    raise worst(list(group.errors_by_node.values()))


def worst(errors: Sequence[NodeError]) -> NodeError:
    """One error that tells all: the first one's class and hint, every node's message."""
    first = errors[0]
    if len(errors) > 1:
        first.message = "\n".join(error.message for error in errors)
        first.args = (first.message,)
    return first
