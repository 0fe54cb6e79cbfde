"""JSON as people paste it: whole, one value a line, or behind headers and other lines."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sparkserve.facts.probe import UnusableOutput

_MOST_BROKEN = 200
"""Places where a value seems to begin and does not; more than any paste has."""
_MOST_ITEMS = 20_000
_START = re.compile(r"[\[{]")


def json_values(text: str) -> list[Any]:
    """Every JSON object and list of a text, in order; what stands between them is passed over.

    Raises:
        UnusableOutput: there is none.
    """
    decoder = json.JSONDecoder()
    found: list[Any] = []
    place = broken = 0
    while broken < _MOST_BROKEN and len(found) < _MOST_ITEMS:
        start = _START.search(text, place)
        if start is None:
            break
        try:
            value, place = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            # Another value may begin on a later line, never in the middle of a broken one.
            broken += 1
            newline = text.find("\n", start.start())
            if newline < 0:
                break
            place = newline
            continue
        if value:
            found.append(value)
    if not found:
        raise UnusableOutput("no JSON object or list")
    return found


def json_objects(text: str, *holders: str) -> list[dict[str, Any]]:
    """Every JSON object of a text: alone, as lines, in lists, or in a list below a key.

    holders: keys whose list holds the objects, such as ``samples``.

    Raises:
        UnusableOutput: there is none.
    """
    found: list[dict[str, Any]] = []
    for value in json_values(text):
        found += _objects(value, holders)
        if len(found) > _MOST_ITEMS:
            raise UnusableOutput(f"more than {_MOST_ITEMS} objects")
    if not found:
        raise UnusableOutput("no JSON object")
    return found


def _objects(value: Any, holders: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (one for one in value if isinstance(one, dict))
    elif isinstance(value, dict):
        held = next((value[key] for key in holders if isinstance(value.get(key), list)), None)
        if held is None:
            yield value
        else:
            yield from (one for one in held if isinstance(one, dict))


def mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is an object, else an empty one: ``null`` holds no details."""
    return value if isinstance(value, Mapping) else {}


def count(value: Any) -> int | None:
    """A count of tokens or items; None where it is none, which is not 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    figure = number(value)
    if figure is None or figure < 0 or figure != int(figure):
        return None
    return int(figure)


def number(value: Any) -> float | None:
    """A finite number, also written as text with thousands; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        value = value.strip().replace(",", "").replace("_", "")
        if not re.fullmatch(r"[-+]?[0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][-+]?[0-9]{1,3})?", value):
            return None
    try:
        figure = float(value)
    except OverflowError:
        return None
    return figure if math.isfinite(figure) else None


def words(value: Any) -> str:
    """A text, or an empty one for anything else."""
    return value if isinstance(value, str) else ""
