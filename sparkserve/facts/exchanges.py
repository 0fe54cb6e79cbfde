"""Requests to an endpoint and the status of each answer, as curl and status lines show them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from sparkserve.facts.jsontext import count, mapping, words
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading

Rung = Literal["health", "list", "generate", "other"]
_RUNGS: tuple[tuple[str, Rung], ...] = (
    (r"/health_generate\b", "generate"),
    (r"/(?:health|healthz|ping|ready|readyz|livez)/?(?:\?.*)?$", "health"),
    (r"/v1/models\b", "list"),
    (r"/(?:chat/completions|completions|responses|messages|generate|api/chat|api/generate)\b",
     "generate"),
)  # fmt: skip
_PATH = re.compile(r"(?:https?://[^/\s'\"]{1,200})?(/[\w./-]{1,200})")
_STATUS = re.compile(r"(?m)^[<\s]*HTTP/[0-9.]{1,4}\s+([1-5][0-9][0-9])\b")
_BARE = re.compile(
    r"(?i)\s*(?:HTTP(?:/[0-9.]+)?\s+|status(?: code)?\s*[:=]?\s*)?([1-5][0-9]{2}|000)"
    r"(?:\s+[A-Za-z][A-Za-z -]{0,40})?\s*"
)
_KEY = re.compile(r"(?i)authorization|x-api-key|--oauth2-bearer")
_FAILED = re.compile(r"returned error:\s*([1-5][0-9]{2})\b")
_SILENT = re.compile(
    r"(?i)connection (?:refused|reset|timed out)|failed to connect|couldn'?t connect|timed out|"
    r"timeout|no route to host|empty reply from server|could not resolve|connecterror|"
    r"\bconnectionerror\b|network is unreachable|\b(?:refused|unreachable)\b"
)
_LINE = re.compile(
    r"(?i)\b(GET|POST|HEAD)\s+(\S{1,300})(?:\s+HTTP/[0-9.]{1,4}\"?)?[\s:=>→-]{1,12}"
    r"(?:status[ :=]{0,3})?([1-5][0-9]{2}\b|000\b|[a-z][a-z ]{2,60})"
)
_SILENT_RC = (6, 7, 28, 35, 52, 56)
"""Exit codes of curl: no such host, refused, timed out, TLS, nothing received."""


class Exchange(Model):
    """One request and how it was answered."""

    method: str
    path: str
    status: int | None = None
    """HTTP status; None = not told, or no answer."""
    silence: str = ""
    """Why there was no answer at all; empty = there was one."""
    keyed: bool | None = None
    """Whether the request carried a key; None = not said."""
    models: tuple[str, ...] | None = None
    """Names that a list of models holds."""
    generated: bool | None = None
    """Whether the answer holds anything that was generated; None = not shown."""
    message: str = ""
    """The server's own words about an error."""

    @property
    def rung(self) -> Rung:
        """What the request proves where it succeeds."""
        return next((rung for regex, rung in _RUNGS if re.search(regex, self.path)), "other")


def exchanges_of(
    reading: Reading, values: Sequence[Any], *, shown: bool | None
) -> tuple[Exchange, ...]:
    """Every request of a reading with its answer; none where the text tells of none.

    values: the JSON of the text.
    shown: whether a reply of the text holds something that was generated.
    """
    method, path = _request(reading)
    if path is None:
        return tuple(_lines(reading.text)) or _refused(reading, values)
    keyed = _keyed(reading)
    body = next((mapping(value) for value in values if isinstance(value, Mapping)), {})
    message = _message(body)
    status = _status(reading.text, body)
    models = _models(body)
    silence = _silence(reading) if status is None else ""
    answered = status is not None or models is not None or shown is not None
    if not answered and not silence and not message:
        return tuple(_lines(reading.text))
    if status is None and (models is not None or shown is not None):
        status = 200
    return (
        Exchange(method=method, path=path, status=status, silence=silence, keyed=keyed,
                 models=models, generated=shown, message=message),
    )  # fmt: skip


def _refused(reading: Reading, values: Sequence[Any]) -> tuple[Exchange, ...]:
    """The server's refusal of a request that the reading does not name by its path."""
    body = next((mapping(value) for value in values if isinstance(value, Mapping)), {})
    status, message = _status(reading.text, body), _message(body)
    if status is None or status < 400 or not message:
        return ()
    return (Exchange(method="POST", path="", status=status, message=message),)


def _request(reading: Reading) -> tuple[str, str | None]:
    """(method, path) that the reading's command or words name."""
    line = reading.command or reading.what or ""
    paths = [path for path in _PATH.findall(line) if any(re.search(r, path) for r, _ in _RUNGS)]
    told = re.search(r"\b(GET|POST|HEAD)\b", line)
    sends = re.search(r"\s(?:-d|--data\S*|--json)\b", line)
    method = told[1] if told else "POST" if sends else "GET"
    return method, paths[0] if paths else None


def _keyed(reading: Reading) -> bool | None:
    line = f"{reading.what or ''} ; {reading.note} ; {reading.label}".lower()
    if re.search(r"\b(?:no|without(?: an?| the)?|missing)\s+(?:api[ -]?)?(?:key|token|auth)", line):
        return False
    if re.search(r"\bwith\s+(?:an?\s+|the\s+)?(?:api[ -]?)?(?:key|token|auth)|\(key\)", line):
        return True
    if reading.command is not None:
        return _KEY.search(reading.command) is not None
    return None


def _status(text: str, body: Mapping[str, Any]) -> int | None:
    if found := _STATUS.findall(text):
        # The last one: a 100 or a redirect may stand before it.
        return int(found[-1])
    last = text.strip().splitlines()[-1:] or [""]
    if (bare := _BARE.fullmatch(last[0][:100])) and bare[1] != "000":
        return int(bare[1])
    if failed := _FAILED.search(text):
        return int(failed[1])
    code = count(mapping(body.get("error")).get("code", body.get("code")))
    return code if code is not None and 400 <= code < 600 else None


def _silence(reading: Reading) -> str:
    if found := _SILENT.search(reading.text):
        return found[0].lower()
    if re.fullmatch(r"\s*000\s*", reading.text):
        return "no answer"
    if reading.command is not None and reading.rc in _SILENT_RC:
        return f"curl exit {reading.rc}"
    return ""


def _message(body: Mapping[str, Any]) -> str:
    error = body.get("error")
    told = words(mapping(error).get("message")) or words(error) or words(body.get("detail"))
    if not told and body.get("object") == "error":
        told = words(body.get("message"))
    return told[:200]


def _models(body: Mapping[str, Any]) -> tuple[str, ...] | None:
    listed = body.get("data")
    if body.get("object") != "list" or not isinstance(listed, list):
        return None
    return tuple(words(mapping(one).get("id")) for one in listed)


def _lines(text: str) -> Iterator[Exchange]:
    """Lines of the form ``GET /health 200``."""
    for line in text.splitlines():
        found = _LINE.search(line[:1000])
        path = _PATH.search(found[2]) if found else None
        if found is None or path is None:
            continue
        status = int(found[3]) if found[3].isdecimal() and found[3] != "000" else None
        silent = _SILENT.search(found[3])
        silence = silent[0].lower() if silent else "no answer" if found[3] == "000" else ""
        if status is not None or silence:
            yield Exchange(method=found[1].upper(), path=path[1], status=status, silence=silence)
