"""Generated reference pages equal what the code says now."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from sparkserve.model.pack import PackCode

ROOT = Path(__file__).parent.parent


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "tools/generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(generator().PAGES))
def test_page_is_up_to_date(name: str) -> None:
    page = ROOT / "docs" / name
    assert page.read_text() == generator().PAGES[name](), "run python tools/generate_docs.py"


def test_every_code_of_packing_has_a_row_that_says_what_to_do() -> None:
    rows = [line for line in (ROOT / "docs/engram.md").read_text().splitlines() if "PCK_" in line]
    listed = {code for row in rows if row.startswith("| `") for code in re.findall(r"PCK_\w+", row)}
    assert {code.value for code in PackCode} - listed == set()


@pytest.mark.parametrize("page", ["profile.md", "adapters.md"])
def test_every_key_is_explained(page: str) -> None:
    bare = [
        line
        for line in (ROOT / "docs/reference" / page).read_text().splitlines()
        if line.startswith("| `") and line.endswith("|  |")
    ]
    assert bare == []
