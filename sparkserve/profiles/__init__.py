"""Profiles on disk to one resolved Profile whose every value knows where it came from.

``find`` and ``names`` look profiles up, ``Layer`` carries overrides of one kind, ``load`` merges
them and validates. Adapter names and their settings are not judged here: they belong to the
adapter registry.
"""

from __future__ import annotations

from sparkserve.profiles.layers import (
    Assignment,
    Layer,
    layer_from_cluster,
    layer_from_environment,
    layer_from_settings,
    layer_from_values,
)
from sparkserve.profiles.resolve import ResolvedProfile, load
from sparkserve.profiles.sources import ProfileSource, builtin_dir, find, names, user_dir

__all__ = [
    "Assignment",
    "Layer",
    "ProfileSource",
    "ResolvedProfile",
    "builtin_dir",
    "find",
    "layer_from_cluster",
    "layer_from_environment",
    "layer_from_settings",
    "layer_from_values",
    "load",
    "names",
    "user_dir",
]
