"""Parser of ``key=value`` lines, the form our own probe scripts print."""

from __future__ import annotations


def parse_keyed(text: str) -> dict[str, str]:
    """Fields of ``key=value`` lines; other lines are passed over, a key's last value counts."""
    fields = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator and key.isidentifier():
            fields[key] = value.strip()
    return fields
