"""Cases of public failures as tests read them: scenes, codes, verdicts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sparkserve.model.reading import Reading

CASES = Path(__file__).parent / "cases"
_READING = set(Reading.model_fields) - {"text"}


class Variant(NamedTuple):
    """One set of texts of a case that belong together."""

    id: str
    case: dict[str, Any]
    kind: str
    """``faulty`` or ``quiet``."""
    readings: tuple[Reading, ...]


def reading(folder: Path, table: dict[str, Any]) -> Reading:
    """One ``[[input]]`` table."""
    known = {key: value for key, value in table.items() if key in _READING}
    return Reading(**known, text=(folder / table["file"]).read_text(encoding="utf-8"))


def variants(folder: Path) -> Iterator[Variant]:
    """The faulty texts of a case once, and every quiet variant of them."""
    case = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))
    name = f"{case['id']}-{case['code']}"
    both = [(table, reading(folder, table)) for table in case["input"]]
    plain = [(t, r) for t, r in both if t["role"] != "quiet"]
    quiet = [(t, r) for t, r in both if t["role"] == "quiet"]
    if not plain:
        yield Variant(f"{name}-quiet", case, "quiet", tuple(r for _, r in quiet))
        return
    yield Variant(f"{name}-faulty", case, "faulty", tuple(r for _, r in plain))
    for number, (table, text) in enumerate(quiet, 1):
        rest = [r for t, r in plain if t["file"] not in table["instead_of"]]
        yield Variant(f"{name}-quiet{number}", case, "quiet", (*rest, text))


def folders() -> list[Path]:
    """Every case, and the healthy baseline."""
    return [*sorted(CASES.glob("B[0-9][0-9]-*")), CASES / "baseline"]


def case(number: str) -> dict[str, Any]:
    """The table of one case, such as ``B01``."""
    (folder,) = CASES.glob(f"{number}-*")
    return tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))


ALL = [variant for folder in folders() for variant in variants(folder)]
