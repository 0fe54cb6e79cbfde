"""Changes that ``doctor --fix`` makes, and its journal of them."""

from __future__ import annotations

import shlex
from datetime import datetime

from sparkserve.model.base import Model, digest


class Change(Model):
    """One change on one node, with the way back."""

    mend: str
    """Name of the mend that it belongs to."""
    node: str
    title: str
    argv: tuple[str, ...]
    undo_argv: tuple[str, ...]

    @property
    def id(self) -> str:
        """The same for the same change."""
        return f"{self.mend}-{self.node}-{digest(self)[:8]}"

    @property
    def line(self) -> str:
        """The command as it can be pasted on the node."""
        return shlex.join(self.argv)

    @property
    def undo_line(self) -> str:
        """The command that takes it back."""
        return shlex.join(self.undo_argv)


class JournalEntry(Model):
    """A change that was begun; it stays listed until it was taken back."""

    change: Change
    at: datetime


class Journal(Model):
    """Everything that was changed on a cluster and not taken back, oldest first."""

    entries: tuple[JournalEntry, ...] = ()


class FixResult(Model):
    """What came of a fix or of an undo."""

    verb: str
    """``fix`` or ``undo``."""
    changes: tuple[Change, ...]
    """Those that are meant, in order."""
    done: tuple[str, ...] = ()
    """Ids of those that were made."""
    errors: tuple[str, ...] = ()
    """Why others were not."""
    dry_run: bool = False

    @property
    def exit_code(self) -> int:
        """0 where everything that was meant was done."""
        return 1 if self.errors else 0
