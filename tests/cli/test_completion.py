"""Shells are told commands, options and names that exist."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sparkserve import clusters, runs
from tests.cli import real
from tests.cli.conftest import Run
from tests.report.runs import RUN_ID, record


@pytest.fixture(autouse=True)
def _saved() -> None:
    for name in ("lab", "lodge", "other"):
        clusters.save(clusters.from_hosts("spark1,spark2", name=name))
    runs.create(RUN_ID).write_record(record())


def completed(words: str) -> list[str]:
    """What bash would offer for the last word."""
    parts = words.split(" ")
    environment = {
        **os.environ,
        "_SPARKSERVE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(parts) - 1),
    }
    result = subprocess.run(
        [real.SPARKSERVE], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stderr == ""
    return result.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("sparkserve l", ["launch", "logs"]),
        ("sparkserve cluster i", ["init", "import"]),
        ("sparkserve launch --ens", ["--ensure"]),
        ("sparkserve launch --cluster l", ["lab", "lodge"]),
        ("sparkserve status -c o", ["other"]),
        ("sparkserve cluster show la", ["lab"]),
        ("sparkserve launch -p local", ["local-demo"]),
        ("sparkserve profile show local", ["local-demo"]),
        ("sparkserve stop 2", [RUN_ID]),
        ("sparkserve chat --run 2", [RUN_ID]),
        ("sparkserve logs spark", ["spark1", "spark2"]),
        ("sparkserve completion z", ["zsh"]),
    ],
)
def test_words_are_completed(words: str, offered: list[str]) -> None:
    assert completed(words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_of_each_shell(run: Run, shell: str) -> None:
    outcome = run("completion", shell)
    assert outcome.code == 0
    assert "_SPARKSERVE_COMPLETE" in outcome.out
    assert run("completion", shell, "--json").data["script"] + "\n" == outcome.out


def test_shell_of_the_user_is_taken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert run("completion").out == run("completion", "fish").out
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert "no completion for shell 'tcsh'" in run("completion").err


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_script_works_in_bash() -> None:
    """The script itself, sourced by a real bash, asks for completions and gets them."""
    script = (
        f'PATH="{Path(real.SPARKSERVE).parent}:$PATH"; eval "$(sparkserve completion bash)"; '
        "COMP_WORDS=(sparkserve sta); COMP_CWORD=1; "
        '_sparkserve_completion sparkserve; echo "${COMPREPLY[@]}"'
    )
    result = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["status"]
