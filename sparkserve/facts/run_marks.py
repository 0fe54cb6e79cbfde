"""Passed and failed items of repeated runs: digits, words or JSON, a run a line or a column."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparkserve.facts.probe import UnusableOutput

_MARKS = {"1": True, "0": False, "p": True, "f": False, "pass": True, "fail": False,
          "passed": True, "failed": False, "true": True, "false": False, "ok": True,
          "+": True, "-": False, "x": False, "y": True, "n": False}  # fmt: skip
_LEAST_ITEMS = 2


def runs_of(text: str) -> tuple[tuple[bool, ...], ...]:
    """[runs][items] of a text, True = passed.

    Raises:
        UnusableOutput: fewer than two runs, or runs of different lengths.
    """
    rows = _of_json(text) or [row for line in text.splitlines() if (row := _marks(line))]
    if len(rows) < 2 or len({len(row) for row in rows}) != 1 or len(rows[0]) < _LEAST_ITEMS:
        raise UnusableOutput("no two runs of the same items, one mark for each item")
    if len(rows) > len(rows[0]):
        # More lines than marks in each: a line is an item, and a column a run.
        rows = [list(column) for column in zip(*rows, strict=True)]
    return tuple(tuple(row) for row in rows)


def _marks(line: str) -> list[bool]:
    """The marks of one line behind its name; none where it holds anything else."""
    if len(line) > 20_000:
        return []
    line = line.replace("[", " ").replace("]", " ").strip(" ,")
    named = re.match(r"\s*[A-Za-z][\w .#-]{0,40}[:=]\s*", line)
    words = re.split(r"[\s,;|]+", line[named.end() if named else 0 :].strip().strip("|"))
    if len(words) > 1 and words[0].lower() not in _MARKS and not re.fullmatch("[01]+", words[0]):
        # A table's first column names the item or the run.
        words = words[1:]
    if all(re.fullmatch("[01]+", word) for word in words):
        return [digit == "1" for word in words for digit in word]
    if words and all(re.fullmatch("[PF]+", word) for word in words):
        return [letter == "P" for word in words for letter in word]
    marks = [_MARKS.get(word.lower()) for word in words]
    return [mark for mark in marks if mark is not None] if None not in marks else []


def _of_json(text: str) -> list[list[bool]]:
    if text.lstrip()[:1] not in ("[", "{"):
        return []
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return []
    rows = list(data.values()) if isinstance(data, Mapping) else data
    held = [_run(row) for row in rows] if isinstance(rows, Sequence) else []
    return [row for row in held if row is not None]


def _run(row: Any) -> list[bool] | None:
    if isinstance(row, Mapping):
        inner = next((row[key] for key in ("results", "items", "passed") if key in row), None)
        row = inner if isinstance(inner, list) else [row[key] for key in sorted(row)]
    if isinstance(row, str):
        return _marks(row) or None
    if not isinstance(row, list) or not row:
        return None
    marks = [_MARKS.get(str(one).strip().lower()) for one in row]
    return None if None in marks else [mark is True for mark in marks]
