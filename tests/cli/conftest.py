"""Run a command as a user would, at 80 columns without colour, and look at what came out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sparkserve.cli.main import app
from tests import golden

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Outcome:
    """What a command printed and how it ended; paths of the test are written as $HOME."""

    code: int
    out: str
    err: str

    def golden(self, name: str) -> Outcome:
        """Compare both streams and the exit code with a golden file."""
        parts = [f"exit {self.code}\n", "--- stdout\n", self.out]
        if self.err:
            parts += ["--- stderr\n", self.err]
        golden.check(GOLDEN / f"{name}.txt", "".join(parts))
        return self

    @property
    def data(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        data = json.loads(self.out)
        assert data.pop("schema_version") == 1
        return data

    @property
    def records(self) -> list[dict[str, Any]]:
        """The lines of NDJSON on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """``run("profile", "list")``; ``typed`` goes to stdin, ``columns=None`` leaves the width."""
    home = os.environ["HOME"]

    def invoke(*args: str, typed: str | None = None, columns: int | None = 80) -> Outcome:
        environment = {"COLUMNS": str(columns) if columns else None, "TERM": "xterm"}
        result = CliRunner().invoke(
            app, list(args), input=typed, env=environment, prog_name="sparkserve"
        )
        texts = (result.stdout, result.stderr)
        out, err = (
            text.replace(home, "$HOME").replace(str(tmp_path), "$TMP").replace("\r", "")
            for text in texts
        )
        return Outcome(result.exit_code, out, err)

    return invoke


@pytest.fixture
def own_profile(tmp_path: Path) -> Path:
    """A small profile of the test's own."""
    path = tmp_path / "mine.toml"
    path.write_text(
        'summary = "a profile of the test"\n'
        '[model]\npath = "tiny"\nserved_name = "tiny"\n'
        '[engine]\nkind = "light"\npython = "this"\ndevice = "cpu"\n'
        "[serving]\nport = 18888\n"
    )
    return path
