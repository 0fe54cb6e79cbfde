"""Plans: ordered steps as data, so that a dry run is the same code stopped before execution."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sparkserve.model.base import Model

Effect = Literal["reads", "writes-node", "stops-serving"]


class PutFile(Model):
    """Write one file on the node (part name, hash, rename)."""

    do: Literal["put-file"] = "put-file"
    path: str
    content: str
    mode: int = 0o644
    secret: bool = False
    """The content is shown as ``***`` and never recorded."""


class RunCommand(Model):
    """Run one program on the node and wait for it."""

    do: Literal["run"] = "run"
    argv: tuple[str, ...]


class StartGuard(Model):
    """Start this rank's guard, which starts and watches the engine."""

    do: Literal["start-guard"] = "start-guard"
    python: str
    spec_path: str
    unit: str
    """Name of the transient systemd unit where systemd runs."""


class AwaitReports(Model):
    """Wait until every rank's install reports are there and agree."""

    do: Literal["await-reports"] = "await-reports"
    ranks: int


class AwaitHealth(Model):
    """Wait until rank 0 answers /health with 200."""

    do: Literal["await-health"] = "await-health"
    port: int


class AwaitAnswer(Model):
    """Ask rank 0 a question; the answer must be plausible and hold the expected text."""

    do: Literal["await-answer"] = "await-answer"
    port: int
    prompt: str
    expect: str | None
    plausible: bool
    max_tokens: int
    warmup_requests: int


Action = Annotated[
    PutFile | RunCommand | StartGuard | AwaitReports | AwaitHealth | AwaitAnswer,
    Field(discriminator="do"),
]


class Step(Model):
    """One thing to do on one node."""

    id: str
    node: str
    title: str
    effect: Effect
    action: Action
    done_when: str
    undo: str | None = None
    timeout_s: float | None = None
    """None = ``limits.command_s``; waits have no limit but the profile's on lack of progress."""


class Stage(Model):
    """Steps that run in parallel; the next stage starts when all are done (a barrier)."""

    title: str
    steps: tuple[Step, ...]


class Plan(Model):
    """Stages in order."""

    verb: str
    run_id: str
    stages: tuple[Stage, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return tuple(step for stage in self.stages for step in stage.steps)
