"""What is wanted, as far as a text tells: a profile of ours, or one of a neighbour's recipe.

Every field may be unknown. Checks compare it with what was seen; a full profile is rendered to
the same fields, so that one rule serves the live doctor and a forum's paste.
"""

from __future__ import annotations

from typing import Any

from sparkserve.facts.reader import Ask, Fact, Reader


class Wanted(Fact):
    """The wish; None = not said."""

    tp: int | None = None
    ep: int | None = None
    nodes: int | None = None
    topology: str | None = None
    rank_of: dict[str, int] | None = None
    """Rank by node name."""
    hca: str | None = None
    """Selector as in ``NCCL_IB_HCA``."""
    single_rail: bool | None = None
    gid_index: int | None = None
    fabric_interface: str | None = None
    socket_interface: str | None = None
    fabric_subnet: str | None = None
    context_tokens: int | None = None
    kv_tokens: int | None = None
    mem_fraction: float | None = None
    chunk_tokens: int | None = None
    max_running_requests: int | None = None
    default_max_tokens: int | None = None
    draft_tokens: int | None = None
    revision: str | None = None
    layout: str | None = None
    engram_dir: str | None = None
    model_path: str | None = None
    ports: tuple[int, ...] = ()
    start_memory_gib: float | None = None
    keys: dict[str, Any] | None = None
    """Every key of the text as it stands, dotted; for rules about one setting alone."""


READERS: tuple[Reader, ...] = ()
ASKS: tuple[Ask, ...] = ()
