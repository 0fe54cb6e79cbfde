"""Chunks of a stream become the reply that they make."""

from __future__ import annotations

from sparkserve.facts.reply_streams import streamed_text, whole


def chunk(delta: object, index: int = 0, **more: object) -> dict[str, object]:
    return {"id": "a", "choices": [{"index": index, "delta": delta, **more}]}


def test_chunks_of_two_choices_and_of_one_call_are_put_together() -> None:
    values = [
        chunk({"reasoning_content": "Let"}),
        chunk({"reasoning_content": " me", "content": None}),
        chunk({"content": "4"}, index=1),
        chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"a"'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}),
        chunk({}, finish_reason="tool_calls"),
        {"choices": [], "usage": {"completion_tokens": 9}},
    ]
    (reply,) = whole(values)
    first, second = reply["choices"]
    assert first["message"]["reasoning_content"] == "Let me"
    assert first["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert first["finish_reason"] == "tool_calls"
    assert second["message"]["content"] == "4"
    assert reply["usage"] == {"completion_tokens": 9}


def test_two_streams_by_their_ids_and_what_is_no_chunk_stay_apart() -> None:
    other = {"id": "b", "choices": [{"delta": {"content": "y"}}]}
    plain = {"choices": [{"message": {"content": "z"}}]}
    found = whole([chunk({"content": "x"}), plain, other, 7, {"choices": []}])
    assert [one["choices"][0]["message"]["content"] for one in found[:3]] == ["x", "z", "y"]
    assert found[3:] == [7, {"choices": []}]


def test_text_of_a_stream_is_read_reasoning_first_and_is_empty_without_chunks() -> None:
    lines = (
        '{"choices":[{"delta":{"content":"4"}}]}\ndata: {"choices":[{"delta":{"reasoning":"2+2"}}]}'
    )
    assert streamed_text(f"data: {lines}\n\ndata: [DONE]\n") == "2+24"
    assert streamed_text('a "delta" of nothing') == ""
    assert streamed_text('{"choices":[{"delta":3}, 4]}') == ""
