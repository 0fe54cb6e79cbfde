"""Records of evaluations and benchmarks: what they say, and what they do not."""

from __future__ import annotations

from typing import Any

import pytest

from sparkserve.evals.agreement import agreement
from sparkserve.evals.tally import Scored, Tally
from tests.checks.texts import about, command, failing, loud, what

SAMPLES = [
    {"answer": "42", "gold": "42", "finish": "length"},
    {"answer": None, "gold": "7", "finish": "stop"},
    {"answer": "7", "gold": "7", "finish": "stop"},
    {"answer": None, "gold": "9", "finish": "length"},
]


def test_content_is_scored_before_the_reason_of_the_end() -> None:
    (finding,) = failing("EVL_FINISH_REASON", what("eval samples", SAMPLES))
    for part in ("2 correct of 4", "1 correct with length", "1 empty with stop", "1 truncated"):
        assert part in finding.observed


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(str(one).replace("'", '"').replace("None", "null") for one in SAMPLES),
        "answer,gold,finish_reason\n42,42,length\n,7,stop\n7,7,stop\n,9,length\n",
        '{"label": "a", "results": [{"correct": 1, "finish_reason": "length"},'
        '{"extracted": "", "target": 7, "finish_reason": "stop"},'
        '{"extracted": "7.0", "target": 7, "finish_reason": "stop"},'
        '{"extracted": null, "target": 9, "finish_reason": "max_tokens"}]}',
    ],
    ids=["lines", "csv", "other names"],
)
def test_samples_are_read_in_other_forms(text: str) -> None:
    (finding,) = failing("EVL_FINISH_REASON", what("eval results", text))
    assert "2 correct of 4, 1 correct with length, 1 empty with stop, 1 trunc" in finding.observed


def test_plain_results_are_counted_without_noise() -> None:
    good = [{"ok": True, "finish": "stop"}, {"ok": False, "finish": "stop"}]
    (finding,) = about("EVL_FINISH_REASON", what("eval samples", good))
    assert finding.outcome == "pass"
    assert "1 correct of 2" in finding.observed
    assert loud(what("eval samples", good)) == []


def test_calls_of_tools_are_routed_not_wrong() -> None:
    samples = [
        {"ok": True, "finish": "stop"},
        {"ok": False, "finish": "tool_calls"},
        {"ok": False, "finish": "tool_calls"},
        {"ok": False, "finish": "stop"},
    ]
    (finding,) = failing("EVL_TOOLCALL_BUCKET", what("eval samples", samples))
    assert "pooled 25 %" in finding.observed
    assert "conditional 50 % (1 of 2 attempted)" in finding.observed
    assert "routed 2" in finding.observed
    plan = what("eval plan", {"tools": [{"type": "function"}]})
    assert failing("EVL_TOOLCALL_BUCKET", plan, what("eval samples", samples)) == []


def test_tally_by_hand() -> None:
    tally = Tally.of(
        [
            Scored(correct=True, finish="length", extractable=True),
            Scored(correct=False, finish="length", extractable=True),
            Scored(correct=False, finish="tool_calls"),
            Scored(correct=False, finish="tool_calls", uses_tools=True),
            Scored(correct=False, finish="stop", extractable=False),
        ]
    )
    assert (tally.total, tally.correct, tally.routed, tally.attempted) == (5, 1, 1, 4)
    assert (tally.pooled, tally.conditional) == (0.2, 0.25)
    assert (tally.correct_at_cap, tally.empty_at_stop, tally.truncated) == (1, 1, 0)
    assert tally.table()["length"] == {"correct": 1, "wrong": 1, "empty": 0}
    assert (Tally.of([]).pooled, Tally.of([]).conditional) == (None, None)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        ({"choices": [{"text": "A B C", "logprobs": None}]}, "skipped"),
        ({"choices": [{"text": "A B C", "logprobs": {"token_logprobs": []}}]}, "skipped"),
        ({"choices": [{"text": "A B C", "logprobs": {"token_logprobs": [None]}}]}, "skipped"),
        ({"choices": [{"text": "A B C"}]}, "skipped"),
        ({"choices": [{"text": "A B", "logprobs": {"token_logprobs": [None, -0.7]}}]}, "pass"),
    ],
)
def test_probe_of_likelihoods_needs_numbers(reply: dict[str, Any], outcome: str) -> None:
    (finding,) = about("EVL_LOGLIKELIHOOD_UNSUPPORTED", what("probe reply", reply))
    assert finding.outcome == outcome
    assert (finding.verdict == "UNSUPPORTED") == (outcome == "skipped")


def test_likelihoods_are_judged_where_the_command_asked_for_them() -> None:
    line = 'curl -s head:8888/v1/completions -d \'{"prompt":"A B","echo":true,"logprobs":1}\''
    answer = command(line, '{"choices":[{"text":"A B","finish_reason":"length"}]}')
    (finding,) = about("EVL_LOGLIKELIHOOD_UNSUPPORTED", answer)
    assert finding.verdict == "UNSUPPORTED"
    plain = command("curl -s head:8888/v1/completions -d '{}'", answer.text)
    assert about("EVL_LOGLIKELIHOOD_UNSUPPORTED", plain) == []


@pytest.mark.parametrize(
    "sample",
    [
        {"reasoning_content": "First, ...", "completion_tokens": 2210, "finish_reason": "stop"},
        {"reasoning": "Hm.", "finish_reason": "stop"},
        {"ok": True, "usage": {"completion_tokens_details": {"reasoning_tokens": 3}}},
        {"ok": True, "reasoning_chars": 812},
        {"ok": True, "content": "<think>Well</think>42"},
        {"choices": [{"message": {"content": "42", "reasoning": "Hm"}, "finish_reason": "stop"}]},
    ],
)
@pytest.mark.parametrize(
    "plan",
    ['{"thinking":false,"max_tokens":8192}', "enable_thinking: false\n",
     '{"chat_template_kwargs": {"thinking": false}}', "thinking: off\n"],
)  # fmt: skip
def test_thinking_in_a_run_without_makes_it_invalid(sample: dict[str, Any], plan: str) -> None:
    found = failing("EVL_MODE_CONTRADICTION", what("eval plan", plan), what("eval sample", sample))
    assert [f.verdict for f in found] == ["INVALID"]


def test_run_in_its_planned_mode_passes_both_ways() -> None:
    off = [{"ok": True, "reasoning_content": None}, {"ok": False, "reasoning_content": ""}]
    on = [{"ok": True, "reasoning_content": "Hm"}, {"ok": True, "reasoning_content": ""}]
    for thinking, samples in ((False, off), (True, on)):
        readings = what("eval plan", {"thinking": thinking}), what("eval samples", samples)
        assert [f.outcome for f in about("EVL_MODE_CONTRADICTION", *readings)] == ["pass"]
    never = what("eval plan", {"thinking": True}), what("eval samples", off)
    assert [f.verdict for f in failing("EVL_MODE_CONTRADICTION", *never)] == ["INVALID"]


@pytest.mark.parametrize(
    ("record", "missing"),
    [
        ({"prompt_class": "structured", "tok_s": 121.2}, "acceptance and steps_per_s missing"),
        ({"prompt_class": "prose", "decode_tok_s": 49, "accept_length": 2.1},
         "steps_per_s missing"),
        ({"tokens_per_s": 49, "acceptance": 0.6, "steps_per_s": 20}, "prompt_class missing"),
        ({"prompt_class": "code", "metrics": {"tok/s": 49, "acceptance": None, "steps/s": 20}},
         "acceptance missing"),
    ],
)  # fmt: skip
def test_speed_without_its_acceptance_is_incomplete(record: dict[str, Any], missing: str) -> None:
    (finding,) = failing("EVL_SPEC_FRIENDLY", what("bench record", record))
    assert finding.verdict == "INCOMPLETE"
    assert missing in finding.observed


def test_whole_records_and_engines_without_a_draft_pass() -> None:
    whole = {"prompt_class": "prose", "tok_s": 49.0, "acceptance": 2.4, "steps_per_s": 20.4}
    plain = {"prompt_class": "prose", "tok_s": 21.0, "speculative": False}
    assert loud(what("bench record", [whole, plain])) == []


@pytest.mark.parametrize("cached", [59904, 1])
def test_prefill_from_the_cache_is_no_measurement(cached: int) -> None:
    usage = {"prompt_tokens": 60067, "completion_tokens": 1,
             "prompt_tokens_details": {"cached_tokens": cached}}  # fmt: skip
    (finding,) = failing("EVL_CACHED_PREFILL", what("usage", usage))
    assert (finding.verdict, finding.severity) == ("INVALID", "error")
    assert f"{cached:,} of 60,067" in finding.observed


def test_reuse_in_a_long_answer_is_only_noted_and_none_at_all_passes() -> None:
    long = {"prompt_tokens": 9000, "completion_tokens": 800, "cached_tokens": 8000}
    assert loud(what("usage", long)) == []
    fresh = {"prompt_tokens": 9000, "completion_tokens": 1, "cached_tokens": 0}
    assert [f.outcome for f in about("EVL_CACHED_PREFILL", what("usage", fresh))] == ["pass"]
    record = {"prefill_tok_s": 91000, "prompt_tokens": 8000, "cached_tokens": 7936}
    assert len(failing("EVL_CACHED_PREFILL", what("bench record", record))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "110111011101\n110111011001\n",
        "run 1: 1 1 0 1 1 1 0 1 1 1 0 1\nrun 2: 1 1 0 1 1 1 0 1 1 0 0 1\n",
        "PPFPPPFPPPFP\nPPFPPPFPPFFP\n",
        "[[1,1,0,1,1,1,0,1,1,1,0,1],[1,1,0,1,1,1,0,1,1,0,0,1]]",
        '{"a": [true,true,false,true,true,true,false,true,true,true,false,true],'
        ' "b": [true,true,false,true,true,true,false,true,true,false,false,true]}',
        "\n".join(f"q{n} {a} {b}" for n, (a, b) in
                  enumerate(zip("110111011101", "110111011001", strict=True))),
    ],
    ids=["digits", "spaced", "letters", "lists", "table", "columns"],
)  # fmt: skip
def test_floor_of_two_runs_by_hand(text: str) -> None:
    (finding,) = failing("EVL_AGREEMENT_FLOOR", what("two runs of 12 items", text))
    assert "11/12 = 91.7 %" in finding.observed
    assert "a delta of 1 of 12 items is within the floor of 1" in finding.observed
    assert finding.severity == "info"


def test_agreement_by_hand_and_what_is_no_comparison() -> None:
    both = agreement([[True, False, True, True], [False, True, True, True], [True] * 4])
    assert (both.items, both.agreeing, both.scores, both.share) == (4, 2, (3, 3, 4), 0.5)
    assert both.within_floor(2)
    assert not both.within_floor(-2.5)
    for runs in ([[True]], [], [[True], [True, False]], [[], []]):
        with pytest.raises(ValueError, match="two runs"):
            agreement(runs)
    (finding,) = about("EVL_AGREEMENT_FLOOR", what("two runs of 3 items", "101\n101\n"))
    assert finding.outcome == "pass"
