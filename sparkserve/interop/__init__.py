"""Neighbours' files: what others wrote for their launchers, read into our nouns."""

from __future__ import annotations

from sparkserve.interop.env_file import Dropped, ImportedEnv, import_env_file, import_env_text

__all__ = ["Dropped", "ImportedEnv", "import_env_file", "import_env_text"]
