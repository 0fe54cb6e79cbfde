"""When a run is ready: every rank reported the same, and rank 0 answered a question.

A port that answers proves nothing: a worker's /health is a dummy, and an engine may answer 200
while it is wedged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from sparkserve.endpoint import ChatReply, Endpoint, implausible
from sparkserve.errors import EndpointError, NotReadyError
from sparkserve.model.plan import AwaitAnswer, AwaitHealth, AwaitReports, Step
from sparkserve.model.record import RankFailure, RunOutcome, RunRecord
from sparkserve.ops import agreement
from sparkserve.ops.doors import Emitter
from sparkserve.ops.watch import RunWatch
from sparkserve.transport.host import ForwardedPort, Host
from sparkserve.units import format_duration

T = TypeVar("T")
_POLL_S = 0.25
_HEALTH_LIMIT_S = 10.0
_ANSWER_LIMIT_S = 300.0
_WARMUP_PROMPT = "Write two sentences about the sea."
_WARMUP_TOKENS = 48


def in_background(work: Callable[[], T]) -> Future[T]:
    """Run something in a thread that may be left behind: a dead engine answers nobody."""
    future: Future[T] = Future()

    def carry_out() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  handed over to whoever waits
            future.set_exception(error)

    threading.Thread(target=carry_out, name="ask", daemon=True).start()
    return future


class Readiness:
    """Carries out the waiting steps of a launch and remembers what they found."""

    def __init__(
        self,
        hosts: Mapping[str, Host],
        watch: RunWatch,
        emitter: Emitter,
        record: RunRecord,
        api_key: str | None,
    ) -> None:
        self._head = hosts[record.cluster.nodes[0].name]
        self._watch = watch
        self._emitter = emitter
        self._record = record
        self._api_key = api_key
        self._forward: ForwardedPort | None = None
        self._failure: RankFailure | None = None
        self._answer: ChatReply | None = None
        self._answer_s = 0.0

    def wait(self, step: Step) -> None:
        """Carry out one waiting step.

        Raises:
            NotReadyError: a rank failed, the answer is wrong, or nothing moves any more.
        """
        match step.action:
            case AwaitReports(ranks=ranks):
                self._await_reports(ranks)
            case AwaitHealth(port=port):
                self._until(lambda: self._healthy(port))
            case AwaitAnswer() as question:
                self._ask(question)
            case _:
                raise NotReadyError(f"no way to wait for {step.action.do}")

    def served(self, timings_s: Mapping[str, float]) -> RunRecord:
        """The record of a run that is ready."""
        reply = self._answer
        tokens = reply.usage.completion_tokens if reply and reply.usage else None
        return self._updated(
            "serving",
            timings_s=dict(timings_s),
            reports=self._reports(),
            answer=reply.text if reply else None,
            answer_tokens_per_s=(
                round(tokens / self._answer_s, 2) if tokens and self._answer_s else None
            ),
        )

    def failed(self, error: BaseException) -> RunRecord:
        """The record of a run that ended with this error."""
        outcome: RunOutcome = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        return self._updated(outcome, reports=self._reports(), failure=self._failure)

    def close(self) -> None:
        """Stop forwarding rank 0's port."""
        if self._forward is not None:
            self._forward.close()

    def _updated(self, outcome: RunOutcome, **values: object) -> RunRecord:
        now = self._emitter.now()
        return self._record.model_copy(update={"outcome": outcome, "updated_at": now, **values})

    def _reports(self) -> tuple[object, ...]:
        return tuple(
            report
            for _, view in sorted(self._watch.ranks.items())
            for _, report in sorted(view.reports.items())
        )

    def _until(self, done: Callable[[], bool]) -> None:
        """Wait while ranks live and something moves."""
        limit_s = self._record.profile.limits.no_progress_s
        while not done():
            self._raise_failure()
            self._raise_small_pool()
            self._watch.tell_stalls()
            still_s = time.monotonic() - self._watch.moved_at
            if still_s > limit_s:
                raise NotReadyError(
                    f"no rank logged or read anything for {format_duration(still_s)}; "
                    + self._where_they_stand()
                    + "".join(f"; {s.node}: {s.meaning}" for s in self._watch.stalls()),
                    hint="\n".join(
                        [
                            *dict.fromkeys(s.pattern.fix for s in self._watch.stalls()),
                            f"sparkserve logs --run {self._record.run_id}",
                        ]
                    ),
                )
            self._watch.wait(self._anything_wrong, limit_s=_POLL_S)
        self._raise_failure()

    def _anything_wrong(self) -> bool:
        return any(view.ended for view in self._watch.ranks.values())

    def _raise_failure(self) -> None:
        failure = self._watch.failure()
        if failure is None:
            return
        self._failure = failure
        tail = "\n".join(f"  {line}" for line in failure.last_lines[-8:])
        logs = f"sparkserve logs {failure.node} --run {self._record.run_id}"
        raise NotReadyError(
            f"rank {failure.rank} on {failure.node}: {failure.reason}"
            + (f"\nits last lines:\n{tail}" if tail else ""),
            hint=f"{failure.fix}\n{logs}" if failure.fix else logs,
        )

    def _raise_small_pool(self) -> None:
        """Give up at the line that says it, minutes before the engine would be ready."""
        context = self._record.profile.context.length_tokens
        for _, view in sorted(self._watch.ranks.items()):
            pool = view.progress.kv_tokens
            if context is not None and pool is not None and pool < context:
                raise NotReadyError(
                    f"the KV pool on {view.address.node} holds {pool:,} tokens, less than one "
                    f"context of {context:,} (context.length_tokens)",
                    hint="raise context.mem_fraction_static or free memory: sparkserve plan",
                )

    def _where_they_stand(self) -> str:
        return ", ".join(
            f"{view.address.node} in {view.progress.describe()}"
            for _, view in sorted(self._watch.ranks.items())
        )

    def _await_reports(self, ranks: int) -> None:
        def decided() -> bool:
            views = self._watch.ranks.values()
            for view in views:
                refused = agreement.refusal(list(view.reports.values()))
                if refused is not None:
                    node = view.address.node
                    raise NotReadyError(
                        f"rank {refused.rank} on {node} refused to serve: {refused.reason}",
                        hint=f"sparkserve logs {node} --run {self._record.run_id}",
                    )
            found = [agreement.deciding(list(view.reports.values())) for view in views]
            return len([report for report in found if report is not None]) == ranks

        self._until(decided)
        by_rank = {
            rank: report
            for rank, view in self._watch.ranks.items()
            if (report := agreement.deciding(list(view.reports.values()))) is not None
        }
        difference = agreement.disagreement(by_rank, self._record.agreement)
        if difference is not None:
            raise NotReadyError(
                f"the ranks do not agree: {difference}",
                hint=f"sparkserve logs --run {self._record.run_id}",
            )

    def _endpoint(self, port: int) -> Endpoint:
        if self._forward is None:
            self._forward = self._head.forward(port)
        return Endpoint(f"http://127.0.0.1:{self._forward.port}/v1", api_key=self._api_key)

    def _healthy(self, port: int) -> bool:
        try:
            return self._endpoint(port).health(timeout_s=_HEALTH_LIMIT_S)
        except EndpointError:
            return False

    def _ask(self, question: AwaitAnswer) -> None:
        reply, self._answer_s = self._chat(question, question.prompt, question.max_tokens)
        self._answer = reply
        problem = implausible(reply.text) if question.plausible else None
        if (
            problem is None
            and question.expect
            and question.expect.lower() not in reply.text.lower()
        ):
            problem = f"expected it to hold {question.expect!r}"
        if problem is not None:
            raise NotReadyError(
                f"rank 0 answered {reply.text[:200]!r} to {question.prompt!r}: {problem}",
                hint=f"sparkserve logs --run {self._record.run_id}",
            )
        self._emitter.emit("notice", f"answer: {reply.text.strip()}")
        if question.warmup_requests:
            self._warm_up(question)

    def _chat(self, question: AwaitAnswer, prompt: str, max_tokens: int) -> tuple[ChatReply, float]:
        """One answer, given up as soon as a rank fails."""
        messages = [{"role": "user", "content": prompt}]
        endpoint = self._endpoint(question.port)
        started = time.monotonic()
        pending = in_background(
            lambda: endpoint.chat(
                messages, max_tokens=max_tokens, temperature=0.0, timeout_s=_ANSWER_LIMIT_S
            )
        )
        self._until(pending.done)
        try:
            return pending.result(), time.monotonic() - started
        except EndpointError as error:
            raise NotReadyError(f"rank 0 gave no answer: {error.message}") from error

    def _warm_up(self, question: AwaitAnswer) -> None:
        with ThreadPoolExecutor(question.warmup_requests) as pool:
            replies = list(
                pool.map(
                    lambda _: self._chat(question, _WARMUP_PROMPT, _WARMUP_TOKENS)[0],
                    range(question.warmup_requests),
                )
            )
        for reply in replies:
            if question.plausible and (problem := implausible(reply.text)):
                self._emitter.emit("notice", f"a warm-up answer is not plausible: {problem}")
