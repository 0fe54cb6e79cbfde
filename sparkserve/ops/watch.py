"""Follow all ranks of a run at once, and know at any moment what they do and who failed first."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from sparkserve.engine.readiness import RankProgress
from sparkserve.engine.watcher import Fault, Watcher, match
from sparkserve.errors import NodeError
from sparkserve.facts.log_time import time_of
from sparkserve.model.engine_spec import InstallReport
from sparkserve.model.node_state import FINAL_STATES, Progress, RankState
from sparkserve.model.record import RankFailure
from sparkserve.ops.doors import Emitter
from sparkserve.ops.node_command import node_command
from sparkserve.transport.host import Host, Result

_OUR_QUESTION = re.compile(r'"GET /(health|metrics)\b')
"""An engine's log line about being asked by us: that we ask is no sign that it gets on."""
_ATTRIBUTION_S = 1.5
"""How long to wait for the failing rank's own word after another rank reported its loss."""
_SLACK_S = 1.0
"""Engines stamp lines by the second; within it the order of arrival is the better witness."""
_TRUST_S = 60.0
"""A line's time that is further from now is in another time zone, or of an old log."""


@dataclass(frozen=True)
class RankAddress:
    """Where one rank runs."""

    rank: int
    node: str
    run_dir: str
    python: str
    log_from_start: bool = True
    """Whether to read the log from its beginning; otherwise from now on."""


@dataclass
class RankView:
    """What is known of one rank."""

    address: RankAddress
    progress: RankProgress = field(default_factory=RankProgress)
    state: RankState | None = None
    counters: Progress | None = None
    reports: dict[int, InstallReport] = field(default_factory=dict)
    """By process id."""
    clock_ahead_s: float = 0.0
    """How far the node's clock is before ours, by its newest counters."""
    line_at: float = field(default_factory=time.monotonic)
    """When its newest log line of its own came."""
    link_error: str | None = None
    """Why the node can no longer be heard; None while it can."""
    ended_order: int | None = None
    """Place of its end among the ends of all ranks."""

    @property
    def doing(self) -> str:
        """Its phase as far as its log tells; empty where only the end of the log was read."""
        unread = not self.address.log_from_start and self.progress == RankProgress()
        return "" if unread else self.progress.describe()

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be expected of this rank."""
        return self.link_error is not None or (
            self.state is not None and self.state.state in FINAL_STATES
        )


class RunWatch:
    """One stream per rank; every change wakes whoever waits."""

    def __init__(self, hosts: Mapping[str, Host], emitter: Emitter) -> None:
        self._hosts = hosts
        self._emitter = emitter
        self._changed = threading.Condition()
        self._cancel = threading.Event()
        self._threads: list[threading.Thread] = []
        self.watcher = Watcher()
        self.ranks: dict[int, RankView] = {}
        self.moved_at = time.monotonic()
        """When any rank last logged or read something."""
        self._ends = 0
        self._told: set[tuple[int, str]] = set()
        """Ranks and kinds of line of which the user was told."""

    def follow(self, address: RankAddress) -> None:
        """Begin to follow one rank; its run directory exists already."""
        view = RankView(address)
        with self._changed:
            self.ranks[address.rank] = view
        thread = threading.Thread(
            target=self._stream, args=(view,), name=f"follow-r{address.rank}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def wait(self, done: Callable[[], bool], *, limit_s: float, step_s: float = 0.5) -> bool:
        """Wait until ``done`` holds; looked at after every change and every ``step_s``.

        Returns:
            Whether it holds; False once ``limit_s`` is over.
        """
        deadline = time.monotonic() + limit_s
        with self._changed:
            while not done():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(step_s, left))
            return True

    def failure(self) -> RankFailure | None:
        """The first rank that ended and why, or None while all live.

        A rank that only reports the loss of another one gives that one a moment to speak.
        """
        with self._changed:
            if not any(view.ended for view in self.ranks.values()):
                return None
        self.wait(lambda: self._culprit() is not None, limit_s=_ATTRIBUTION_S, step_s=0.05)
        with self._changed:
            view = self._culprit() or self._speaker() or self._first_ended()
            return self._describe(view)

    def stalls(self) -> list[Fault]:
        """Ranks whose newest line must not stay the newest for so long, while nothing moves."""
        with self._changed:
            now = time.monotonic()
            still_s = now - self.moved_at
            found = [
                self.watcher.stall(rank, min(still_s, now - view.line_at))
                for rank, view in sorted(self.ranks.items())
                if not view.ended
            ]
        return [stall for stall in found if stall is not None]

    def tell_stalls(self) -> None:
        """Name the cause of every new stall, long before a launch is given up."""
        for stall in self.stalls():
            self._warn(stall, f"stands still after {stall.line.strip()!r}: {stall.meaning}")

    def close(self) -> None:
        """End the streams; what runs on the nodes is not affected."""
        self._cancel.set()
        for thread in self._threads:
            thread.join(timeout=5)

    def _first_ended(self) -> RankView:
        ended = [view for view in self.ranks.values() if view.ended]
        return min(ended, key=lambda view: view.ended_order or 0)

    def _speaker(self) -> RankView | None:
        """The earliest ended rank whose end began with itself."""
        own = [
            view
            for view in self.ranks.values()
            if view.ended
            and (view.state is None or view.state.origin_rank in (None, view.address.rank))
        ]
        return min(own, key=self._blame, default=None)

    def _blame(self, view: RankView) -> tuple[bool, int]:
        cause = self.watcher.cause(view.address.rank)
        return _only_follows(cause), view.ended_order or 0

    def _culprit(self) -> RankView | None:
        """The speaker, unless its own log says that it only lost another rank.

        An engine may die of a lost peer before its guard hears of that peer's end.
        """
        view = self._speaker()
        return None if view is None or self._blame(view)[0] else view

    def _describe(self, view: RankView) -> RankFailure:
        state = view.state
        origin = view.address.rank
        if view.link_error is None and state is not None and state.origin_rank is not None:
            origin = state.origin_rank
        reason = view.link_error or (state.reason if state else "unknown")
        speaker = self.ranks.get(origin, view)
        cause = self.watcher.cause(origin, slack_s=_SLACK_S)
        fix = ""
        if cause is not None and origin == view.address.rank:
            reason, fix = f"{reason}: {cause.meaning}", cause.pattern.fix
        elsewhere = self.watcher.cause(slack_s=_SLACK_S)
        if _only_follows(cause) and elsewhere is not None and not _only_follows(elsewhere):
            # A rank that waited for another one ends first where that one hangs after its error.
            ended = f"rank {origin} ended: {reason}"
            origin, speaker = elsewhere.rank, self.ranks[elsewhere.rank]
            reason, fix = f"{elsewhere.meaning} ({ended})", elsewhere.pattern.fix
        return RankFailure(
            rank=origin,
            node=speaker.address.node,
            reason=reason,
            fix=fix,
            last_lines=self.watcher.last_lines(origin),
        )

    def _stream(self, view: RankView) -> None:
        address = view.address
        argv = [
            *node_command(address.python, "follow", "--run-dir", address.run_dir),
            *([] if address.log_from_start else ["--new"]),
        ]
        try:
            result = self._hosts[address.node].stream(
                argv, on_line=lambda line: self._take(view, line), cancel=self._cancel
            )
            error = self._stream_error(view, result)
        except NodeError as failed:
            error = failed.message
        with self._changed:
            if error is not None and not self._cancel.is_set():
                view.link_error = error
                self._mark_end(view)
            self._changed.notify_all()

    @staticmethod
    def _stream_error(view: RankView, result: Result) -> str | None:
        if view.ended or result.ok:
            return None
        if result.status == "exited":
            return f"its follower ended with exit {result.exit_code}: {result.tail(3)}"
        return "the connection to the node was lost (power loss, or a dark link)"

    def _take(self, view: RankView, line: str) -> None:
        try:
            # An engine may log its key: it must not even reach a record or a message.
            message = self._emitter.hidden(json.loads(line))
            kind, value = message["kind"], message["value"]
            with self._changed:
                self._apply(view, kind, value)
                self._changed.notify_all()
        except (ValueError, KeyError, TypeError, ValidationError):
            # A node of another version may say things we do not know; its log still counts.
            self._tell("notice", view, f"not understood: {line[:200]}", {})
            return

    def _apply(self, view: RankView, kind: str, value: Any) -> None:
        rank, node = view.address.rank, view.address.node
        if kind == "log":
            if not _OUR_QUESTION.search(str(value)):
                self.moved_at = view.line_at = time.monotonic()
            self.watcher.feed(rank, node, value, _written_at(view, value))
            before, view.progress = view.progress, view.progress.after(value)
            self._tell("log", view, value, {})
            if view.progress != before:
                self._tell("progress", view, view.doing, {})
            pattern = match(value)
            if pattern is not None and pattern.lasting and pattern.weight == "fault":
                found = Fault(rank, node, value, pattern, 0)
                self._warn(found, found.meaning)
        elif kind == "state":
            noticed = view.state.notice if view.state is not None else ""
            view.state = RankState.model_validate(value)
            if view.state.notice != noticed:
                said = view.state.notice or f"no longer: {noticed}"
                self._tell("notice", view, f"rank {rank} {node}: guard: {said}", {})
            if view.ended:
                self._mark_end(view)
            self._tell("state", view, view.state.state, view.state.model_dump(mode="json"))
        elif kind == "report":
            report = InstallReport.model_validate(value)
            view.reports[report.pid] = report
            self._tell("report", view, report.role, report.model_dump(mode="json"))
        elif kind == "progress":
            counters = Progress.model_validate(value)
            old = view.counters
            view.clock_ahead_s = counters.at_s - time.time()
            if old is None or counters.moved_since(old):
                self.moved_at = time.monotonic()
            view.counters = counters
            self._tell("progress", view, view.doing, counters.model_dump())

    def _warn(self, fault: Fault, message: str) -> None:
        """Tell once per rank and kind of line."""
        key = fault.rank, fault.meaning
        if key not in self._told:
            self._told.add(key)
            text = f"rank {fault.rank} {fault.node} {message}"
            data = {"codes": list(fault.pattern.codes), "fix": fault.pattern.fix}
            self._tell("notice", self.ranks[fault.rank], text, data)

    def _mark_end(self, view: RankView) -> None:
        if view.ended_order is None:
            self._ends += 1
            view.ended_order = self._ends

    def _tell(self, kind: Any, view: RankView, message: str, data: dict[str, Any]) -> None:
        self._emitter.emit(kind, message, node=view.address.node, rank=view.address.rank, data=data)


def _only_follows(cause: Fault | None) -> bool:
    """Whether a rank's own log names nothing but the want of another rank."""
    return cause is not None and (cause.pattern.weight == "consequence" or cause.pattern.yields)


def _written_at(view: RankView, line: str) -> datetime | None:
    """When a line was written, by our clock; None where it does not say, or is not to be trusted.

    Engines stamp lines by the node's own clock, in its own zone.
    """
    at = time_of(line)
    if at is None:
        return None
    ours = at - timedelta(seconds=view.clock_ahead_s)
    return ours if abs(ours.timestamp() - time.time()) <= _TRUST_S else None
