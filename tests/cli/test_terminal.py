"""What a terminal gets and what a pipe gets, from real processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkserve import clusters
from tests.cli import real

ESCAPE = "\x1b["
COLOR = re.compile(r"\x1b\[[0-9;]*3[0-7]")


@pytest.fixture(autouse=True)
def _saved_cluster() -> None:
    clusters.save(clusters.from_hosts("spark1,spark2", name="lab"))


def printed(*args: str, terminal: bool) -> str:
    with real.running([real.SPARKSERVE, *args], terminal=terminal) as process:
        assert process.end() == 0, process.text
        return process.text


def test_terminal_gets_colour_and_a_pipe_does_not() -> None:
    assert COLOR.search(printed("cluster", "list", terminal=True))
    assert ESCAPE not in printed("cluster", "list", terminal=False)


def test_words_are_the_same_with_and_without_colour() -> None:
    colored = re.sub(r"\x1b\[[0-9;]*m", "", printed("cluster", "show", "lab", terminal=True))
    assert colored.replace("\r", "") == printed("cluster", "show", "lab", terminal=False)


@pytest.mark.parametrize(
    ("variable", "value", "args"),
    [("NO_COLOR", "1", ()), ("TERM", "dumb", ()), ("X", "x", ("--no-color",))],
)
def test_colour_can_be_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, args: tuple[str, ...]
) -> None:
    monkeypatch.setenv(variable, value)
    assert ESCAPE not in printed("cluster", "list", *args, terminal=True)


def test_empty_no_color_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    assert COLOR.search(printed("cluster", "list", terminal=True))


@pytest.mark.parametrize("columns", [80, 160])
def test_launch_on_a_terminal_moves_and_gives_the_cursor_back(tmp_path: Path, columns: int) -> None:
    profile = real.light_profile(tmp_path, "--light-load-seconds", "1")
    argv = [real.SPARKSERVE, "launch", "-p", str(profile)]
    try:
        with real.running(argv, terminal=True, columns=columns) as process:
            assert process.end() == 0, process.text
            text = process.text
    finally:
        with real.running([real.SPARKSERVE, "stop"]) as process:
            process.end()
    words = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "RANK  NODE" in words
    assert "weights" in words
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is shown again"
    assert "serving " in text[text.rindex("\x1b[?25h") :]


def test_launch_on_a_terminal_without_colour_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    profile = real.light_profile(tmp_path, "--light-fault", "crash-at-import")
    argv = [real.SPARKSERVE, "launch", "-p", str(profile)]
    with real.running(argv, terminal=True) as process:
        assert process.end() == 6
        assert not COLOR.search(process.text)
        assert "error: rank 0 on local" in process.text
