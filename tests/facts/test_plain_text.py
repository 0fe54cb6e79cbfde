"""Texts as parsers get them: as people paste them, yet never endless."""

from __future__ import annotations

import json

import pytest

from sparkserve.facts.reader import plain_text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a\r\nb\r\n", "a\nb\n"),
        ("\ufeffa=1\n", "a=1\n"),
        ("50%\r60%\n", "50%\r60%\n"),
        ("", ""),
        ("x" * 8000, "x" * 8000),
    ],
)
def test_forms_of_files_do_not_matter(text: str, plain: str) -> None:
    assert plain_text(text) == plain


def test_middle_of_an_endless_line_is_left_out_and_its_ends_stay() -> None:
    text = f"short\nBEGIN{'x' * 90_000}END\nlast\n"
    lines = plain_text(text).split("\n")
    assert (lines[0], lines[2]) == ("short", "last")
    assert lines[1].startswith("BEGIN")
    assert lines[1].endswith("END")
    assert len(lines[1]) < 8001


def test_json_and_variables_between_nuls_stay_whole() -> None:
    data = json.dumps({"weight_map": {f"layer{n}": "model.safetensors" for n in range(2000)}})
    assert plain_text(data) == data
    environ = "\0".join(f"NAME{n}={n}" for n in range(2000))
    assert plain_text(environ) == environ
    assert len(plain_text("[" * 100_000)) < 8001


def test_many_empty_lines_are_few() -> None:
    assert plain_text("a" + "\n" * 100_000 + "b") == "a" + "\n" * 50 + "b"
