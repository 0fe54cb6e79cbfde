"""The first failing rank is named even where another one's end arrives before."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from sparkserve.model.record import RankFailure
from sparkserve.ops.doors import Emitter, utc_now
from sparkserve.ops.watch import RankAddress, RunWatch
from tests.ops.told import Heard, ToldHost, line, state
from tests.testbed.shell import wait_until

LOST = line("log", "[rank0]: ProcessGroupNCCL: connection reset by peer")
OUT_OF_MEMORY = line("log", "torch.OutOfMemoryError: CUDA out of memory.")


def failure(
    *told: Sequence[str | threading.Event], then: threading.Event | None = None
) -> tuple[RankFailure, Heard]:
    """What is said of ranks that tell these lines; ``then`` is set once one of them has ended."""
    heard = Heard()
    hosts = {f"spark{n + 1}": ToldHost(f"spark{n + 1}", lines) for n, lines in enumerate(told)}
    watch = RunWatch(hosts, Emitter([heard], utc_now))
    try:
        for rank, node in enumerate(hosts):
            watch.follow(RankAddress(rank, node, "/r", "/py"))
        wait_until(lambda: any(view.ended for view in watch.ranks.values()), what="an end")
        if then is not None:
            then.set()
        found = watch.failure()
    finally:
        watch.close()
    assert found is not None
    return found, heard


def test_rank_that_only_reports_another_ones_end_is_not_blamed() -> None:
    lost = state(0, "failed", origin=1, reason="rank 1: engine exited with code 1")
    found, _ = failure([lost], [OUT_OF_MEMORY, state(1, "failed", origin=1, reason="exit 1")])
    assert (found.rank, found.node) == (1, "spark2")
    assert found.reason == "exit 1: the engine ran out of memory"
    assert "context.kv_tokens" in found.fix


def test_rank_that_never_speaks_is_named_by_the_one_that_lost_it() -> None:
    lost = state(0, "failed", origin=1, reason="rank 1 lost: silent for 6 s")
    found, _ = failure([lost], [])
    assert (found.rank, found.node, found.reason) == (1, "spark2", "rank 1 lost: silent for 6 s")


def test_engine_that_died_of_a_lost_peer_is_not_blamed_though_it_ended_first() -> None:
    first = threading.Event()
    own_end = [LOST, state(0, "failed", origin=0, reason="engine exited with code 1")]
    culprit = [first, OUT_OF_MEMORY, state(1, "failed", origin=1, reason="engine exited")]
    found, _ = failure(own_end, culprit, then=first)
    assert found.rank == 1


def test_line_that_is_not_understood_is_told_and_ends_nothing() -> None:
    odd = ["no json", "[]", '{"kind": "state", "value": {"state": "running"}}']
    found, heard = failure([*odd, state(0, "failed", origin=0, reason="x")])
    assert found.rank == 0
    assert sum("not understood" in event.message for event in heard.events) == 3


def test_that_we_ask_an_engine_is_no_sign_that_it_gets_on() -> None:
    asked = 'INFO:     127.0.0.1:36780 - "GET /health HTTP/1.1" 503 Service Unavailable'
    assert not moves(asked)
    assert moves("Load weight begin. avail mem=110.00 GB")


def moves(text: str) -> bool:
    """Whether a log line counts as progress."""
    heard = Heard()
    watch = RunWatch({"spark1": ToldHost("spark1", [line("log", text)])}, Emitter([heard], utc_now))
    watch.moved_at = 0.0
    try:
        watch.follow(RankAddress(0, "spark1", "/r", "/py"))
        wait_until(lambda: any(e.kind == "log" for e in heard.events), what="the line")
    finally:
        watch.close()
    return watch.moved_at > 0.0


STOOD = "CustomAllreduce is disabled because this process group spans across nodes."


def followed(*lines: str) -> tuple[RunWatch, Heard]:
    """A watch that took these lines of rank 0, as if they came long ago; still to be closed."""
    heard = Heard()
    watch = RunWatch({"spark1": ToldHost("spark1", lines)}, Emitter([heard], utc_now))
    watch.follow(RankAddress(0, "spark1", "/r", "/py"))
    wait_until(
        lambda: len([e for e in heard.events if e.kind != "notice"]) >= len(lines),
        what="all lines",
    )
    return watch, heard


def notices(heard: Heard) -> list[str]:
    return [event.message for event in heard.events if event.kind == "notice"]


def counters(**values: float) -> str:
    base = {"at_s": time.time(), "log_bytes": 0, "read_bytes": 0, "cpu_s": 0, "rss_bytes": 0,
            "memory_available_bytes": 0, "processes": 1}  # fmt: skip
    return line("progress", base | values)


def test_line_that_must_not_stay_the_newest_is_named_once_nothing_moves() -> None:
    watch, heard = followed(line("log", STOOD))
    try:
        watch.tell_stalls()
        assert notices(heard) == []
        watch.moved_at = watch.ranks[0].line_at = time.monotonic() - 121.0
        watch.tell_stalls()
        watch.tell_stalls()
    finally:
        watch.close()
    (said,) = notices(heard)
    assert said.startswith("rank 0 spark1 stands still after 'CustomAllreduce is disabled")
    assert "SGLANG_HOST_IP" in said


def test_rank_that_still_reads_or_receives_does_not_stall() -> None:
    watch, heard = followed(line("log", STOOD))
    try:
        watch.ranks[0].line_at = time.monotonic() - 500.0
        watch.tell_stalls()
    finally:
        watch.close()
    assert notices(heard) == []


@pytest.mark.parametrize("grown", ["read_bytes", "cache_files"])
def test_reading_and_compiling_are_progress(grown: str) -> None:
    watch, _ = followed(counters(**{grown: 1}))
    watch.close()
    watch.moved_at = 0.0
    before = watch.ranks[0].counters
    assert before is not None
    assert before.model_copy(update={grown: 2}).moved_since(before)


def test_harmless_warning_before_a_healthy_phase_is_not_blamed() -> None:
    found, _ = failure(
        [
            line("log", "ImportError: cannot import name 'x' from 'optional_kernels'"),
            line("log", "[2026-11-30 12:00:03 TP0] Load weight begin. avail mem=20.00 GB"),
            state(0, "failed", origin=0, reason="engine killed by SIGKILL"),
        ]
    )
    assert found.reason == "engine killed by SIGKILL"


def test_rank_that_waited_in_vain_gives_way_to_the_one_whose_error_made_it_wait() -> None:
    waited = line("log", "DistStoreError: Timed out after 60 seconds waiting for clients. 1/2 "
                  "clients joined.")  # fmt: skip
    told = threading.Event()
    own_end = [told, waited, state(0, "failed", origin=0, reason="engine exited with code 1")]
    heard = Heard()
    hosts = {
        "spark1": ToldHost("spark1", own_end),
        "spark2": ToldHost("spark2", [line("log", "ModuleNotFoundError: No module named 'x'")]),
    }
    watch = RunWatch(hosts, Emitter([heard], utc_now))
    try:
        for rank, node in enumerate(hosts):
            watch.follow(RankAddress(rank, node, "/r", "/py"))
        wait_until(lambda: any(e.rank == 1 for e in heard.events), what="rank 1's line")
        told.set()
        wait_until(lambda: watch.ranks[0].ended, what="the end of rank 0")
        found = watch.failure()
    finally:
        watch.close()
    assert found is not None
    assert (found.rank, found.node) == (1, "spark2")
    assert found.reason == (
        "the runtime is incomplete: No module named 'x' (rank 0 ended: engine exited with code 1: "
        "only 1 of 2 ranks met within 60 s: the missing rank's own log says why)"
    )


def test_kernel_compiled_while_serving_is_told_once() -> None:
    compiled = line("log", "WARNING JIT compilation during inference: FusedMoe. Slow.")
    watch, heard = followed(compiled, compiled)
    watch.close()
    (said,) = notices(heard)
    assert "kernel FusedMoe was compiled while serving" in said


def test_what_the_guard_notices_becomes_an_event_when_it_comes_and_when_it_goes() -> None:
    running = json.loads(state(0, "running"))["value"]
    wedged = line("state", running | {"notice": "engine wedged: 3 requests run"})
    watch, heard = followed(state(0, "running"), wedged, state(0, "running"))
    watch.close()
    assert notices(heard) == [
        "rank 0 spark1: guard: engine wedged: 3 requests run",
        "rank 0 spark1: guard: no longer: engine wedged: 3 requests run",
    ]


class TestTimes:
    def view(self, *lines: str) -> RunWatch:
        watch, _ = followed(*lines)
        watch.close()
        return watch

    def stamp(self, ahead_s: float) -> str:
        return datetime.fromtimestamp(time.time() + ahead_s, UTC).strftime("[%Y-%m-%d %H:%M:%S]")

    def test_of_a_line_is_corrected_by_the_nodes_clock(self) -> None:
        ahead = counters(at_s=time.time() + 30.0)
        (fault,) = self.view(ahead, line("log", f"{self.stamp(30.0)} MemoryError")).watcher.faults
        assert fault.at is not None
        assert abs(fault.at.timestamp() - time.time()) < 20.0

    def test_of_another_zone_or_day_is_not_trusted(self) -> None:
        (fault,) = self.view(line("log", f"{self.stamp(7200.0)} MemoryError")).watcher.faults
        assert fault.at is None
