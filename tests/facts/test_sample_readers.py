"""Samples over time keep their order, their repeats and their units."""

from __future__ import annotations

from typing import TypeVar

import pytest

from sparkserve.facts import samples
from sparkserve.facts.reader import Fact, understand
from sparkserve.facts.samples import (
    CanarySamples,
    MemorySamples,
    MetricScrapes,
    ProgressSamples,
    RequestSamples,
    StateSamples,
    StreamTail,
    period_s,
)
from sparkserve.model.facts import Unobserved
from sparkserve.model.reading import Reading

F = TypeVar("F", bound=Fact)


def read(kind: type[F], text: str, what: str, note: str = "") -> F:
    (seen,) = understand([Reading(text=text, what=what, note=note)], samples.READERS).observations
    assert isinstance(seen.fact, kind)
    return seen.fact


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("39321600\n52428800\n", "kB, every 2 s"),
        ("39321600\n52428800\n", ""),
        ("37.5 50.0", "GiB, every 2 s"),
        ("37.5\n50\n", "GiB"),
        ("MemAvailable:   39321600 kB\nMemAvailable:   52428800 kB\n", ""),
        ("37.5 GiB\n50 GiB\n", ""),
        ("10:21:02 37.5\n10:21:04 50.0\n", "GiB"),
    ],
)
def test_memory_is_in_gib_whatever_the_unit(text: str, note: str) -> None:
    assert read(MemorySamples, text, "MemAvailable samples", note).available_gib == (37.5, 50.0)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("GiB, every 2 s", 2.0), ("two scrapes 60 s apart", 60.0), ("again, 2 min later", 120.0),
        ("every 500 ms", 0.5), ("interval of 15 seconds", 15.0), ("kB", None),
    ],
)  # fmt: skip
def test_period_is_read_from_the_note(words: str, seconds: float | None) -> None:
    assert period_s(words) == seconds


def test_states_are_words_in_order_with_repeats() -> None:
    text = "running\nUp 3 minutes\nExited (1) 2 seconds ago\nexited\n"
    states = read(StateSamples, text, "container state samples").states
    assert states == ("running", "running", "exited", "exited")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("600 51 88\n615 53 88\n", "columns: t in s, rx_bytes, log_lines"),
        ("t rx_bytes log_lines\n600 51 88\n615 53 88\n", ""),
        ("t,rx_bytes,log_lines\n600,51,88\n615,53,88\n", ""),
    ],
)
def test_progress_has_named_columns(text: str, note: str) -> None:
    seen = read(ProgressSamples, text, "progress samples", note)
    assert seen.columns == ("t", "rx_bytes", "log_lines")
    assert seen.column("rx_bytes") == (51.0, 53.0)
    assert seen.column("nvme") is None


def test_metrics_of_both_engines_are_found_by_the_end_of_their_names() -> None:
    sglang = 'sglang:num_running_reqs{tp_rank="0"} 3.0\n--\nsglang:num_running_reqs 2.0\n'
    vllm = '# TYPE x gauge\nvllm:num_requests_running{a="b"} 1\n'
    names = ("num_running_reqs", "num_requests_running")
    assert read(MetricScrapes, sglang, "metrics").values(*names) == (3.0, 2.0)
    assert read(MetricScrapes, vllm, "GET /metrics").values(*names) == (1.0,)
    assert read(MetricScrapes, sglang, "metrics").values("generation_tokens_total") is None


def test_canary_knows_its_best() -> None:
    seen = read(CanarySamples, "63.1 62.9\n94.0", "canary samples", "ms per step, best known 63")
    assert (seen.ms, seen.best_known_ms) == ((63.1, 62.9, 94.0), 63.0)


def test_request_that_has_no_reason_to_end_still_runs() -> None:
    text = "rid=ab12 age_s=3605 output_tokens=271004 finish=null\nrid=cd age_s=2 finish=stop\n"
    first, second = read(RequestSamples, text, "running request sample").requests
    assert (first.id, first.age_s, first.output_tokens, first.finish) == (
        "ab12",
        3605.0,
        271004,
        None,
    )
    assert (second.finish, second.output_tokens) == ("stop", None)


def test_stream_is_kept_byte_for_byte() -> None:
    assert read(StreamTail, "a  b\n", "tail of the reasoning stream").text == "a  b\n"


@pytest.mark.parametrize(
    "what",
    ["MemAvailable samples", "container state samples", "progress samples", "metrics",
     "canary samples", "running request sample"],
)  # fmt: skip
@pytest.mark.parametrize("text", ["", "no such thing here", "\x00\n"])
def test_text_without_a_sample_is_unobserved(what: str, text: str) -> None:
    (seen,) = understand([Reading(text=text, what=what)], samples.READERS).observations
    assert isinstance(seen.fact, Unobserved)


def test_series_of_two_readings_keep_every_repeat() -> None:
    one = read(StateSamples, "exited\nexited\n", "container state samples")
    assert one.merged(one).states == ("exited",) * 4
