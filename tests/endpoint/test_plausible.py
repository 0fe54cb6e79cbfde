"""What can be language and what only broken numerics write."""

import pytest

from sparkserve.endpoint import implausible


@pytest.mark.parametrize(
    "text",
    [
        "Paris.",
        "42",
        " The capital of France is Paris.\n",
        "OK",
        "no no no",
        "Yes!!!",
        "def f(x):\n    return x ** 2\n",
        '{"answer": 42}',
        "====== Title ======\nSome text that follows a rule of signs.",
        "Café crème, naïve façade, Zürich",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
        "The value is NaN because 0/0 is undefined.",
        "It was a very, very, very, very good day for the whole team.",
        "x" * 7,
    ],
)
def test_language_is_plausible(text):
    assert implausible(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("!!!!!!!!!!!!!!!!!!", "neither letters nor digits"),
        ("...", "neither letters nor digits"),
        ("0000000000000000", "one character repeated: '0' 16 times"),
        ("aaaaaaaaaaaa", "one character repeated"),
        ("the the the the the the the", "one word repeated: 'the' 7 times of 7"),
        ("a " + "und " * 20, "one word repeated"),
        ("Paris 巴黎", "CJK"),
        ("안녕하세요 Paris is the capital", "Hangul"),
        ("カタカナ", "Japanese"),
        ("\U00020000", "CJK"),
        ("Paris \ufffd\ufffd", "bytes that are no text"),
        ("Пари́ж — столи́ца", "ASCII"),
        ("ééééé aé", "ASCII"),
        ("nan nan nan", "no text but 'nan'"),
        ("NaN", "no text but 'NaN'"),
        ("nan, inf, -inf", "no text but"),
    ],
)
def test_what_broken_numerics_write_is_not(text, reason):
    assert reason in implausible(text)


def test_the_share_of_ascii_is_exact_at_its_limit():
    assert implausible("abcdefg" + "é" * 3) is None
    assert "only 69% of its characters" in implausible("abcdefghi" + "é" * 4)
