"""What a builder hands on: tensors, configuration and tokenizer of a plain Llama."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Progress = Callable[[str], None]
"""Takes one line about what is being done."""


@dataclass(frozen=True)
class Llama:
    """A Llama before Engram tables are added."""

    tensors: dict[str, Any]
    """Checkpoint name -> torch tensor, bfloat16."""
    config: dict[str, Any]
    """config.json."""
    save_tokenizer: Callable[[Path], None]
    """Writes the tokenizer's files into a folder."""
