"""The HTTP door: every failure is one clear EndpointError, nothing is tried twice."""

import threading

import pytest

from sparkserve.errors import EndpointError
from sparkserve.transport import http
from sparkserve.transport.http import HttpClient
from tests.ports import free_port
from tests.transport.raw_http import chunked, raw_server, response


@pytest.fixture
def server():
    with raw_server() as running:
        yield running


def failure(call, *args, **kwargs):
    kwargs.setdefault("timeout_s", 20)

    def through():
        result = call(*args, **kwargs)
        return result if isinstance(result, int | str | dict) else list(result)

    with pytest.raises(EndpointError) as caught:
        through()
    return caught.value


def test_json_and_text_and_status_come_back(server):
    client = HttpClient(f"{server.url}/base/")
    server.say(response('{"a": [1, "ü"]}'))
    assert client.get_json("/x", timeout_s=20) == {"a": [1, "ü"]}
    assert client.post_json("y", {"q": "ü"}, timeout_s=20) == {"a": [1, "ü"]}
    server.say(response("plain ü", kind="text/plain"))
    assert client.get_text("/z", timeout_s=20) == "plain ü"
    server.say(response("", status="503 Service Unavailable"))
    assert client.status("/health", timeout_s=20) == 503
    assert [request.line for request in server.requests] == [
        "GET /base/x", "POST /base/y", "GET /base/z", "GET /base/health",
    ]  # fmt: skip
    assert server.requests[1].json == {"q": "ü"}


def test_the_key_travels_as_a_header_and_nowhere_else(server):
    client = HttpClient(server.url, "s3cret-key")
    server.say(response('{"error": {"message": "wrong key s3cret-key given"}}', status="401 No"))
    error = failure(client.get_json, "/x")
    assert "authorization: bearer s3cret-key" in server.requests[0].head.lower()
    assert error.status == 401
    assert "s3cret-key" not in error.message + repr(client) + str(error.hint)
    assert "wrong key *** given" in error.message
    server.say(response("not json s3cret-key"))
    assert "s3cret-key" not in failure(client.get_json, "/x").message


def test_proxies_and_netrc_of_the_environment_are_left_alone(server, monkeypatch, tmp_path):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    server.say(response("{}"))
    assert HttpClient(server.url).get_json("/", timeout_s=20) == {}
    assert "authorization" not in server.requests[0].head.lower()


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ('{"error": {"message": "too long", "code": 1}}', "too long"),
        ('{"error": "plain"}', "plain"),
        ('{"object": "error", "message": "sglang says"}', "sglang says"),
        ('{"detail": "Not Found"}', "Not Found"),
        ('{"detail": [{"loc": ["x"]}]}', '[{"loc": ["x"]}]'),
        ("<html>\n oops </html>", "<html> oops </html>"),
        ("", "Bad Request"),
        ("[1]", "[1]"),
        ("x" * 10_000, "x" * 500 + "…"),
    ],
)
def test_an_error_answer_says_what_the_server_said(server, body, detail):
    server.say(response(body, status="400 Bad Request"))
    for call in (HttpClient(server.url).get_json, HttpClient(server.url).get_text):
        error = failure(call, "/x")
        assert error.status == 400
        assert error.message == f"{server.url}/x answered 400: {detail}"
    assert failure(HttpClient(server.url).post_events, "/x", {}).status == 400


def test_a_redirect_is_not_followed(server):
    server.say(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n")
    error = failure(HttpClient(server.url, "key").get_json, "/x")
    assert error.status == 302
    assert len(server.requests) == 1


def test_nothing_there_is_no_answer():
    error = failure(HttpClient(f"http://127.0.0.1:{free_port()}").get_json, "/x")
    assert error.status is None
    assert "nothing answers at http://127.0.0.1:" in error.message


def test_silence_is_no_answer_in_time(server):
    done = threading.Event()
    server.say(lambda client: done.wait(30))
    error = failure(HttpClient(server.url).get_json, "/x", timeout_s=0.3)
    done.set()
    assert error.status is None
    assert "gave no answer within 0.3 s" in error.message


def test_a_trickle_is_given_up_as_a_whole(server):
    done = threading.Event()

    def trickle(client):
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not done.wait(0.02):
            client.sendall(b" ")

    server.say(trickle)
    error = failure(HttpClient(server.url).get_json, "/x", timeout_s=0.5)
    done.set()
    assert error.status is None
    assert "no whole answer within 0.5 s" in error.message


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        chunked(b'{"a"', end=False, kind="application/json"),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    ],
)
def test_a_broken_answer_is_a_transport_failure(server, answer):
    server.say(answer)
    assert failure(HttpClient(server.url).get_json, "/x").status is None
    assert len(server.requests) == 1


def test_something_that_is_no_json_is_shown(server):
    server.say(response("hello\n there"))
    error = failure(HttpClient(server.url).get_json, "/x")
    assert error.status == 200
    assert error.message.endswith("answered with something that is no JSON: hello there")


def test_an_endless_answer_is_refused(server, monkeypatch):
    monkeypatch.setattr(http, "BODY_LIMIT_BYTES", 1000)
    server.say(response("x" * 5000))
    assert "more than 1000 bytes" in failure(HttpClient(server.url).get_text, "/x").message


def test_a_wrong_url_is_an_endpoint_error_too():
    for url in ("ftp://127.0.0.1", "http://[::1", "nonsense", "http://127.0.0.1:99999"):
        assert failure(HttpClient(url).get_json, "/x").status is None


def test_events_stream_while_the_answer_goes_on(server):
    gate = threading.Event()

    def answer(client):
        client.sendall(chunked(b"data: one\n\n", end=False))
        gate.wait(30)
        client.sendall(b"b\r\ndata: two\n\n\r\n0\r\n\r\n")

    server.say(answer)
    events = HttpClient(server.url).post_events("/x", {"a": 1}, timeout_s=20)
    assert next(events).data == "one"
    gate.set()
    assert [event.data for event in events] == ["two"]


def test_a_stream_that_breaks_off_is_an_error_after_its_events(server):
    server.say(chunked(b"data: one\n\n", end=False))
    events = HttpClient(server.url).post_events("/x", {}, timeout_s=20)
    assert next(events).data == "one"
    with pytest.raises(EndpointError, match="broke"):
        next(events)


def test_silence_in_a_stream_is_an_error(server):
    done = threading.Event()

    def answer(client):
        client.sendall(chunked(b"data: one\n\n", end=False))
        done.wait(30)

    server.say(answer)
    events = HttpClient(server.url).post_events("/x", {}, timeout_s=0.3)
    assert next(events).data == "one"
    with pytest.raises(EndpointError, match="no answer within"):
        next(events)
    done.set()


def test_an_answer_that_is_no_stream_is_shown(server):
    server.say(response('{"text": "hi"}'))
    error = failure(HttpClient(server.url).post_events, "/x", {})
    assert 'application/json, expected text/event-stream: {"text": "hi"}' in error.message


def test_leaving_a_stream_closes_its_connection(server):
    closed = threading.Event()

    def answer(client):
        client.sendall(chunked(b"data: one\n\n", end=False))
        client.settimeout(30)
        if client.recv(10) == b"":
            closed.set()

    server.say(answer)
    events = HttpClient(server.url).post_events("/x", {}, timeout_s=20)
    next(events)
    events.close()
    assert closed.wait(30)


def test_threads_share_a_client(server):
    server.say(response('{"a": 1}'))
    client, got = HttpClient(server.url), []
    threads = [
        threading.Thread(target=lambda: got.append(client.get_json("/x", timeout_s=60)))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [{"a": 1}] * 12


def test_no_connection_is_kept_between_requests(server):
    server.say(response("{}"))
    client = HttpClient(server.url)
    client.get_json("/x", timeout_s=20)
    client.get_json("/x", timeout_s=20)
    assert len(server.requests) == 2
