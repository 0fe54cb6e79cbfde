"""Whether an answer can be language at all: what broken kernels and NaN logits produce is not.

Judges form, never truth: a wrong answer in words is plausible.
"""

from __future__ import annotations

import string
from collections import Counter
from itertools import groupby

# Shares and lengths after the published recipes' batch sanity check.
LEAST_ASCII_SHARE = 0.70
_ASCII = frozenset(string.ascii_letters + string.digits + string.punctuation)
_MOST_REPEATED_CHARS = 8
_FEW_WORDS = 6
_MOST_SAME_WORD_SHARE = 0.8
_NOT_A_NUMBER = frozenset({"nan", "inf", "-inf", "null", "none"})
_FOREIGN = (
    (0x1100, 0x11FF, "Hangul"),
    (0x2E80, 0x2FDF, "CJK"),
    (0x3040, 0x30FF, "Japanese"),
    (0x3130, 0x318F, "Hangul"),
    (0x3400, 0x4DBF, "CJK"),
    (0x4E00, 0x9FFF, "CJK"),
    (0xA960, 0xA97F, "Hangul"),
    (0xAC00, 0xD7FF, "Hangul"),
    (0xF900, 0xFAFF, "CJK"),
    (0x20000, 0x3FFFF, "CJK"),
)


def implausible(text: str) -> str | None:
    """Why a text is no plausible answer to an English question; None where it is plausible.

    Notes: short answers such as ``42`` or ``Paris.`` are plausible; so is a short repetition
    (``no no no``), which people write too.
    """
    visible = [char for char in text if not char.isspace()]
    if not visible:
        return "it is empty"
    if not any(char.isalnum() for char in visible):
        return f"it has neither letters nor digits: {text.strip()[:20]!r}"
    for char in visible:
        if char == "\ufffd":
            return "it holds bytes that are no text"
        for first, last, script in _FOREIGN:
            if first <= ord(char) <= last:
                return f"it holds {script} characters ({char!r}) that nobody asked for"
    ascii_share = sum(char in _ASCII for char in visible) / len(visible)
    if ascii_share < LEAST_ASCII_SHARE:
        return (
            f"only {ascii_share:.0%} of its characters are ASCII letters, digits or punctuation, "
            f"expected at least {LEAST_ASCII_SHARE:.0%}"
        )
    return _repetition(text.split())


def _repetition(words: list[str]) -> str | None:
    char, run = max(
        ((char, len(list(same))) for word in words for char, same in groupby(word)),
        key=lambda pair: pair[1],
    )
    length = sum(len(word) for word in words)
    if run >= _MOST_REPEATED_CHARS and run > length / 2:
        return f"it is mostly one character repeated: {char!r} {run} times"
    word, count = Counter(words).most_common(1)[0]
    if len(words) >= _FEW_WORDS and count / len(words) >= _MOST_SAME_WORD_SHARE:
        return f"it is mostly one word repeated: {word!r} {count} times of {len(words)}"
    plain = {word.lower().strip(string.punctuation.replace("-", "")) for word in words}
    if plain <= _NOT_A_NUMBER:
        return f"it is no text but {words[0]!r}"
    return None
