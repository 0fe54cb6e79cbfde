"""Replies of servers, in the shapes that several servers give them."""

from __future__ import annotations

from typing import Any

import pytest

from sparkserve.checks.ladder import state_of
from sparkserve.checks.replies import degenerate
from sparkserve.facts.exchanges import Exchange
from tests.checks.texts import about, command, failing, loud, what

THOUGHT = "First I add the numbers."


def chat(
    finish: str = "stop", usage: dict[str, Any] | None = None, **message: Any
) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"choices": [choice], "usage": usage}


# --- thinking that cannot be switched off


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ('reply to {"enable_thinking": false}', {}),
        ('reply to {"chat_template_kwargs": {"enable_thinking": false}}', {}),
        ("chat reply, enable_thinking=false", {}),
        ("chat reply", {"note": "request had enable_thinking: false"}),
    ],
)
@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_thinking_that_was_switched_off_and_goes_on_is_found(
    words: str, more: dict[str, str], field: str
) -> None:
    reply = what(words, chat(content="42", **{field: THOUGHT}), **more)
    (finding,) = failing("SRV_THINKING_ALIAS", reply)
    assert finding.verdict == "FAIL"
    assert "enable_thinking = false was ignored" in finding.observed


def test_switch_is_read_from_the_curl_command_and_from_a_request_beside_the_reply() -> None:
    text = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
    body = '{"choices":[{"message":{"content":"42","reasoning":"17+25"},"finish_reason":"stop"}]}'
    line = (
        "curl -si http://head:8888/v1/chat/completions -d "
        '\'{"model":"m","messages":[],"chat_template_kwargs":{"thinking":false}}\''
    )
    assert len(failing("SRV_THINKING_ALIAS", command(line, text + body))) == 1
    request = what("request body", {"chat_template_kwargs": {"enable_thinking": False}})
    assert len(failing("SRV_THINKING_ALIAS", request, what("chat reply", body))) == 1


def test_tokens_charged_for_hidden_reasoning_count_as_thinking() -> None:
    usage = {"completion_tokens": 90, "completion_tokens_details": {"reasoning_tokens": 80}}
    reply = what('reply to {"thinking": false}', chat(content="42", usage=usage))
    (finding,) = failing("SRV_THINKING_ALIAS", reply)
    assert "80 tokens" in finding.observed


@pytest.mark.parametrize("reasoning", [None, "", "  \n"])
def test_reply_without_reasoning_passes(reasoning: str | None) -> None:
    reply = what('reply to {"thinking": false}', chat(content="42", reasoning=reasoning))
    assert [f.outcome for f in about("SRV_THINKING_ALIAS", reply)] == ["pass"]
    assert loud(reply) == []


# --- answers cut inside the reasoning


@pytest.mark.parametrize(
    "reply",
    [
        chat("length", content=None, reasoning=THOUGHT),
        chat("length", content="", reasoning_content=THOUGHT),
        chat("length", content=" \n", reasoning_content=THOUGHT),
        chat("length", content=f"<think>{THOUGHT}"),
        {"choices": [chat(content="4")["choices"][0],
                     chat("length", content=None, reasoning=THOUGHT)["choices"][0]]},
        {"message": {"role": "assistant", "content": "", "thinking": THOUGHT},
         "done_reason": "length", "eval_count": 512},
        {"role": "assistant", "type": "message", "stop_reason": "max_tokens",
         "content": [{"type": "thinking", "thinking": THOUGHT}]},
    ],
    ids=["null", "empty", "blank", "tag", "second choice", "ollama", "anthropic"],
)  # fmt: skip
def test_reply_that_is_all_reasoning_is_cut_not_wrong(reply: dict[str, Any]) -> None:
    (finding,) = failing("SRV_CONTENT_NULL", what("chat reply", reply))
    assert finding.verdict == "TRUNCATED_IN_THINKING"
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    "reply",
    [
        chat("stop", content=None, reasoning=THOUGHT),
        chat("length", content="half an answ", reasoning=THOUGHT),
        chat("length", content=None, reasoning=None),
    ],
)
def test_other_ends_are_not_called_cut_in_the_reasoning(reply: dict[str, Any]) -> None:
    assert about("SRV_CONTENT_NULL", what("chat reply", reply)) == []


# --- tool calls


def calling(arguments: Any, finish: str = "tool_calls", spent: int = 300) -> dict[str, Any]:
    call = {"id": "c9", "type": "function", "function": {"name": "ls", "arguments": arguments}}
    return chat(finish, {"completion_tokens": spent}, content=None, tool_calls=[call])


def test_call_that_ends_at_the_cap_is_found_by_number_and_by_its_json() -> None:
    cut = what("chat reply", calling('{"path": "a'))
    (finding,) = failing("SRV_TOOLCALL_TRUNCATED", cut, what("max_tokens of the request", "300"))
    assert "cut at the cap of 300 tokens" in finding.observed
    assert "invalid JSON" in finding.observed
    (alone,) = failing("SRV_TOOLCALL_TRUNCATED", cut)
    assert "cap" not in alone.observed
    whole = what("chat reply", calling('{"path": "a"}'))
    (capped,) = failing("SRV_TOOLCALL_TRUNCATED", whole, what("request body", {"max_tokens": 300}))
    assert "invalid" not in capped.observed


@pytest.mark.parametrize("arguments", ['{"path": "a"}', "", {"path": "a"}, "{}"])
def test_whole_calls_pass(arguments: Any) -> None:
    reply = what("chat reply", calling(arguments, spent=41))
    cap = what("max_tokens of the request", "max_tokens: 300")
    assert [f.outcome for f in about("SRV_TOOLCALL_TRUNCATED", reply, cap)] == ["pass"]


# --- degenerate text


@pytest.mark.parametrize(
    "text",
    [
        " the" * 12,
        "!" * 40,
        "ThThThThThThThThThThThTh",
        "Paris is big. " + "of of of of of of of of of of of of of of of of",
        "的" * 30,
    ],
)
def test_one_token_again_and_again_is_degenerate(text: str) -> None:
    assert degenerate(text)
    reply = {"choices": [{"text": text, "finish_reason": "length"}]}
    (finding,) = failing("ENG_GARBLED_FROM_DRIFT", what("verify reply", reply))
    assert "degenerate output" in finding.observed


@pytest.mark.parametrize(
    "text",
    [
        "no no no",
        "Paris.",
        "| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |",
        "The capital of France is Paris, the city of the arts and of the Seine.",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12",
    ],
)
def test_answers_that_people_would_write_are_not_degenerate(text: str) -> None:
    assert degenerate(text) is None
    assert loud(what("chat reply", chat(content=text))) == []


def test_wrong_capital_is_found_where_it_was_asked_for() -> None:
    reply = chat(content="The capital of France is Berlin, on the Spree.")
    asked = what("verify reply", reply, note="prompt: The capital of France is")
    assert "Berlin" in failing("ENG_GARBLED_FROM_DRIFT", asked)[0].observed
    assert failing("ENG_GARBLED_FROM_DRIFT", what("verify reply", reply)) == []


# --- the reasoning parser


def test_tags_in_the_content_mean_that_nobody_takes_reasoning_out() -> None:
    reply = chat(content="<think>17+25</think>42")
    (finding,) = failing("SRV_REASONING_PARSER_INIT", what("chat reply", reply))
    assert finding.severity == "warning"
    (asked,) = failing("SRV_REASONING_PARSER_INIT", what('reply to {"thinking": true}', reply))
    assert asked.severity == "error"


# --- the prefix cache


def usages(*cached: int | None, prompt: int = 7850) -> list[dict[str, Any]]:
    return [
        {"prompt_tokens": prompt,
         "prompt_tokens_details": None if one is None else {"cached_tokens": one}}
        for one in cached
    ]  # fmt: skip


WORDS = "usage of 4 identical requests"


@pytest.mark.parametrize(
    ("cached", "outcome"),
    [
        ((0, 0, 0, 0), "fail"),
        ((0, 0, 0, None), "fail"),
        ((0, 0, 6656, 6656), "pass"),
        ((0, 0, None, 64), "pass"),
        ((0, 7808, 7808), "pass"),
        ((0, 0, None, None), "unknown"),
        ((0, 0), "unknown"),
    ],
)
def test_reuse_is_judged_from_the_third_request_on(
    cached: tuple[int | None, ...], outcome: str
) -> None:
    (finding,) = about("SRV_PREFIX_CACHE_ZERO", what(WORDS, usages(*cached)))
    assert finding.outcome == outcome


def test_whole_replies_as_lines_and_short_prompts_are_read_too() -> None:
    lines = "\n".join(
        f'{{"id":"r{n}","choices":[],"usage":{{"prompt_tokens":8120,"prompt_tokens_details":'
        '{"cached_tokens":0}}}'
        for n in range(4)
    )
    (finding,) = failing("SRV_PREFIX_CACHE_ZERO", what("replies of 4 repeated requests", lines))
    assert "8,120 tokens: 0, 0, 0, 0" in finding.observed
    short = about("SRV_PREFIX_CACHE_ZERO", what(WORDS, usages(0, 0, 0, prompt=90)))
    assert [f.outcome for f in short] == ["unknown"]


# --- readiness


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ([("/health", 200), ("/v1/models", 401), ("/v1/chat/completions", 500)], "NOT_GENERATING"),
        ([("/v1/models", 401)], "AUTH_REQUIRED"),
        ([("/health", 200)], "UP"),
        ([("/health", 200), ("/v1/models", 200)], "LIST_OK"),
        ([("/health", None)], "NO_RESPONSE"),
        ([("/health", 503)], "NOT_GENERATING"),
        ([("/health", 503), ("/v1/completions", 200)], "GENERATES"),
        ([("/v1/completions", 500), ("/v1/completions", 200)], "GENERATES"),
        ([("/health_generate", 200)], "GENERATES"),
    ],
)
def test_ready_is_an_answer_that_was_generated(
    steps: list[tuple[str, int | None]], state: str
) -> None:
    exchanges = [
        Exchange(method="GET", path=p, status=s, silence="" if s else "refused") for p, s in steps
    ]
    assert state_of(exchanges) == state


@pytest.mark.parametrize(
    "reply",
    [
        "HTTP/1.1 500 Internal Server Error",
        'HTTP/2 503 \r\ncontent-type: application/json\r\n\r\n{"error":{"message":"dead"}}',
        '{"object":"error","message":"EngineCore died","type":"InternalServerError","code":500}',
        "500",
        "curl: (22) The requested URL returned error: 500",
    ],
)
def test_server_whose_engine_is_dead_is_not_ready(reply: str) -> None:
    line = "curl -i http://spark1:8888/v1/chat/completions -H 'Authorization: Bearer x' -d '{}'"
    (finding,) = failing("SRV_READINESS_LADDER", command(line, reply, node="client"))
    assert finding.verdict == "NOT_READY"
    assert finding.node == "client"
    assert "host down" not in str(finding)


def test_a_server_that_wants_a_key_is_neither_down_nor_ready() -> None:
    readings = [
        what("GET /health", "HTTP/1.1 200 OK"),
        what("GET /v1/models", "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer\r\n"),
    ]
    (finding,) = about("SRV_READINESS_LADDER", *readings)
    assert (finding.outcome, finding.severity) == ("unknown", "info")
    assert "list unknown" in finding.observed


def test_an_answer_makes_it_ready_whatever_the_list_says() -> None:
    readings = [
        what("GET /v1/models", "HTTP/1.1 401 Unauthorized"),
        what("POST /v1/chat/completions", chat(content="42")),
    ]
    assert [f.outcome for f in about("SRV_READINESS_LADDER", *readings)] == ["pass"]
    empty = what("POST /v1/chat/completions", chat(content=""))
    assert failing("SRV_READINESS_LADDER", empty)[0].verdict == "NOT_READY"


def test_nothing_that_listens_is_not_ready_and_says_why() -> None:
    line = "curl -sS http://127.0.0.1:8888/health"
    text = "curl: (7) Failed to connect to 127.0.0.1 port 8888 after 0 ms: Couldn't connect"
    (finding,) = failing("SRV_READINESS_LADDER", command(line, text, stream="stderr", rc=7))
    assert finding.observed.startswith("NO_RESPONSE")


def test_a_refused_request_tells_nothing_of_the_engine() -> None:
    answer = what("POST /v1/completions", "HTTP/1.1 422 Unprocessable Entity")
    assert [f.outcome for f in about("SRV_READINESS_LADDER", answer)] == ["unknown"]
    wrong = what(
        "POST /v1/chat/completions",
        'HTTP/1.1 404 Not Found\n\n{"error":{"message":"The model `x` does not exist"}}',
    )
    assert "WRONG_MODEL" in failing("SRV_READINESS_LADDER", wrong)[0].observed
