"""Readings: texts that a node, a log or a server produced, each with the place it comes from.

What ``doctor`` sees on a machine and what a user pastes from a forum have this one form, so that
both are judged by the same code.
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from sparkserve.model.base import Model

Format = Literal["text", "log", "json", "yaml", "env"]


class Reading(Model):
    """One text and where it comes from; a table ``[[input]]`` of a case or a support bundle."""

    text: str = ""
    """The text byte for byte; empty where the command printed nothing."""
    label: str = ""
    """Where it comes from, in words; shown where the reading is evidence."""
    node: str | None = None
    """Node, rank or other place that produced it; None = not said."""
    command: str | None = None
    """The command whose output this is."""
    path: str | None = None
    """The file whose content this is."""
    what: str | None = None
    """What else it is, such as ``engine log`` or ``profile``."""
    stream: Literal["stdout", "stderr"] = "stdout"
    rc: int | None = None
    """Exit status of the command; None = not known, which is not 0."""
    format: Format = "text"
    note: str = ""

    @model_validator(mode="after")
    def _one_source(self) -> Reading:
        named = [n for n in ("command", "path", "what") if getattr(self, n) is not None]
        if len(named) != 1:
            raise ValueError(f"exactly one of command, path and what, got {named or 'none'}")
        return self

    @property
    def source(self) -> str:
        """The command line, the path or the words."""
        return self.command or self.path or self.what or ""
