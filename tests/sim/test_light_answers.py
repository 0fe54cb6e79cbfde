"""The light engine speaks SGLang's HTTP API: same shapes, same words for the same question."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from sparkserve.sim.light_answers import tokens_of
from tests.sim.light import StartRank


def test_a_chat_answer_has_the_shape_that_clients_read(start: StartRank) -> None:
    rank = start()
    rank.wait_ready()
    answer = rank.chat("What is the capital of France? Answer in one short sentence.")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "light"
    choice = answer["choices"][0]
    assert choice["message"]["content"] == "The capital of France is Paris."
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["completion_tokens"] == 7  # six words and the full stop
    assert usage["total_tokens"] == usage["prompt_tokens"] + 7
    assert rank.chat("What is 19 + 23?")["choices"][0]["message"]["content"] == "42"


def test_the_same_question_gets_the_same_plausible_words(start: StartRank) -> None:
    rank = start()
    rank.wait_ready()
    first, second = (rank.chat("Tell me of rivers")["choices"][0] for _ in range(2))
    assert first == second
    text = first["message"]["content"]
    assert "rivers" in text
    assert (
        sum(c.isascii() and (c.isalnum() or c in ".,'") for c in text if c != " ")
        / len(text.replace(" ", ""))
        > 0.95
    )


def test_max_tokens_cuts_and_says_so_and_stop_texts_end(start: StartRank) -> None:
    rank = start()
    rank.wait_ready()
    cut = rank.chat("capital of France?", max_tokens=3)
    assert cut["choices"][0]["message"]["content"] == "The capital of"
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["usage"]["completion_tokens"] == 3
    stopped = rank.chat("capital of France?", stop=[" is"])
    assert stopped["choices"][0]["message"]["content"] == "The capital of France"
    assert stopped["choices"][0]["finish_reason"] == "stop"
    long = rank.chat("capital of France?", max_tokens=200, ignore_eos=True)
    assert long["usage"]["completion_tokens"] == 200


def test_a_stream_joins_to_the_whole_answer_and_ends_with_usage_and_done(start: StartRank) -> None:
    rank = start()
    rank.wait_ready()
    body = {"messages": [{"role": "user", "content": "capital of Italy"}], "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    _, text = rank.request("POST", "/v1/chat/completions", body)
    events = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    assert events.pop() == "[DONE]"
    parsed = [json.loads(event) for event in events]
    usage = parsed.pop()
    assert usage["choices"] == []
    deltas = [event["choices"][0]["delta"] for event in parsed]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta["content"] or "" for delta in deltas) == "The capital of Italy is Rome."
    assert usage["usage"]["completion_tokens"] == 7
    assert [event["choices"][0]["finish_reason"] for event in parsed][-1] == "stop"
    assert {event["object"] for event in parsed} == {"chat.completion.chunk"}
    assert len({event["id"] for event in parsed}) == 1


def test_text_completions_models_and_server_info(start: StartRank) -> None:
    rank = start("--context-length", "4096", "--max-total-tokens", "8192")
    rank.wait_ready()
    _, text = rank.request("POST", "/v1/completions", {"prompt": "2 plus 3", "max_tokens": 5})
    assert json.loads(text)["choices"][0]["text"] == "5"
    model = json.loads(rank.request("GET", "/v1/models")[1])["data"][0]
    assert (model["id"], model["max_model_len"]) == ("light", 4096)
    for path in ("/server_info", "/get_server_info"):
        info = json.loads(rank.request("GET", path)[1])
        assert (info["version"], info["max_total_num_tokens"]) == ("0.5.23", 8192)


def test_requests_that_cannot_be_served_get_400_with_the_reason(start: StartRank) -> None:
    rank = start("--context-length", "64")
    rank.wait_ready()
    for body, part in [
        ("{", "Invalid JSON"),
        ({"messages": []}, "cannot be empty"),
        ({"messages": [{"role": "user", "content": "word " * 80}]}, "context length of 64 tokens"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 60}, "total of 65 tokens"),
    ]:
        status, text = rank.request("POST", "/v1/chat/completions", body)
        assert status == 400
        assert part in json.loads(text)["message"]
    assert rank.status("/nothing") == 404


def test_scripted_answers_come_from_a_file(start: StartRank, tmp_path: Path) -> None:
    script = tmp_path / "answers.json"
    script.write_text(json.dumps([{"contains": "moon", "answer": "Cheese, surely."}]))
    rank = start("--light-answers", str(script))
    rank.wait_ready()
    assert rank.chat("What is the MOON made of?")["choices"][0]["message"]["content"] == (
        "Cheese, surely."
    )


def test_tokens_join_to_the_text_they_were_cut_from() -> None:
    for text in ("", "The capital.", "  a\n\nb 42, é!", "12+3 = 15\n"):
        assert "".join(tokens_of(text)) == text
    assert tokens_of("It is 42.") == ["It", " is", " 4", "2", "."]


def test_a_key_from_the_config_file_guards_all_but_health_and_metrics(
    start: StartRank, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text('# the key\napi-key: "se\\"cret"\nenable-metrics: true\n')
    rank = start("--config", str(config))
    rank.wait_ready()
    assert rank.status("/v1/models") == 401
    assert rank.request("GET", "/v1/models", key="wrong")[0] == 401
    assert rank.request("GET", "/v1/models", key='se"cret')[0] == 200
    assert rank.status("/metrics") == 200
    assert rank.request("POST", "/v1/chat/completions", {})[0] == 401


def test_metrics_count_tokens_under_sglangs_names(start: StartRank) -> None:
    rank = start("--enable-metrics")
    rank.wait_ready()
    used = rank.chat("capital of Spain")["usage"]
    _, text = rank.request("GET", "/metrics")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    label = '{engine_type="unified",model_name="light",is_streaming="false"}'
    assert float(values[f"sglang:prompt_tokens_total{label}"]) == used["prompt_tokens"]
    assert float(values[f"sglang:generation_tokens_total{label}"]) == used["completion_tokens"]
    assert float(values[f"sglang:num_requests_total{label}"]) == 1
    running = [name for name in values if name.startswith("sglang:num_running_reqs")]
    assert [float(values[name]) for name in running] == [0]
    assert start().process.poll() is None


def test_questions_for_metrics_are_no_lines_of_the_log_where_that_is_wanted(
    start: StartRank,
) -> None:
    rank = start("--enable-metrics", "--uvicorn-access-log-exclude-prefixes", "/metrics")
    rank.wait_ready()
    assert rank.status("/metrics") == 200
    assert rank.status("/v1/models") == 200
    asked = [line for line in rank.log().splitlines() if '"GET /' in line]
    assert any("/v1/models" in line for line in asked)
    assert not any("/metrics" in line for line in asked)


@pytest.mark.contract
def test_the_metric_names_are_in_the_wheel(start: StartRank) -> None:
    package = importlib.util.find_spec("sglang")
    if package is None or not package.submodule_search_locations:
        pytest.skip("sglang is not installed here")
    source = Path(package.submodule_search_locations[0], "srt/observability/metrics_collector.py")
    known = source.read_text()
    rank = start("--enable-metrics")
    rank.wait_ready()
    lines = rank.request("GET", "/metrics")[1].splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) >= 10
    assert [name for name in names if f'"{name}"' not in known] == []
