"""How the ranks of the light engine meet: one TCP connection of each to rank 0, kept open.

Must not know what the ranks do together.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

from sparkserve.sim.light_options import Options

_RETRY_S = 0.05
_GO = b"go\n"


class MeetingError(Exception):
    """The ranks cannot meet; the message is what the engine would print."""


def meet(options: Options) -> list[socket.socket]:
    """Wait until every rank is there.

    Returns the connections to the peers: all others on rank 0, rank 0 on the others; none for
    a single node.

    Raises:
        MeetingError: the port is taken, or the ranks disagree about their number.
    """
    if options.dist_address is None or options.nodes == 1:
        return []
    if options.rank == 0:
        return _gather(options.dist_address, options.nodes)
    return [_join(options.dist_address, options.rank, options.nodes)]


def wait_for_loss(peers: list[socket.socket]) -> None:
    """Return when a peer's connection ends; a peer never sends anything else."""
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            selector.register(peer, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    if connection.recv(64):
                        continue
                except ConnectionError:
                    pass  # reset is as much an end as a clean one
                return


def _gather(address: tuple[str, int], nodes: int) -> list[socket.socket]:
    try:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        listener = socket.create_server(address, family=family, backlog=16)
    except OSError as error:
        raise MeetingError(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
            f"local network address. port: {address[1]}, useIpv6: false, code: -{error.errno}, "
            f"name: EADDRINUSE, message: {(error.strerror or str(error)).lower()}"
        ) from error
    peers: dict[int, socket.socket] = {}
    with listener:
        while len(peers) < nodes - 1:
            connection, _ = listener.accept()
            hello = _hello(connection)
            if hello is None:
                connection.close()  # someone who only looked whether the port is open
                continue
            rank, world = hello
            if world != nodes or not 0 < rank < nodes or rank in peers:
                raise MeetingError(
                    f"RuntimeError: rank {rank} of {world} joined a group of {nodes}"
                )
            peers[rank] = connection
    for connection in peers.values():
        with contextlib.suppress(ConnectionError):  # seen as a loss by whoever waits for one
            connection.sendall(_GO)
    return list(peers.values())


def _hello(connection: socket.socket) -> tuple[int, int] | None:
    connection.settimeout(5)
    try:
        words = connection.makefile("rb").readline().split()
    except (TimeoutError, ConnectionError):
        return None
    connection.settimeout(None)
    if len(words) != 3 or words[0] != b"rank":
        return None
    return int(words[1]), int(words[2])


def _join(address: tuple[str, int], rank: int, nodes: int) -> socket.socket:
    while True:
        try:
            connection = socket.create_connection(address, timeout=5)
        except OSError:
            time.sleep(_RETRY_S)
            continue
        connection.settimeout(None)
        try:
            connection.sendall(f"rank {rank} {nodes}\n".encode())
            if connection.recv(len(_GO)) == _GO:
                return connection
        except ConnectionError:
            pass  # rank 0 went away before all had come: wait for its next life
        connection.close()
        time.sleep(_RETRY_S)
