"""Real ``sparkserve`` processes, in a pipe or on a terminal, and a light engine for them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ports import free_port

SPARKSERVE = str(Path(sys.executable).with_name("sparkserve"))


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Poll a condition; fail with a sentence when the deadline has passed."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.02)


class Process:
    """A program under way whose output is read as it comes."""

    def __init__(self, argv: list[str], *, terminal: bool = False, columns: int = 80) -> None:
        self.text = ""
        self._terminal = terminal
        if terminal:
            self._reader, writer = pty.openpty()
            fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        else:
            self._reader, writer = os.pipe()
        self.popen = subprocess.Popen(
            argv,
            stdin=writer if terminal else subprocess.PIPE,
            stdout=writer,
            stderr=writer,
            # A test runner in the background ignores SIGINT, and its children would too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            start_new_session=True,
        )
        os.close(writer)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_for(self, words: str) -> None:
        """Wait until the output holds some words."""
        wait_until(lambda: words in self.text or self.popen.poll() is not None, repr(words))
        if words not in self.text:
            self._thread.join(5)
        assert words in self.text, self.text

    def type(self, text: str) -> None:
        """Type on the terminal, or write to the pipe on stdin."""
        if self._terminal:
            os.write(self._reader, text.encode())
        else:
            assert self.popen.stdin is not None
            self.popen.stdin.write(text.encode())
            self.popen.stdin.flush()

    def end(self, seconds: float = 30.0) -> int:
        """Wait for the end; gives the exit code."""
        code = self.popen.wait(seconds)
        self._thread.join(5)
        return code

    def close(self) -> None:
        """Leave nothing behind."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        if self.popen.stdin is not None:
            self.popen.stdin.close()
        self._thread.join(5)
        os.close(self._reader)

    def _read(self) -> None:
        # A terminal whose other side is closed gives EIO in place of an end.
        with contextlib.suppress(OSError):
            while piece := os.read(self._reader, 1 << 16):
                self.text += piece.decode(errors="replace")


@contextlib.contextmanager
def running(argv: list[str], *, terminal: bool = False, columns: int = 80) -> Iterator[Process]:
    """A process that is gone afterwards."""
    process = Process(argv, terminal=terminal, columns=columns)
    try:
        yield process
    finally:
        process.close()


def free_ports(count: int) -> list[int]:
    """Different TCP ports that nobody listens on."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


def light_profile(folder: Path, *extra_args: str) -> Path:
    """A profile of this machine whose engine has no model and starts in a moment."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    serving, dist, guard = free_ports(3)
    path = folder / "light.toml"
    arguments = ", ".join(f'"{argument}"' for argument in extra_args)
    path.write_text(
        f'[model]\npath = "{model}"\nserved_name = "light"\n'
        '[engine]\nkind = "light"\npython = "this"\ndevice = "cpu"\n'
        f"extra_args = [{arguments}]\n"
        f"[serving]\nport = {serving}\n"
        f"[fabric]\ndist_port = {dist}\nguard_port = {guard}\n"
        '[gate]\nexpect = "Paris"\n'
    )
    return path


def engines(model: Path) -> list[str]:
    """Command lines of live engines that serve a model folder."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdigit() else []
            if str(model).encode() in words and b"sparkserve.sim.light_engine" in words:
                found.append(b" ".join(words).decode())
    return found
