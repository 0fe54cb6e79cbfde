"""Settings written as YAML, JSON, TOML, env or ``key: value`` lines, as one flat table.

YAML is composed to its nodes and typed here, by the rules of YAML 1.2: a revision that looks like
a date or an octal number stays text, and a quoted ``"false"`` is not the word false.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkserve.facts.probe import UnusableOutput
from sparkserve.model.reading import Format

_MOST_KEYS = 5000
_DEEPEST = 40
_NULLS = ("", "~", "null", "Null", "NULL")
_TRUE = ("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON")
_FALSE = ("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF")
_LONGEST_LINE = 10_000
_LINE = re.compile(r"(?:export\s+|-e\s+|--env[ =])?([A-Za-z_][\w.\-]*)\s*([=:])(.*)")
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?[A-Za-z_]\w*=.*")


def flat_settings(text: str, format: Format = "text") -> dict[str, Any]:
    """Every setting by its dotted key, in the order of the text.

    format: what the reading says of itself; it is tried first, then each other form.

    Raises:
        UnusableOutput: the text holds no setting in any of these forms.
    """
    first: dict[str, list[Any]] = {"yaml": [_json, _yaml], "env": [_env]}
    for form in [*first.get(format, []), _json, _toml, _env, _yaml, _lines]:
        table = form(text)
        if table:
            return flatten(table)
    raise UnusableOutput("no setting of the form key: value")


def flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables as dotted keys; lists stay as they are.

    Raises:
        UnusableOutput: more keys, or deeper, than any settings that people write.
    """
    flat: dict[str, Any] = {}
    for key, value in _leaves(table, "", 0):
        flat[key] = value
        if len(flat) > _MOST_KEYS:
            raise UnusableOutput(f"more than {_MOST_KEYS} settings")
    return flat


def _leaves(table: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > _DEEPEST:
        raise UnusableOutput(f"settings more than {_DEEPEST} levels deep")
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{key}.", depth + 1)
        else:
            yield key, value


def _json(text: str) -> dict[str, Any] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _toml(text: str) -> dict[str, Any] | None:
    if "=" not in text and "[" not in text:
        return None
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError):
        return None
    # Dates stay what they were in the text.
    return {key: _plain_data(value) for key, value in data.items()}


def _plain_data(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain_data(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain_data(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _env(text: str) -> dict[str, Any] | None:
    rows = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    if not rows or not all(_ASSIGNMENT.fullmatch(line) for line in rows):
        return None
    return _lines(text)


def _lines(text: str) -> dict[str, Any] | None:
    """Settings one a line; lines of another form are passed over."""
    table: dict[str, Any] = {}
    for line in text.splitlines():
        plain = line.strip()
        found = None if plain.startswith("#") else _LINE.fullmatch(plain)
        if found is None or len(line) > _LONGEST_LINE:
            continue
        value = found[3].strip()
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
        if quoted:
            table[found[1]] = value[1:-1]
        else:
            value = re.sub(r"\s+#.*", "", value)
            # A blank after = is a blank; a blank after : is none, as in YAML.
            blank = value == "" and found[2] == "="
            table[found[1]] = "" if blank else typed(value)
    return table


def _yaml(text: str) -> dict[str, Any] | None:
    import yaml

    if text.count("[") + text.count("{") > _MOST_KEYS // 10:
        # Deep flow style takes YAML's scanner quadratic time, and people write none.
        return None
    # A tab at the end of a line is no error to people.
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        tables = [_yaml_data(node, 0, [_MOST_KEYS]) for node in nodes if node is not None]
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    merged: dict[str, Any] = {}
    for table in tables:
        if isinstance(table, dict):
            merged = table | merged
    return merged


def _yaml_data(node: Any, depth: int, left: list[int]) -> Any:
    """Plain data of one YAML node; ``left`` bounds what aliases may multiply."""
    left[0] -= 1
    if left[0] < 0 or depth > _DEEPEST:
        raise ValueError("more settings, or deeper, than any that people write")
    if node.id == "scalar":
        return node.value if node.style is not None else typed(node.value)
    if node.id == "sequence":
        return [_yaml_data(one, depth + 1, left) for one in node.value]
    own: dict[str, Any] = {}
    merged: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(_yaml_data(key_node, depth + 1, left))
        value = _yaml_data(value_node, depth + 1, left)
        if key == "<<":
            for base in value if isinstance(value, list) else [value]:
                merged |= base if isinstance(base, dict) else {}
        else:
            own[key] = value
    return merged | own


def typed(text: str) -> Any:
    """A plain word as null, a truth value, a number, or itself."""
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if re.fullmatch(r"[-+]?(0|[1-9][0-9_]{0,30})", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?", text):
        return float(text)
    return text


def split_arguments(text: str) -> tuple[str, ...]:
    """A command line as words; JSON lists are taken as they are.

    Raises:
        UnusableOutput: quotes that never close, or no word at all.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, list) and data and all(isinstance(word, str) for word in data):
        return tuple(data)
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise UnusableOutput(f"no command line: {error}") from error
    if not words:
        raise UnusableOutput("no command line")
    return tuple(words)


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Long options of a command line by their name without dashes; a bare one is True.

    ``-e NAME=VALUE`` and ``--env NAME=VALUE`` count as the variable itself, ``-m SIZE`` as Docker's
    ``--memory``.
    """
    found: dict[str, Any] = {}
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else None
        if word in ("-e", "--env") and following is not None:
            name, assigned, value = following.partition("=")
            if assigned:
                found.setdefault(name, value)
            continue
        if word == "-m" and following is not None and re.fullmatch(r"\d+[bkmgBKMG]?", following):
            found.setdefault("memory", following)
            continue
        match = re.fullmatch(r"--([A-Za-z][\w.\-]*)(?:=(.*))?", word, re.DOTALL)
        if match is None:
            continue
        if match[2] is not None:
            found.setdefault(match[1], _word(match[2]))
        elif following is None or re.match(r"--?[A-Za-z]", following):
            found.setdefault(match[1], True)
        else:
            found.setdefault(match[1], _word(following))
    return found


def _word(text: str) -> Any:
    return "" if text == "" else typed(text)
