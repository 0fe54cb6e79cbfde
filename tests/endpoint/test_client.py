"""The OpenAI-compatible client: whole answers or errors, never a part taken for the whole."""

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkserve.endpoint import ChatDelta, Endpoint, Usage
from sparkserve.errors import EndpointError
from tests.transport.raw_http import chunked, raw_server, response

ASK = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def _server():
    with raw_server() as running:
        yield running


@pytest.fixture
def server(_server):
    _server.requests.clear()
    return _server


@pytest.fixture
def endpoint(server):
    return Endpoint(f"{server.url}/v1", "key", model="m")


def completion(**changes):
    message = {"role": "assistant", "content": "Paris.", **changes.pop("message", {})}
    choice = {"index": 0, "message": message, "finish_reason": "stop", **changes.pop("choice", {})}
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    return json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage, **changes})


def chunk(text=None, *, reason=None, **changes):
    delta = {"role": "assistant", "content": text, **changes.pop("delta", {})}
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"object": "chat.completion.chunk", "choices": [choice], "usage": None, **changes}


USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 1},
    },
}


def stream(*data, done=True):
    lines = [f"data: {json.dumps(item)}\n\n" for item in data]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


WHOLE = stream(
    chunk(delta={"reasoning_content": "hm"}),
    chunk("Pa"),
    chunk("ris ü"),
    chunk(reason="stop"),
    USAGE,
)


def ask(endpoint, **kwargs):
    return endpoint.chat(ASK, max_tokens=8, timeout_s=20, **kwargs)


def ask_stream(endpoint, **kwargs):
    return list(endpoint.chat_stream(ASK, max_tokens=8, timeout_s=20, **kwargs))


def test_a_request_holds_what_was_asked_and_nothing_else(server, endpoint):
    server.say(response(completion()))
    ask(endpoint, temperature=0.0, extra={"seed": 3})
    ask(endpoint)
    assert server.requests[0].line == "POST /v1/chat/completions"
    assert server.requests[0].json == {
        "model": "m", "messages": ASK, "max_tokens": 8, "temperature": 0.0, "seed": 3,
    }  # fmt: skip
    assert server.requests[1].json == {"model": "m", "messages": ASK, "max_tokens": 8}
    assert "authorization: bearer key" in server.requests[0].head.lower()


def test_a_whole_answer_is_read(server, endpoint):
    server.say(response(completion(message={"reasoning_content": "hm"})))
    reply = ask(endpoint)
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("Paris.", "hm", "stop")
    assert reply.usage == Usage(prompt_tokens=7, completion_tokens=2)


def test_content_may_be_missing_and_usage_too(server, endpoint):
    server.say(response(completion(message={"content": None, "reasoning": "all"}, usage=None)))
    reply = ask(endpoint)
    assert (reply.text, reply.reasoning, reply.usage) == ("", "all", None)


def test_tool_calls_are_kept(server, endpoint):
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    server.say(response(completion(message={"content": None, "tool_calls": [call]})))
    assert ask(endpoint).tool_calls == (call,)


@pytest.mark.parametrize(
    "body",
    [
        "[]", "{}", "null", "3", '{"choices": []}', '{"choices": [1]}', '{"choices": [{}]}',
        '{"choices": [{"message": {"content": 3}, "finish_reason": "stop"}]}',
        completion(choice={"finish_reason": None}),
        completion(choice={"finish_reason": "abort"}),
    ],
)  # fmt: skip
def test_what_is_no_whole_answer_is_an_error(server, endpoint, body):
    server.say(response(body))
    with pytest.raises(EndpointError) as caught:
        ask(endpoint)
    assert caught.value.status == 200


def test_the_served_model_is_asked_for_once(server):
    models = response(json.dumps({"object": "list", "data": [{"id": "first"}, {"id": "second"}]}))
    server.say(models, response(completion()))
    endpoint = Endpoint(f"{server.url}/v1/")
    ask(endpoint)
    ask(endpoint)
    assert [request.line for request in server.requests] == [
        "GET /v1/models", "POST /v1/chat/completions", "POST /v1/chat/completions",
    ]  # fmt: skip
    assert server.requests[1].json["model"] == "first"
    server.say(models)
    assert endpoint.models() == ("first", "second")


def test_a_server_without_models_is_an_error(server):
    for body in ('{"data": []}', '{"data": 3}', "[]"):
        server.say(response(body))
        with pytest.raises(EndpointError):
            ask(Endpoint(f"{server.url}/v1"))


def test_health_is_asked_beside_v1(server, endpoint):
    server.say(response(""), response("", status="503 Busy"))
    assert endpoint.health() is True
    assert endpoint.health() is False
    assert {request.line for request in server.requests} == {"GET /health"}


def test_no_server_is_no_health():
    from tests.ports import free_port

    with pytest.raises(EndpointError) as caught:
        Endpoint(f"http://127.0.0.1:{free_port()}/v1").health()
    assert caught.value.status is None


def test_a_streamed_answer_comes_in_pieces_with_usage_last(server, endpoint):
    server.say(chunked(WHOLE))
    assert ask_stream(endpoint) == [
        ChatDelta(reasoning="hm"),
        ChatDelta(text="Pa"),
        ChatDelta(text="ris ü"),
        ChatDelta(finish_reason="stop", usage=Usage(7, 3, cached_tokens=5, reasoning_tokens=1)),
    ]
    body = server.requests[0].json
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


@given(st.lists(st.integers(0, len(WHOLE)), max_size=20), st.sampled_from([b"\n", b"\r\n"]))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_cut_into_network_pieces_gives_the_same_answer(server, places, end):
    body = b": ping\n\n" + WHOLE
    body = body.replace(b"\n", end)
    edges = [0, *sorted(places), len(body)]
    pieces = [body[a:b] for a, b in itertools.pairwise(edges)]
    server.say(chunked(*pieces))
    deltas = ask_stream(Endpoint(f"{server.url}/v1", model="m"))
    assert "".join(delta.text for delta in deltas) == "Paris ü"
    assert deltas[-1].usage.completion_tokens == 3


@pytest.mark.parametrize("length", range(0, WHOLE.index(b'"stop"'), 23))
@pytest.mark.parametrize("end", [True, False])
def test_a_stream_cut_before_its_end_is_never_a_whole_answer(server, endpoint, length, end):
    server.say(chunked(WHOLE[:length], end=end))
    with pytest.raises(EndpointError):
        ask_stream(endpoint)


def test_done_without_a_finish_reason_is_not_whole(server, endpoint):
    server.say(chunked(stream(chunk("Pa"))))
    with pytest.raises(EndpointError, match="without finish_reason"):
        ask_stream(endpoint)


def test_a_finish_reason_without_done_is_whole(server, endpoint):
    server.say(chunked(stream(chunk("Paris"), chunk(reason="length"), done=False)))
    assert ask_stream(endpoint)[-1] == ChatDelta(finish_reason="length")


def test_what_follows_done_is_left_out(server, endpoint):
    server.say(chunked(WHOLE + stream(chunk("more"))))
    assert len(ask_stream(endpoint)) == 4


@pytest.mark.parametrize(
    ("event", "message", "status"),
    [
        (b'data: {"error": {"message": "out of memory", "code": 500}}\n\n', "out of memory", 500),
        (b'event: error\ndata: {"message": "boom"}\n\n', "boom", 200),
        (b'data: {"error": "text"}\n\n', "text", 200),
        (b"data: {broken\n\n", "no JSON", None),
        (b'data: {"choices": [{"index": 0}]}\n\n', "no delta", 200),
        (b"data: [1]\n\n", "no chat completion", 200),
    ],
)
def test_an_error_in_the_middle_comes_after_the_pieces_before_it(
    server, endpoint, event, message, status
):
    server.say(chunked(stream(chunk("Pa"), done=False) + event + stream(chunk("ris"))))
    pieces = endpoint.chat_stream(ASK, max_tokens=8, timeout_s=20)
    assert next(pieces).text == "Pa"
    with pytest.raises(EndpointError, match=message) as caught:
        next(pieces)
    assert caught.value.status == status


def test_an_aborted_stream_is_an_error(server, endpoint):
    server.say(chunked(stream(chunk("Pa"), chunk(reason="abort"))))
    with pytest.raises(EndpointError, match="gave the answer up"):
        ask_stream(endpoint)


def test_a_refused_stream_says_why(server, endpoint):
    server.say(response('{"error": {"message": "too long"}}', status="400 Bad Request"))
    with pytest.raises(EndpointError, match="answered 400: too long"):
        ask_stream(endpoint)


def test_metrics_are_read_from_beside_v1(server, endpoint):
    server.say(response("# HELP x y\nsglang:gen_throughput 12.5\n", kind="text/plain"))
    assert [(s.name, s.value) for s in endpoint.metrics()] == [("sglang:gen_throughput", 12.5)]
    assert server.requests[0].line == "GET /metrics"
