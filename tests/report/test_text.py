"""Text from elsewhere cannot take over a terminal, and lines mean the same without colour."""

from __future__ import annotations

import pytest

from sparkserve.report.text import (
    Span,
    cells,
    clean,
    cut,
    cut_line,
    line,
    one_line,
    pasted,
    without_stamp,
    wrap,
)


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[Hcleared", "cleared"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("bell\x07 back\x08space\x7f", "bell backspace"),
        ("10%\r20%\r30%", "30%"),
        ("windows\r\nlines", "windows\nlines"),
        ("last\r", "last"),
        ("a\tb", "a    b"),
        ("two\nlines", "two\nlines"),
        ("héllo ✓ 日本", "héllo ✓ 日本"),
    ],
)
def test_escapes_controls_and_overwritten_text_are_taken_out(raw: str, safe: str) -> None:
    assert clean(raw) == safe


def test_several_lines_become_one() -> None:
    assert one_line("  first\n\n second \x1b[1mline ") == "first  second line"


@pytest.mark.parametrize(
    ("text", "width"), [("", 0), ("abc", 3), ("日本", 4), ("e\u0301", 1), ("✓", 1)]
)
def test_width_is_counted_in_columns(text: str, width: int) -> None:
    assert cells(text) == width


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcd…"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
    ],
)
def test_cut_text_ends_in_an_ellipsis_and_fits(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown
    assert cells(shown) <= width


def test_cut_line_keeps_styles_of_what_is_left() -> None:
    whole = line("abc", Span("def", "bad"), "ghi")
    assert cut_line(whole, 5) == line("abc", Span("d…", "bad"))
    assert cut_line(whole, 9) == whole


def test_styles_add_nothing_but_colour() -> None:
    styled = line("state: ", Span("failed", "bad"))
    assert styled.plain == "state: failed"
    assert styled.ansi == "state: \x1b[31;1mfailed\x1b[0m"


@pytest.mark.parametrize(
    "stamped",
    [
        "[2026-11-30 18:16:05] Load weight begin",
        "[2026-11-30 18:16:05.123] Load weight begin",
        "2026-11-30T18:16:05+00:00 Load weight begin",
    ],
)
def test_time_stamp_of_a_log_line_is_left_out(stamped: str) -> None:
    assert without_stamp(stamped) == "Load weight begin"


LONG = line("error: ", "the node spark2 has an MTU of 1500 and nobody knows why it has")


@pytest.mark.parametrize("width", [20, 33, 40, 61])
def test_wrapped_line_fits_and_loses_nothing(width: int) -> None:
    lines = wrap(LONG, width)
    assert len(lines) > 1
    assert all(cells(one.plain) <= width for one in lines)
    assert " ".join(one.plain.strip() for one in lines) == LONG.plain


def test_rest_of_a_wrapped_line_stands_below_its_text() -> None:
    told = line("      ", Span("why  ", "dim"), "two engines share one pool of memory")
    shown = [one.plain for one in wrap(told, 30)]
    assert shown == ["      why  two engines share", "           one pool of memory"]


def test_styles_survive_wrapping() -> None:
    told = wrap(line(Span("aaa bbb ccc", "bad")), 6)
    first = told[0]
    assert [span for span in first if span.text] == [Span("aaa", "bad")]
    assert all(span.style == "bad" for one in told for span in one if span.text.strip())


def test_word_longer_than_the_screen_stays_whole() -> None:
    assert [one.plain for one in wrap(line("see ", "x" * 30, " now"), 12)] == [
        "see",
        "  " + "x" * 30,
        "  now",
    ]


def test_command_is_never_broken() -> None:
    command = pasted("hint: ", "sparkserve logs spark2 --run 20261130-120000-pair-4f2a")
    assert wrap(command, 20) == [command]


@pytest.mark.parametrize("text", ["", " ", "short"])
def test_short_line_is_left_alone(text: str) -> None:
    assert wrap(line(text), 10) == [line(text)]
