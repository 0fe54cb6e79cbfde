"""What every test gets: a home, configuration, state and cache of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest_plugins = ["tests.testbed.plugin", "tests.engine.roots"]


def pytest_configure() -> None:
    """A run in the background or under nohup ignores signals, and its children would as well."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep tests off the developer's home, settings, SSH agent and sparkserve variables."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    for name in [*os.environ]:
        if name.startswith("SPARKSERVE_") or name == "SSH_AUTH_SOCK":
            monkeypatch.delenv(name)
    return home
