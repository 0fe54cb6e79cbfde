"""Streams that stand for a pipe or a terminal."""

from __future__ import annotations

import io

from sparkserve.report.console import Console, Settings


class Stream(io.StringIO):
    """Text that remembers whether it is a terminal."""

    def __init__(self, *, terminal: bool = False, text: str = "") -> None:
        super().__init__(text)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


class Screen:
    """A console and what it wrote."""

    def __init__(self, *, terminal: bool = False, typed: str = "", **settings: object) -> None:
        self.stdout = Stream(terminal=terminal)
        self.stderr = Stream(terminal=terminal)
        self.console = Console(
            Settings(**settings),  # type: ignore[arg-type]
            stdout=self.stdout,
            stderr=self.stderr,
            stdin=Stream(terminal=terminal, text=typed),
        )

    @property
    def out(self) -> str:
        return self.stdout.getvalue()

    @property
    def err(self) -> str:
        return self.stderr.getvalue()
