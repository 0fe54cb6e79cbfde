"""Which run a command means: the one that is named, or the newest of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparkserve import runs
from sparkserve.errors import ConfigError
from sparkserve.model.record import RunOutcome
from sparkserve.runs import RunDirectory


@dataclass(frozen=True)
class RunChoice:
    """What the user said; everything may be left out."""

    run_id: str | None = None
    """A run id or the unique beginning of one."""
    cluster: str | None = None


NEWEST = RunChoice()
"""Nothing was said: the newest run, before it one that starts or serves on other nodes."""


def choose(choice: RunChoice) -> RunDirectory:
    """The chosen run's directory: of runs on different nodes, one that starts or serves first.

    A record cannot know that its run has died. But a later run on one of the same nodes could
    begin only because it had.

    Raises:
        ConfigError: no such run, or no run at all.
    """
    if choice.run_id is not None:
        return runs.open_run(choice.run_id)
    newest = list(_newest_of_nodes(choice.cluster))
    for directory, outcome in newest:
        if outcome in ("launching", "serving"):
            return directory
    if not newest:
        where = f" on cluster {choice.cluster}" if choice.cluster else ""
        raise ConfigError(f"nothing was launched{where} from here", hint="sparkserve launch")
    return newest[0][0]


def _newest_of_nodes(cluster: str | None) -> Iterator[tuple[RunDirectory, RunOutcome]]:
    """Runs, newest first, but for those that share a node with a later one."""
    taken: set[tuple[str, int, str]] = set()
    for entry in runs.list_runs():
        record = entry.record
        if record is None or cluster not in (None, record.cluster.name):
            continue
        root = record.cluster.root
        places = {(node.host, node.port, root) for node in record.cluster.nodes}
        if not places & taken:
            yield entry.directory, record.outcome
        taken |= places
