"""Server-sent events, however the bytes are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkserve.transport import sse
from sparkserve.transport.sse import EventTooLarge, SseEvent, SseParser


def parse(pieces):
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("data: a\n\n", [("a", "message")]),
        ("data:a\n\ndata:  b\n\n", [("a", "message"), (" b", "message")]),
        ("data: a\r\ndata: b\r\n\r\n", [("a\nb", "message")]),
        ("data: a\rdata: b\r\r", [("a\nb", "message")]),
        (": ping\n\n: x\ndata: a\n\n", [("a", "message")]),
        ("event: error\ndata: {}\n\ndata: b\n\n", [("{}", "error"), ("b", "message")]),
        ("event: x\n\ndata: b\n\n", [("b", "message")]),
        ("id: 1\nretry: 5\nnonsense\ndata: a\n\n", [("a", "message")]),
        ("data\n\n", [("", "message")]),
        ("data: a: b\n\n", [("a: b", "message")]),
        ("\ufeffdata: a\n\n", [("a", "message")]),
        ("data: \ufeffa\n\n", [("\ufeffa", "message")]),
        ("data: a\u2028b\x0bc\x85d\n\n", [("a\u2028b\x0bc\x85d", "message")]),
        ("data: last", [("last", "message")]),
        ("data: last\n", [("last", "message")]),
        ("", []),
        ("\n\n\r\n", []),
    ],
)
def test_the_standards_rules(body, expected):
    assert parse([body.encode()]) == [SseEvent(data, event) for data, event in expected]


def cut(data, places):
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


lines = st.lists(
    st.one_of(
        st.just(""),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")).map(
            lambda text: f"data: {text}"
        ),
        st.sampled_from([": comment", "event: error", "id: 7", "data", "data:", "x: y", "ü"]),
    ),
    max_size=12,
)


def reference(all_lines):
    """The standard's algorithm on whole lines, written the slow way."""
    events, data, kind = [], [], ""
    for line in [*all_lines, ""]:
        if line == "":
            if data:
                events.append(SseEvent("\n".join(data), kind or "message"))
            data, kind = [], ""
        elif line.startswith("data") and (line == "data" or line[4] == ":"):
            value = line[5:]
            data.append(value[1:] if value.startswith(" ") else value)
        elif line.startswith("event:"):
            kind = line[6:].strip()
    return events


@given(
    lines,
    st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=12, max_size=12),
    st.lists(st.integers(0, 10_000), max_size=30),
)
def test_any_cut_of_any_stream_gives_the_same_events(all_lines, ends, places):
    # A carriage return before an empty line that ends in a line feed would read as one CR LF.
    for index, line in enumerate(all_lines):
        if line == "" and index and ends[index - 1] == "\r" and ends[index] == "\n":
            ends[index] = "\r\n" if ends[index - 1] != "\r" else "\r"
    body = "".join(f"{line}{ends[index]}" for index, line in enumerate(all_lines)).encode()
    expected = reference(all_lines)
    assert parse([body]) == expected
    assert parse(cut(body, places)) == expected
    assert parse([body[i : i + 1] for i in range(len(body))]) == expected


def test_an_event_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(sse, "EVENT_LIMIT_BYTES", 1000)
    with pytest.raises(EventTooLarge):
        parse([b"data: 0123456789\n"] * 200)
    with pytest.raises(EventTooLarge):
        SseParser().feed(b"x" * 2000)


def test_a_long_line_in_small_pieces_does_not_take_forever():
    parser = SseParser()
    for _ in range(20_000):
        assert parser.feed(b"0123456789" * 10) == []
    assert parser.feed(b"\ndata: a\n\n") == [SseEvent("a")]
