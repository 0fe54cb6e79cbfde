"""Every command explains itself, with examples, fast."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sparkserve import __version__
from tests.cli.conftest import Run

COMMANDS = [
    ("doctor",),
    ("plan",),
    ("pack",),
    ("launch",),
    ("status",),
    ("logs",),
    ("chat",),
    ("stop",),
    ("verify",),
    ("profile", "list"),
    ("profile", "show"),
    ("profile", "validate"),
    ("cluster", "init"),
    ("cluster", "list"),
    ("cluster", "show"),
    ("cluster", "use"),
    ("cluster", "trust"),
    ("cluster", "import"),
    ("completion",),
    ("version",),
]
HEAVY = ("torch", "sglang", "fabric", "paramiko", "httpx", "pydantic", "rich", "platformdirs")


@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
def test_help_of_every_command(run: Run, command: tuple[str, ...]) -> None:
    outcome = run(*command, "--help").golden(f"help-{'-'.join(command)}")
    assert outcome.code == 0
    assert f"Examples:\n  sparkserve {' '.join(command)}" in outcome.out or (
        command == ("completion",) and 'eval "$(sparkserve completion bash)"' in outcome.out
    )
    assert max(len(line) for line in outcome.out.splitlines()) <= 80


def test_bare_command_shows_the_flow(run: Run) -> None:
    assert run().golden("help").code == 0
    assert run("--help").out == run().out == run("-h").out
    assert max(len(line) for line in run().out.splitlines()) <= 80


def test_no_command_is_cut_in_the_list(run: Run) -> None:
    for page in (run().out, run("cluster").out, run("profile").out):
        assert "..." not in page.partition("Commands:")[2].partition("\n\n")[0]


def test_verbose_is_taken_everywhere_and_shown_where_it_tells_more(run: Run) -> None:
    assert "--verbose" in run("launch", "--help").out
    assert "--verbose" not in run("version", "--help").out
    assert run("version", "-v").code == 0


@pytest.mark.parametrize("group", ["profile", "cluster"])
def test_bare_group_shows_its_commands(run: Run, group: str) -> None:
    assert run(group).golden(f"help-{group}").code == 0


def test_nothing_is_offered_that_does_not_exist(run: Run) -> None:
    """The list of commands in the help is the list of this test."""
    shown = run().out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert {line.split()[0] for line in shown} == {command[0] for command in COMMANDS}


def test_version(run: Run) -> None:
    assert run("--version").out == f"sparkserve {__version__}\n"
    assert run("version").out.startswith(f"sparkserve {__version__}\nPython ")
    assert run("version", "--quiet").out == f"{__version__}\n"
    assert run("version", "--json").data["version"] == __version__


@pytest.mark.parametrize(
    "args", [["--help"], ["launch", "--help"], ["profile", "show", "-h"], ["--version"]]
)
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    script = (
        "import sys\n"
        "from sparkserve.cli.main import app\n"
        "try:\n"
        f"    app({args!r})\n"
        "except SystemExit:\n"
        f"    print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "LOADED []"
