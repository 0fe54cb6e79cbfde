"""What the shell may complete: names that exist, never a question to a node."""

from __future__ import annotations


def profiles(incomplete: str) -> list[str]:
    """Profile names."""
    from sparkserve import profiles as room

    return [name for name in room.names() if name.startswith(incomplete)]


def clusters(incomplete: str) -> list[str]:
    """Names of saved clusters."""
    from sparkserve import clusters as room

    return [name for name in room.names() if name.startswith(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Ids of recorded runs, newest first."""
    from sparkserve import runs as room

    return [entry.run_id for entry in room.list_runs() if entry.run_id.startswith(incomplete)]


def nodes(incomplete: str) -> list[str]:
    """Nodes of the newest run."""
    from sparkserve import runs as room

    newest = room.latest()
    if newest is None:
        return []
    names = [node.name for node in newest.record().cluster.nodes]
    return [name for name in names if name.startswith(incomplete)]
