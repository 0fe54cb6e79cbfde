"""Ctrl-C in two stages, SIGTERM like it, and what goes on when a command only detaches."""

from __future__ import annotations

import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkserve.cli import interrupts
from tests.cli import real

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
# Its cleaning up lasts until a line is typed, so a test decides what happens in the middle.
CLEANS_UP = """
import sys, time
from sparkserve.cli import interrupts
with interrupts.second_ends_at_once():
    interrupts.say_at_second("to clean up: sparkserve stop RUN")
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("cleaning", flush=True)
        sys.stdin.readline()
        print("cleaned", flush=True)
        sys.exit(130)
"""
DETACHES = """
import threading
from sparkserve.cli import interrupts
gone = threading.Event()
with interrupts.second_ends_at_once(), interrupts.detaching(gone.set):
    print("ready", flush=True)
    gone.wait(60)
    print("detached", interrupts.was_interrupted(), flush=True)
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_lets_the_command_clean_up(number: signal.Signals) -> None:
    with real.running([sys.executable, "-c", CLEANS_UP]) as process:
        process.wait_for("ready")
        process.popen.send_signal(number)
        process.wait_for("cleaning")
        process.type("\n")
        assert process.end() == 130
        assert "cleaned" in process.text


@pytest.mark.parametrize("number", SIGNALS)
def test_second_signal_ends_at_once_and_says_how_to_clean_up(number: signal.Signals) -> None:
    with real.running([sys.executable, "-c", CLEANS_UP]) as process:
        process.wait_for("ready")
        process.popen.send_signal(number)
        process.wait_for("cleaning")
        deadline = time.monotonic() + 20
        # What comes right after the first counts as the same press.
        while process.popen.poll() is None and time.monotonic() < deadline:
            process.popen.send_signal(number)
            time.sleep(0.05)
        assert process.end() == 130
        assert "to clean up: sparkserve stop RUN" in process.text
        assert "cleaned" not in process.text


def test_same_press_handed_on_by_a_wrapper_is_one() -> None:
    with real.running([sys.executable, "-c", CLEANS_UP]) as process:
        process.wait_for("ready")
        process.popen.send_signal(signal.SIGINT)
        process.popen.send_signal(signal.SIGTERM)
        process.wait_for("cleaning")
        process.type("\n")
        assert process.end() == 130
        assert "cleaned" in process.text


def test_detaching_command_is_not_torn_out_of_its_work() -> None:
    with real.running([sys.executable, "-c", DETACHES]) as process:
        process.wait_for("ready")
        process.popen.send_signal(signal.SIGINT)
        assert process.end() == 0
        assert "detached True" in process.text


def test_signal_that_was_ignored_from_the_start_stays_ignored() -> None:
    script = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)" + CLEANS_UP.replace(
        "time.sleep(60)", "sys.stdin.readline(); print('went on', flush=True)"
    )
    with real.running([sys.executable, "-c", script]) as process:
        process.wait_for("ready")
        process.popen.send_signal(signal.SIGHUP)
        process.type("\n")
        assert process.end() == 0
        assert "went on" in process.text


@pytest.mark.parametrize("number", SIGNALS)
def test_interrupted_launch_stops_what_it_started(tmp_path: Path, number: signal.Signals) -> None:
    profile = real.light_profile(tmp_path, "--light-load-seconds", "60")
    with real.running([real.SPARKSERVE, "launch", "-p", str(profile)]) as process:
        process.wait_for("rank 0 local: weights")
        assert real.engines(tmp_path / "model")
        process.popen.send_signal(number)
        assert process.end() == 130
        assert "[-] stop what was started ... done" in process.text.replace("\n", " ") or (
            "was running, nothing left" in process.text
        )
        assert process.text.endswith("error: interrupted\n")
    real.wait_until(lambda: not real.engines(tmp_path / "model"), "the engine is gone")


def test_followed_logs_detach_and_the_run_goes_on(tmp_path: Path) -> None:
    profile = real.light_profile(tmp_path)
    with real.running([real.SPARKSERVE, "launch", "-p", str(profile)]) as process:
        assert process.end() == 0, process.text
        assert "serving light at" in process.text
    try:
        with real.running([real.SPARKSERVE, "logs", "--follow"]) as process:
            process.wait_for("fired up and ready")
            process.popen.send_signal(signal.SIGINT)
            assert process.end() == 0
            assert "goes on" in process.text
        assert real.engines(tmp_path / "model")
    finally:
        with real.running([real.SPARKSERVE, "stop"]) as process:
            assert process.end() == 0, process.text
    real.wait_until(lambda: not real.engines(tmp_path / "model"), "the engine is gone")


def hold_until_interrupted(lock: threading.Condition) -> None:
    with lock:
        while True:
            signal.pause()


def test_interrupt_between_lock_and_with_block_waits_for_the_block() -> None:
    given_back = []
    # What Condition.__enter__ calls is interrupted before it returns, when the lock is taken.
    lock = SimpleNamespace(
        acquire=None,
        release=None,
        __enter__=partial(signal.raise_signal, signal.SIGINT),
        __exit__=lambda *reason: given_back.append(reason[0]),
    )
    with interrupts.second_ends_at_once(), pytest.raises(KeyboardInterrupt):
        hold_until_interrupted(threading.Condition(lock))
    assert given_back == [KeyboardInterrupt]
