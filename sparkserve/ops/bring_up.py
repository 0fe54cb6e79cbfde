"""Carry out a launch's plan and keep the run's record true to what happens, whatever happens."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkserve.errors import ConfigError
from sparkserve.model.plan import Plan, PutFile, Stage
from sparkserve.model.record import RunRecord
from sparkserve.ops import execute, stop
from sparkserve.ops.doors import Emitter
from sparkserve.ops.readiness import Readiness
from sparkserve.ops.watch import RankAddress, RunWatch
from sparkserve.runs import RunDirectory
from sparkserve.transport.host import Host

PHASES_BEFORE = 2
"""``connect`` and ``facts`` come before the plan's stages."""


@dataclass
class BringUp:
    """The nodes of one launch and how far it has come."""

    hosts: Mapping[str, Host]
    emitter: Emitter
    api_key: str | None
    timings_s: dict[str, float] = field(default_factory=dict)
    skipped: int = 0
    """Stages that another launch carried out: the numbers of the phases go on after them."""

    def carry_out(self, directory: RunDirectory, plan: Plan, record: RunRecord) -> RunRecord:
        """Execute a plan to its end and return the record of the run that serves.

        A run that served before this began is only asked: whatever goes wrong here, an interrupt
        or an answer that does not come, leaves it as it is.

        Raises:
            SparkserveError: of the stage that failed; a run that was not ready yet is stopped.
            KeyboardInterrupt: as well.
        """
        served = record.outcome == "serving"
        watch = RunWatch(self.hosts, self.emitter)
        readiness = Readiness(self.hosts, watch, self.emitter, record, self.api_key)
        started = time.monotonic()
        try:
            first = PHASES_BEFORE + self.skipped + 1
            of = first + len(plan.stages) - 1
            for number, stage in enumerate(plan.stages, start=first):
                if not watch.ranks and not _writes_files(stage):
                    _follow_all(watch, record)
                place = {"number": number, "of": of, "steps": len(stage.steps)}
                self.emitter.emit("phase", stage.title, data=place)
                execute.run_stage(
                    stage,
                    self.hosts,
                    self.emitter,
                    readiness.wait,
                    command_s=record.profile.limits.command_s,
                )
                self.timings_s[stage.title] = since(started)
        except BaseException as error:
            ended = readiness.failed(error)
            if not served or ended.failure is not None:
                self._remember(directory, ended)
            if not served:
                self.emitter.emit("phase", "stop what was started")
                stop.stop_ranks(self.hosts, record, self.emitter, gentle=False)
            raise
        finally:
            readiness.close()
            watch.close()
        self.timings_s["ready"] = since(started)
        record = readiness.served(record.timings_s if served else self.timings_s)
        directory.write_record(record)
        return record

    def _remember(self, directory: RunDirectory, record: RunRecord) -> None:
        """Write the record of a run that failed; a full disk here must not keep it running."""
        try:
            directory.write_record(record)
        except ConfigError as error:
            self.emitter.emit("notice", f"the run's end is not recorded: {error.message}")


def since(started: float) -> float:
    """Seconds since a monotonic time."""
    return round(time.monotonic() - started, 3)


def _writes_files(stage: Stage) -> bool:
    return any(isinstance(step.action, PutFile) for step in stage.steps)


def _follow_all(watch: RunWatch, record: RunRecord) -> None:
    for rank, node in enumerate(record.cluster.nodes):
        watch.follow(
            RankAddress(
                rank,
                node.name,
                record.run_dirs[node.name],
                record.pythons[node.name],
                # What a serving engine logged since its start says nothing about its state now.
                log_from_start=record.outcome != "serving",
            )
        )
