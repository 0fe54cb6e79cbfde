"""What a stop found on each node and what it left there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sparkserve.report.console import Answer
from sparkserve.report.table import Column, table
from sparkserve.report.text import Span, line, one_line


class NodeEnd(Protocol):
    """What ended on one node; the use case's own result fits."""

    @property
    def node(self) -> str:
        """Name of the node."""

    @property
    def was(self) -> str:
        """State of its rank before."""

    @property
    def survivors(self) -> tuple[int, ...]:
        """Processes that could not be ended."""

    @property
    def error(self) -> str | None:
        """Why the node could not be asked."""


_ALIVE = ("starting", "running", "stopping")
_COLUMNS = (Column("NODE"), Column("WAS"), Column("LEFT"))


def stop_answer(run_id: str, nodes: Sequence[NodeEnd], *, clean: bool, width: int | None) -> Answer:
    """The result of a stop; what is left comes last and in words."""
    rows = [[Span(node.node, "name"), Span(node.was), _left(node)] for node in nodes]
    word = Span("stopped ", "good") if clean else Span("not wholly stopped ", "bad")
    head = line(word, run_id)
    if not run_id:
        head = line("nothing to stop: no run is known here, and none holds a node that answered")
    elif clean and not any(node.was in _ALIVE for node in nodes):
        head = line(run_id, " had ended already; nothing of it is left")
    data = {
        "run_id": run_id or None,
        "clean": clean,
        "nodes": [
            {
                "node": node.node,
                "was": node.was,
                "survivors": list(node.survivors),
                "error": node.error,
            }
            for node in nodes
        ],
    }
    below = [line(), *table(_COLUMNS, rows, width=width)] if rows else []
    return Answer([head, *below], data)


def stop_problem(nodes: Sequence[NodeEnd]) -> str:
    """One line per node that was not cleaned."""
    return "\n".join(f"{node.node}: {_left(node).text}" for node in nodes if _left(node).style)


def _left(node: NodeEnd) -> Span:
    if node.error:
        return Span(f"unknown: {one_line(node.error)}", "bad")
    if node.survivors:
        processes = ", ".join(str(pid) for pid in node.survivors)
        return Span(f"processes {processes} cannot be ended", "bad")
    return Span("nothing")
