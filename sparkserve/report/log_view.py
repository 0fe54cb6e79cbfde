"""Log lines of several ranks on one screen."""

from __future__ import annotations

import json
from collections.abc import Callable

from sparkserve.report.console import SCHEMA_VERSION, Console
from sparkserve.report.text import Span, clean, line


class LogView:
    """Prints log lines as they come; safe to use from several threads."""

    def __init__(self, console: Console, *, named: bool, broken: Callable[[], None]) -> None:
        """Prepare.

        named: whether a line begins with its node's name.
        broken: called once nobody reads any more (a closed pipe).
        """
        self._console = console
        self._named = named
        self._broken = broken

    def line(self, node: str, rank: int, text: str) -> None:
        """Print one line of one rank's log."""
        if self._console.mode == "json":
            data = {"schema_version": SCHEMA_VERSION, "node": node, "rank": rank, "line": text}
            self._console.record(json.dumps(data, ensure_ascii=False))
        else:
            # What goes to a file stays as it is; a screen is not handed over to a log.
            shown = clean(text) if self._console.result_is_terminal else text
            name = Span(f"{node} | ", "name") if self._named else Span("")
            self._console.result_lines([line(name, shown)])
        if self._console.lost_results is not None:
            self._broken()
