"""Command lines of the node plane."""

from __future__ import annotations


def node_command(python: str, *words: str) -> list[str]:
    """``python -m sparkserve.node ...`` on a node.

    Notes: with -P, so that a folder named sparkserve where the user stands is not taken for the
    one that is installed.
    """
    return [python, "-P", "-m", "sparkserve.node", *words]
