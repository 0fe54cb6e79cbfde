"""Reading TOML with errors that name the file, and writing the plain TOML we need."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkserve.errors import ConfigError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file.

    Raises:
        ConfigError: unreadable, not UTF-8, or not TOML (with line and column).
    """
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def emit_toml(table: Mapping[str, Any]) -> str:
    """Write nested plain data as TOML: values first, then tables, then arrays of tables.

    table: text, numbers, booleans, lists of these, tables, lists of tables; no None.
    """
    return "\n".join(_lines(table, ())) + "\n"


def toml_key(parts: tuple[str, ...]) -> str:
    """A dotted key; parts that are not bare keys are quoted."""
    return ".".join(part if _BARE_KEY.fullmatch(part) else _text(part) for part in parts)


def _lines(table: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[str]:
    for key, value in table.items():
        if not isinstance(value, Mapping) and not _is_table_array(value):
            yield f"{toml_key((key,))} = {_value(value)}"
    for key, value in table.items():
        name = toml_key((*prefix, key))
        if isinstance(value, Mapping):
            only_tables = bool(value) and all(isinstance(v, Mapping) for v in value.values())
            yield from () if only_tables else ("", f"[{name}]")
            yield from _lines(value, (*prefix, key))
        elif _is_table_array(value):
            for row in value:
                yield from ("", f"[[{name}]]", *_lines(row, (*prefix, key)))


def _is_table_array(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(inner) for inner in value)}]"
    raise TypeError(f"{type(value).__name__} has no place in our TOML files")


def _text(value: str) -> str:
    # JSON's escapes are TOML's, but TOML forbids a raw DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
