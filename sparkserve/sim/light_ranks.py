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
_HERE = b"here\n"


class MeetingError(Exception):
    """The ranks cannot meet; the message is what the engine would print."""


class PeerLost(Exception):
    """A peer's connection ended."""


class Group:
    """The ranks that have met; the head (rank 0) is connected to all others, they to it."""

    def __init__(self, peers: list[socket.socket], *, is_head: bool) -> None:
        self._peers = peers
        self._is_head = is_head

    def barrier(self) -> None:
        """Return when every rank has come here, as SGLang's ranks wait for the slowest loader.

        Raises:
            PeerLost: one never will.
        """
        if not self._is_head:
            self._send(_HERE)
        for peer in self._peers:
            self._expect(peer)
        if self._is_head:
            self._send(_HERE)

    def wait_for_loss(self) -> None:
        """Return when a peer's connection ends; never, where there is no peer."""
        with selectors.DefaultSelector() as selector:
            for peer in self._peers:
                selector.register(peer, selectors.EVENT_READ)
            selector.select()  # outside barriers a peer sends nothing but its end

    def _send(self, message: bytes) -> None:
        try:
            for peer in self._peers:
                peer.sendall(message)
        except ConnectionError as error:
            raise PeerLost from error

    def _expect(self, peer: socket.socket) -> None:
        try:
            answer = peer.recv(len(_HERE), socket.MSG_WAITALL)
        except ConnectionError as error:
            raise PeerLost from error
        if answer != _HERE:
            raise PeerLost


def meet(options: Options) -> Group:
    """Wait until every rank is there.

    Raises:
        MeetingError: the port is taken, or the ranks disagree about their number.
    """
    if options.dist_address is None or options.nodes == 1:
        return Group([], is_head=True)
    if options.rank == 0:
        return Group(_gather(options.dist_address, options.nodes), is_head=True)
    return Group([_join(options.dist_address, options.rank, options.nodes)], is_head=False)


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
