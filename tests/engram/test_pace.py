"""Rates, and the one warning about a disk or network that is too slow."""

from __future__ import annotations

import threading

from sparkserve.engram.pace import Pace
from sparkserve.engram.reporter import Reporter
from sparkserve.model.pack import PackCode, PackEvent


def test_case_b91_eleven_megabytes_a_second_for_half_a_minute_is_slow() -> None:
    pace = Pace()
    for at_s, done_bytes in ((0, 0), (30, 330_000_000), (60, 690_000_000)):
        pace.step(at_s, done_bytes)
        slow = pace.slow()
        # Told once, as soon as half a minute has passed.
        assert (slow is not None) == (at_s == 30)
        if slow is not None:
            assert slow == 11e6


def test_fast_enough_is_not_slow() -> None:
    pace = Pace()
    for second in range(120):
        pace.step(second, second * 51_000_000)
        assert pace.slow() is None


def test_a_short_stall_is_not_slow_and_a_long_one_is() -> None:
    pace = Pace()
    told = []
    for second in range(120):
        # A gigabyte a second, then nothing from second 40 on.
        pace.step(second, min(second, 40) * 1_000_000_000)
        if pace.slow() is not None:
            told.append(second)
    # In the window of 30 s before second 69 there was still 1 GB: 33 MB/s.
    assert told == [69]


def test_the_rate_is_that_of_the_last_seconds() -> None:
    pace = Pace()
    assert pace.bytes_per_s == 0
    for second in range(60):
        pace.step(second, second * 100 if second < 30 else 2900 + (second - 29) * 7)
    assert pace.bytes_per_s == 7


def test_the_warning_is_one_event_and_names_both_rates() -> None:
    now = [0.0]
    events: list[PackEvent] = []
    reporter = Reporter(events.append, threading.Event(), lambda: now[0])
    reporter.begin("pack", 10**12)
    for _ in range(100):
        now[0] += 1
        reporter.step(1, 11_500_000)
    warnings = [event for event in events if event.event == "warning"]
    assert len(warnings) == 1
    assert warnings[0].code is PackCode.SLOW
    assert "11.5 MB/s over 30 s, expected at least 50 MB/s" in warnings[0].message


def test_progress_is_told_a_few_times_a_second_and_at_the_end() -> None:
    now = [0.0]
    events: list[PackEvent] = []
    reporter = Reporter(events.append, threading.Event(), lambda: now[0])
    reporter.begin("pack", 1000)
    for _ in range(1000):
        now[0] += 0.001
        reporter.step(1, 1)
    done = [event.done_bytes for event in events if event.event == "progress"]
    assert len(done) <= 6
    assert done[-1] == 1000
