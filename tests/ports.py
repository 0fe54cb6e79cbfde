"""TCP ports for servers of tests."""

from __future__ import annotations

import random
import socket

_TRIES = 200
# Below the range that the kernel gives to connections: a port out of that may belong to one by the
# time the server binds it, and whoever polls such a port can even connect to itself.
_FIRST, _LAST = 21_000, 32_000


def free_port() -> int:
    """A port that nobody on loopback holds."""
    for _ in range(_TRIES):
        port = random.randint(_FIRST, _LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port from {_FIRST} to {_LAST} in {_TRIES} tries")
