"""Which run a command means: the one that is named, or the newest of the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from sparkserve import runs
from sparkserve.errors import ConfigError
from sparkserve.runs import RunDirectory


@dataclass(frozen=True)
class RunChoice:
    """What the user said; everything may be left out."""

    run_id: str | None = None
    """A run id or the unique beginning of one."""
    cluster: str | None = None


NEWEST = RunChoice()
"""Nothing was said: the newest run, one that serves first."""


def choose(choice: RunChoice) -> RunDirectory:
    """The chosen run's directory: a serving run before newer ones that are not.

    Raises:
        ConfigError: no such run, or no run at all.
    """
    if choice.run_id is not None:
        return runs.open_run(choice.run_id)
    for outcome in ("serving", "launching"):
        found = runs.latest(choice.cluster, outcome)
        if found is not None:
            return found
    found = runs.latest(choice.cluster)
    if found is None:
        where = f" on cluster {choice.cluster}" if choice.cluster else ""
        raise ConfigError(f"nothing was launched{where} from here", hint="sparkserve launch")
    return found
