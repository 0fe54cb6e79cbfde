"""Texts without passwords, tokens and keys: by what a value is called, and by what it looks like.

Rather one word too many goes than one too few; what a judge reads (counts of tokens, paths,
options after a variable) stays. Everything here takes time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

HIDDEN = "***"

_BLOCKS = (
    re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----)[\s\S]*?(?=-----END|\Z)"),
    re.compile(r"(?m)(^Private-Lines: \d+\n)(?:[\w+/=]+(?:\n|\Z))+"),
)
_SHAPES = (
    re.compile(r"\b(?:hf|gh[opsur]|glpat|nvapi|xox[abeprs]|sk(?!-ecdsa-))[_-][A-Za-z0-9_-]{16,}"),
    re.compile(r"\b(?:[pr]k_(?:live|test)|npm)_[A-Za-z0-9]{20,}"),
    re.compile(r"\b(?:github_pat|dckr_pat)_[\w-]{16,}"),
    re.compile(r"\bpypi-[\w-]{16,}"),
    re.compile(r"\bAIza[\w-]{30,}"),
    re.compile(r"\bA(?:KIA|SIA)[0-9A-Z]{16}\b"),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,}"),
    re.compile(r"(?i)(?<=\bbearer )[^\s\"',;]+"),
    re.compile(r"(?i)(?<=\bbasic )[A-Za-z0-9+/]{12,}={0,2}"),
    re.compile(r"(?<=://)[^\s/:@\"']{0,200}:[^\s/\"']{0,200}(?=@)"),
    re.compile(r"(?i)(?<=https://)[^\s/:@\"']{1,200}(?=@)|(?<=http://)[^\s/:@\"']{1,200}(?=@)"),
    re.compile(r"(?i)(?<=[?&])(?:sig|x-amz-(?:signature|credential|security-token))=[^&\s\"']+"),
    re.compile(r"(?<=hooks\.slack\.com/services/)[\w/]+"),
    re.compile(r"(?<=/api/webhooks/)[\w/-]+"),
    re.compile(r"(?<=\bsshpass -p)\s?\S+"),
)
_AFTER = (
    re.compile(
        r"(\bcurl\b[^\n]{0,300}? (?:-u|--user|--proxy-user)[ =]?[\"']?[^\s:\"']+:)[^\s\"']+"
    ),
    re.compile(r"(\blogin \S+ password )\S+"),
    re.compile(r"(\"auth\"\s*:\s*\")[^\"]{8,}"),
)
_HEAD = re.compile(
    r"""(?ix)
    (?P<word>
        (?:api|access|secret|auth|private|signing|encrypt(?:ion)?|master|session|license)[_-]?keys?
        | secrets? | token | passwords? | passwd | passphrase | psk | cookie | credentials?
        | authorization | (?-i:(?<=[A-Z0-9]_)(?:KEY|PASS|PWD)) | (?<=_)pass
    )
    (?P<close>\\*["'])?
    (?P<gap>
        [ \t]*(?:=>|[:=])[ \t]*
        | \s*,\s*(?:\\*["']value\\*["']\s*:\s*)?(?=\\*["'])
        | [ \t]*\n[ \t]*value:[ \t]*
        | [ \t]+
    )
    """
)
_NAME = re.compile(r"(?P<quote>\\*[\"'])?(?P<name>[\w.-]{0,64})\Z")
_LINE_START = re.compile(r"[ \t]*(?:- |export |declare -x |set |env |Environment=)?[ \t]*\Z")
_ENDS = re.compile(r"[\n\0]")
_QUOTE = re.compile(r"(\\*)(\"\"\"|'''|\"|')")
_WORD = re.compile(r"[^\s\"',;&}\])]+")
_BLOCK = re.compile(r"[|>][+-]?\d?[ \t]*\n(?P<indent>[ \t]+)[^\n]*(?:\n(?P=indent)[^\n]*)*")
_GOES_ON = re.compile(
    r",?\s(?:-{1,2}[a-zA-Z]|[A-Za-z_]\w*=|(?:python3?|docker|exec|bash|sh|env|sudo|nohup)\b|[#&|;<>])"
)
"""After a variable: the command that gets it, or the next variable."""
_NOTHING = re.compile(r"(?i)(?:none|null|nil|true|false|yes|no|on|off|\*+|<[^\s<>]*>|"
                      r"\$(?-i:[A-Z_][A-Z0-9_]*)|\$\{.*|\$\(.*|\{.*)")  # fmt: skip
"""Values that say nothing: words of a switch, place holders, references to a variable."""
_NUMBER = re.compile(r"[\d.,]+")
_PATH = re.compile(r"~?/\S*")
_MAY_BE_PATH = re.compile(r"(?:private|secret|auth)[_-]?keys?|credentials?|cookie|key|pwd")
_HEADER = re.compile(r"[^,;\"'\n\0]+")
_LOGPROB = re.compile(r"[\"']\s*,\s*[\"'](?:logprob|bytes|id|special)\b")
"""What follows a token of a model's vocabulary."""
_LONGEST = 1 << 13
"""Characters of one value, so that a text without line ends takes no hours."""
_RANDOM = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])\S{8,}")


class _Span(NamedTuple):
    begin: int
    end: int


def without_secrets(text: str) -> str:
    """The text with every value that is a secret by name or shape replaced by ``***``."""
    for block in _BLOCKS:
        text = block.sub(rf"\1{HIDDEN}", text)
    for shape in _SHAPES:
        text = shape.sub(HIDDEN, text)
    for after in _AFTER:
        text = after.sub(rf"\1{HIDDEN}", text)
    parts, done = [], 0
    for span in _named(text):
        parts += [text[done : span.begin], HIDDEN]
        done = span.end
    return "".join([*parts, text[done:]])


def _named(text: str) -> Iterator[_Span]:
    """Where the values stand whose names say that they are secret."""
    at = 0
    while (head := _HEAD.search(text, at)) is not None:
        found = _secret_of(text, head)
        at = head.end() if found is None else max(found.end, head.end())
        if found is not None:
            yield found


def _secret_of(text: str, head: re.Match[str]) -> _Span | None:
    before = text[max(0, head.start() - 80) : head.start()]
    name = _NAME.search(before)
    if name is None:
        return None
    line_start = before[: name.start()].rpartition("\n")[2].rpartition("\0")[2]
    at_start = len(before) < 80 or "\n" in before or "\0" in before
    begins_line = at_start and _LINE_START.match(line_start) is not None
    found = _value(text, head, name, begins_line=begins_line)
    if found is None or _says_nothing(text[found.begin : found.end], head["word"]):
        return None
    if head["word"] == "token" and not name["name"] and _LOGPROB.match(text, found.end):
        return None
    return found


def _value(
    text: str, head: re.Match[str], name: re.Match[str], *, begins_line: bool
) -> _Span | None:
    begin, gap = head.end(), head["gap"]
    line_end = _line_end(text, begin)
    is_option = name["name"].startswith("-")
    if "," in gap and not (is_option or "value" in gap):
        return None
    if gap.isspace() and "value" not in gap:
        return _after_blank(text, head, name, begins_line=begins_line)
    if (quote := _QUOTE.match(text, begin)) is not None:
        return _quoted(text, quote)
    if text.startswith("[", begin):
        end = text.find("]", begin, begin + _LONGEST)
        return _Span(begin + 1, end if end >= 0 else _line_end(text, begin))
    if ":" in gap and (block := _BLOCK.match(text, begin)) is not None:
        return _Span(begin, block.end())
    if name["quote"] and not head["close"]:
        end = text.find(name["quote"], begin, line_end)
        return _cut(text, _Span(begin, end if end >= 0 else line_end), gap)
    if begins_line:
        return _cut(text, _Span(begin, line_end), gap)
    kind = _HEADER if head["word"].lower() == "authorization" else _WORD
    word = kind.match(text, begin)
    return _Span(begin, word.end()) if word else None


def _after_blank(
    text: str, head: re.Match[str], name: re.Match[str], *, begins_line: bool
) -> _Span | None:
    """The value behind a blank: of an option, of a table of variables; else it is prose."""
    begin = head.end()
    quote = _QUOTE.match(text, begin)
    is_option = name["name"].startswith("-")
    if quote is not None:
        is_wifi = begins_line and head["word"].lower() == "psk"
        return _quoted(text, quote) if is_option or is_wifi else None
    word = _WORD.match(text, begin)
    if word is None or word[0].startswith("-"):
        return None
    in_table = head["word"].isupper() and _RANDOM.fullmatch(word[0]) is not None
    return _Span(begin, word.end()) if is_option or in_table else None


def _quoted(text: str, quote: re.Match[str]) -> _Span:
    """What stands between two equal quotes; up to the line's end where the second is missing."""
    begin = end = quote.end()
    limit = begin + _LONGEST if len(quote[2]) == 3 else _line_end(text, begin)
    while (end := text.find(quote[0], end, limit)) >= 0:
        before = text[max(begin, end - 64) : end]
        if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
            return _Span(begin, end)
        end += 1
    return _Span(begin, _line_end(text, begin))


def _cut(text: str, span: _Span, gap: str) -> _Span:
    """A value that may hold blanks, without the command or the comment behind it."""
    more = _GOES_ON.search(text, *span) if "=" in gap else None
    return _Span(span.begin, more.start() if more else span.end)


def _says_nothing(value: str, word: str) -> bool:
    value, word = value.strip(), word.lower()
    if not value or _NOTHING.fullmatch(value):
        return True
    if _MAY_BE_PATH.fullmatch(word) and _PATH.fullmatch(value):
        return True
    # A count of tokens, a pass of a test.
    return word in ("token", "pass", "cookie") and _NUMBER.fullmatch(value) is not None


def _line_end(text: str, begin: int) -> int:
    found = _ENDS.search(text, begin, begin + _LONGEST)
    return found.start() if found else min(len(text), begin + _LONGEST)
