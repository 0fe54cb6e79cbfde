"""The first failing rank is named even where another one's end arrives before."""

from __future__ import annotations

import threading
from collections.abc import Sequence

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
