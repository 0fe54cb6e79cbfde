"""`launch --ensure` finds a run or waits for it; it never ends one that serves."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.fleet import Local
from tests.ports import free_port


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    made = Local(tmp_path)
    yield made
    made.close()


@pytest.fixture
def launch(local: Local) -> tuple[str | Path, ...]:
    """Arguments that launch the light engine on this machine."""
    profile = local.write_profile(
        {
            "name": "light",
            "model": {"path": "none", "served_name": "light-model"},
            "engine": {"kind": "light", "python": sys.executable},
            "gate": {"expect": "Paris"},
            "serving": {"port": free_port()},
        }
    )
    return ("launch", "--profile", profile, "--json")


def test_interrupt_leaves_the_run_that_serves_alone(
    local: Local, launch: tuple[str | Path, ...]
) -> None:
    assert local.run(*launch).code == 0
    engine = local.status()["ranks"][0]["pid"]
    os.kill(engine, signal.SIGSTOP)
    try:
        asking = local.start(*launch, "--ensure")
        asking.wait_event(kind="phase", message="wait for the engine")
        asking.interrupt()
        assert asking.finish().code == 130
    finally:
        os.kill(engine, signal.SIGCONT)
    status = local.status()
    assert (status["outcome"], status["ranks"][0]["pid"]) == ("serving", engine)
    again = local.run(*launch, "--ensure")
    assert again.code == 0, again.error
    assert local.status()["ready_s"] == status["ready_s"]


def test_dry_run_asks_and_changes_nothing(local: Local, launch: tuple[str | Path, ...]) -> None:
    assert local.run(*launch).code == 0
    shown = local.run(*launch, "--ensure", "--dry-run")
    assert shown.code == 0, shown.error
    assert "plan" in shown.events[-1]["data"]
    assert "ask a question" not in [event["message"] for event in shown.events]


def test_two_at_once_both_find_the_one_run_serving(
    local: Local, launch: tuple[str | Path, ...]
) -> None:
    first = local.start(*launch, "--set", 'engine.extra_args=["--light-fault", "slow-load=3"]')
    first.wait_event(kind="phase", message="wait for the engine")
    second = local.start(
        *launch, "--ensure", "--set", 'engine.extra_args=["--light-fault", "slow-load=3"]'
    )
    ended = [first.finish(), second.finish()]
    assert [one.code for one in ended] == [0, 0], ended[1].error
    assert any("waiting for it" in event["message"] for event in ended[1].events)
    assert local.status()["outcome"] == "serving"
