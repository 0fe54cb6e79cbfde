"""TCP sockets on which a dead link ends in seconds."""

from __future__ import annotations

import socket

DEAD_LINK_MS = 8_000
"""A link on which sent data stays unacknowledged this long is dead: longer than a Wi-Fi roam,
shorter than anybody's patience; without it the kernel tries for a quarter of an hour."""
KEEPALIVE_S = 3
"""Silence after which a probe is sent, so that an idle dead link is noticed as well."""


def open_socket(host: str, port: int, *, timeout_s: float) -> socket.socket:
    """Connect to the first address of a host that answers.

    timeout_s: per address; it stays set on the socket.

    Raises:
        OSError: none answered; the last address's error.
    """
    sock = socket.create_connection((host, port), timeout=timeout_s)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_LINK_MS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
