"""The one output sink: results on stdout, everything else on stderr, in the chosen mode.

``human``: lines for people. ``json``: documents or NDJSON on stdout, nothing else. ``quiet``:
only what a script would take (an address, names), one a line. Errors are told in every mode.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

from sparkserve.report.text import Line, Span, line, paragraph, wrap

Mode = Literal["human", "json", "quiet"]
SCHEMA_VERSION = 1
_FALLBACK_WIDTH = 80


@dataclass(frozen=True)
class Answer:
    """One result in all its forms; the console picks one."""

    lines: Sequence[Line]
    """For people."""
    data: Mapping[str, Any]
    """For programs: one JSON document; ``schema_version`` is added."""
    short: Sequence[str] = field(default_factory=tuple)
    """For scripts in quiet mode."""


@dataclass(frozen=True)
class Settings:
    """How the user wants things shown."""

    mode: Mode = "human"
    color: bool = True
    """Whether colour is welcome at all; a stream that is no terminal gets none anyway."""
    moving: bool = True
    """Whether the terminal can redraw lines."""
    verbosity: int = 0
    """1 = every step and check, 2 = engine logs too."""
    width: int | None = None
    """Columns; None = the terminal's, or no limit where there is none."""


class Console:
    """Writes for one command; safe to use from several threads."""

    def __init__(
        self,
        settings: Settings = Settings(),
        *,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        stdin: TextIO | None = None,
    ) -> None:
        self.settings = settings
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self._stdin = stdin or sys.stdin
        self._lock = threading.RLock()
        self._progressed = False
        self._broken: dict[TextIO, OSError] = {}

    @property
    def lost_results(self) -> OSError | None:
        """Why results could not be written (a closed pipe, a full disk), or None."""
        return self._broken.get(self._stdout)

    @property
    def mode(self) -> Mode:
        """The chosen mode."""
        return self.settings.mode

    @property
    def width(self) -> int | None:
        """Columns of the result's screen; None = nothing needs to be cut."""
        return self._width_of(self._stdout)

    @property
    def progress_width(self) -> int | None:
        """Columns of the progress' screen; None = nothing needs to be cut."""
        return self._width_of(self._stderr)

    @property
    def is_live(self) -> bool:
        """Whether progress may move on the screen."""
        return self.mode == "human" and self.settings.moving and self._stderr.isatty()

    @property
    def is_colored(self) -> bool:
        """Whether progress is shown in colour."""
        return self.settings.color and self._stderr.isatty()

    @property
    def can_ask(self) -> bool:
        """Whether a person is there to answer."""
        return self._stdin.isatty() and self.mode == "human"

    @property
    def error_stream(self) -> TextIO:
        """Where progress goes."""
        return self._stderr

    def answer(self, answer: Answer) -> None:
        """Write a command's result in the chosen mode."""
        if self.mode == "json":
            self.document(answer.data)
        elif self.mode == "quiet":
            self._put(self._stdout, "".join(f"{text}\n" for text in answer.short))
        else:
            apart = [line()] if self._progressed and self._stdout.isatty() else []
            self.out([*apart, *answer.lines])

    def out(self, lines: Iterable[Line]) -> None:
        """Write result lines for people."""
        if self.mode == "human":
            self._put_lines(self._stdout, lines)

    def result_lines(self, lines: Iterable[Line]) -> None:
        """Write result lines whatever the mode: they are what a script asked for, too."""
        self._put_lines(self._stdout, lines)

    def say(self, lines: Iterable[Line]) -> None:
        """Write progress lines for people."""
        if self.mode == "human":
            self._progressed = True
            self._put_lines(self._stderr, self._wrapped(lines))

    def progress_was_drawn(self) -> None:
        """Take note of progress that a view drew itself; the result stands apart from it."""
        self._progressed = True

    def note(self, text: str) -> None:
        """Write one thing that the user should know, as progress."""
        self.say(paragraph(text))

    def warn(self, text: str) -> None:
        """Write a warning; quiet does not silence it."""
        if self.mode != "json":
            first, *rest = paragraph(text)
            told = [line(Span("warning: ", "warn"), *first), *rest]
            self._put_lines(self._stderr, self._wrapped(told))

    def error(self, lines: Iterable[Line]) -> None:
        """Write error lines; shown in every mode but json, where the document holds the error."""
        if self.mode != "json":
            self._put_lines(self._stderr, self._wrapped(lines))

    def document(self, data: Mapping[str, Any]) -> None:
        """Write one JSON document."""
        text = json.dumps({"schema_version": SCHEMA_VERSION, **data}, indent=2, ensure_ascii=False)
        self._put(self._stdout, text + "\n")

    def record(self, text: str) -> None:
        """Write one line of NDJSON."""
        self._put(self._stdout, text + "\n")

    def raw(self, text: str) -> None:
        """Write a piece of a result as it comes (a streamed answer, a log line)."""
        self._put(self._stdout, text)

    def progress(self, text: str) -> None:
        """Write a piece of progress without a line break."""
        if self.mode == "human":
            self._put(self._stderr, text)

    def ask(self, question: str) -> bool:
        """Ask a yes-or-no question; anything but yes is no."""
        self._put(self._stderr, f"{question} [y/N] ")
        return self._stdin.readline().strip().lower() in ("y", "yes")

    def read_line(self, prompt: str) -> str:
        """Let a person type a line, with history and editing.

        Raises:
            EOFError: the person has left.
        """
        # Importing it is what gives input() both.
        import readline  # noqa: F401

        return input(prompt)

    def watch_reader(self, gone: Callable[[], None]) -> None:
        """Call ``gone`` once nobody reads the results any more, even while nothing is written."""
        try:
            descriptor = self._stdout.fileno()
        except OSError:
            # Not a file of the system's (a test's buffer): its reader does not go.
            return

        def wait() -> None:
            poll = select.poll()
            # Errors and hang-ups are told unasked; nothing else is of interest.
            poll.register(descriptor, 0)
            poll.poll()
            gone()

        threading.Thread(target=wait, name="reader", daemon=True).start()

    @property
    def result_is_terminal(self) -> bool:
        """Whether results go to a screen."""
        return self._stdout.isatty()

    def _width_of(self, stream: TextIO) -> int | None:
        if self.settings.width is not None:
            return self.settings.width
        if not stream.isatty():
            return None
        try:
            return os.get_terminal_size(stream.fileno()).columns or _FALLBACK_WIDTH
        except OSError:
            return _FALLBACK_WIDTH

    def _wrapped(self, lines: Iterable[Line]) -> list[Line]:
        """Prose broken between words where the screen of the progress ends."""
        width = self.progress_width
        if width is None or not self._stderr.isatty():
            return list(lines)
        return [part for one in lines for part in wrap(one, width)]

    def _put_lines(self, stream: TextIO, lines: Iterable[Line]) -> None:
        colored = self.settings.color and stream.isatty()
        self._put(stream, "".join(f"{one.ansi if colored else one.plain}\n" for one in lines))

    def _put(self, stream: TextIO, text: str) -> None:
        """Write, or remember why not: an observer must not end a launch because a pipe closed."""
        with self._lock:
            if stream in self._broken:
                return
            try:
                try:
                    stream.write(text)
                except UnicodeEncodeError:
                    encoding = stream.encoding or "ascii"
                    stream.write(text.encode(encoding, "replace").decode(encoding))
                stream.flush()
            except OSError as error:
                self._broken[stream] = error
