"""Import the ``.env`` of the published V4.1 recipes: cluster, profile values, and the rest.

Every key of the file ends up in exactly one place: used, or dropped with the reason. Passwords
and keys are never stored and never shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkserve.errors import ConfigError
from sparkserve.interop.dotenv import parse_dotenv
from sparkserve.interop.env_nodes import take_cluster
from sparkserve.interop.env_source import EnvSource
from sparkserve.interop.env_values import take_overrides
from sparkserve.model.cluster import Cluster


@dataclass(frozen=True)
class Dropped:
    """One key that was not taken over."""

    key: str
    reason: str


@dataclass(frozen=True)
class ImportedEnv:
    """What an env file says, in our nouns."""

    cluster: Cluster
    overrides: Mapping[str, Any]
    """Nested profile values, for the ``[overrides]`` table of the cluster file."""
    used: Mapping[str, str]
    """Key of the env file -> where its value went, such as ``serving.port``."""
    dropped: tuple[Dropped, ...]
    """Everything else, in the file's order."""


def import_env_file(path: Path, *, name: str, head_is_local: bool = False) -> ImportedEnv:
    """Read an env file.

    name: of the cluster. head_is_local: whether rank 0 is this machine, reached without SSH.

    Raises:
        ConfigError: the file cannot be read, a line is malformed, or node lists, counts and
            numbers contradict each other.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    return import_env_text(text, where=str(path), name=name, head_is_local=head_is_local)


def import_env_text(
    text: str, *, where: str, name: str, head_is_local: bool = False
) -> ImportedEnv:
    """Read the text of an env file; ``where`` names it in messages; else as the file."""
    source = EnvSource(parse_dotenv(text, where=where), where)
    cluster = take_cluster(source, name, head_is_local=head_is_local)
    overrides = take_overrides(source, nodes=len(cluster.nodes))
    dropped = source.finish()
    return ImportedEnv(
        cluster=cluster,
        overrides=overrides,
        used=source.used,
        dropped=tuple(Dropped(key, reason) for key, reason in dropped),
    )
