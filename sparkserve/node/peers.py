"""How the guards of one run stay in touch: rank 0 listens, every other rank keeps a connection.

Each side sends a beat every ``heartbeat_s``. A side that stays silent for ``lost_after_s``
(power loss, dark link), or whose connection breaks and does not come back within
``RECONNECT_S`` (its guard died), is lost, and a lost rank ends the run. Every message is
authenticated with the run's key, so nobody else on the network can stop a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
from dataclasses import dataclass, field
from typing import Protocol

from sparkserve.model.base import canonical_json
from sparkserve.model.engine_spec import EngineSpec

RECONNECT_S = 1.5
"""Grace for a broken connection: long enough for a reset, short enough to stop in seconds."""
_RETRY_S = 0.2
_MAX_LINE_BYTES = 16_384

log = logging.getLogger(__name__)


class AuthenticityError(Exception):
    """A message that the holder of the run's key did not write."""


@dataclass(frozen=True)
class Stop:
    """The end of a run: who began it and why."""

    reason: str
    origin_rank: int
    failed: bool
    gentle: bool = False
    """Running requests may finish; never where something failed."""


class Listener(Protocol):
    """Told by a link what happens at the other ranks; called in the event loop."""

    def peer_lost(self, rank: int, reason: str) -> None:
        """A rank's guard is gone."""

    def stop_received(self, stop: Stop) -> None:
        """Another rank ends the run."""


class Channel:
    """One authenticated connection between two guards of a run."""

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        key: bytes,
        session: str,
        side: str,
    ) -> None:
        self._reader, self._writer = streams
        self._key = key
        self._session = session
        self._side = side
        self._sent = 0
        self._received = 0

    def send(self, kind: str, **body: object) -> None:
        """Queue one message; a broken connection shows at the next receive."""
        self._sent += 1
        payload = {"seq": self._sent, "kind": kind, "body": body}
        line = {"mac": self._mac(self._side, payload), **payload}
        self._writer.write(json.dumps(line).encode() + b"\n")

    def send_stop(self, stop: Stop) -> None:
        """Queue the message that ends the run."""
        self.send(
            "stop",
            reason=stop.reason,
            origin=stop.origin_rank,
            failed=stop.failed,
            gentle=stop.gentle,
        )

    async def receive(self) -> tuple[str, dict[str, object]]:
        """Next message as (kind, body).

        Raises:
            AuthenticityError: forged, replayed or out of order.
            ConnectionError: the other side closed.
        """
        message = await read_line(self._reader)
        self._received += 1
        other = "rank" if self._side == "head" else "head"
        payload = {"seq": self._received, "kind": message.get("kind"), "body": message.get("body")}
        if not hmac.compare_digest(str(message.get("mac")), self._mac(other, payload)):
            raise AuthenticityError(f"message {self._received} of {self._session}")
        body = message["body"]
        return str(message["kind"]), body if isinstance(body, dict) else {}

    async def flush(self) -> None:
        """Wait until queued messages were handed to the kernel; a dead peer is no error here."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            # Not wait_for: before Python 3.12 it forgets a cancellation that comes together with
            # the result, and the heartbeat then went on for ever in a guard that was to end.
            async with asyncio.timeout(1.0):
                await self._writer.drain()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    def _mac(self, side: str, payload: dict[str, object]) -> str:
        return sign(self._key, f"{self._session}|{side}|{canonical_json(payload)}")


def sign(key: bytes, text: str) -> str:
    """HMAC-SHA256 of a text, as 64 hex digits."""
    return hmac.new(key, text.encode(), "sha256").hexdigest()


async def read_line(reader: asyncio.StreamReader) -> dict[str, object]:
    """One JSON object that fills a line.

    Raises:
        ConnectionError: closed, or no such line (too long, not JSON, not an object).
    """
    try:
        line = await reader.readuntil(b"\n")
        message = json.loads(line)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise ConnectionError("closed by the other side") from error
    if not isinstance(message, dict):
        raise ConnectionError("not a JSON object")
    return message


@dataclass
class HeadLink:
    """Rank 0's side: accepts every other rank and passes stops on."""

    spec: EngineSpec
    key: bytes
    listener: Listener
    joined: dict[int, Channel] = field(default_factory=dict)
    _stop: Stop | None = None
    _told: set[int] = field(default_factory=set)
    _server: asyncio.Server | None = None
    _watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen on the head address and begin to wait for the other ranks.

        Raises:
            OSError: the address is not ours, or the port is taken.
        """
        guard = self.spec.guard
        self._server = await asyncio.start_server(
            self._serve, guard.head_address, guard.port, limit=_MAX_LINE_BYTES
        )
        self._watch = asyncio.create_task(self._expect_everybody())

    async def announce(self, stop: Stop) -> None:
        """Tell every joined rank, and every one that still joins, that the run ends."""
        self._stop = stop
        for rank, channel in list(self.joined.items()):
            if rank != stop.origin_rank:
                await self._tell(rank, channel, stop)

    async def linger(self, limit_s: float) -> None:
        """Stay until all ranks were told or the time is over, then close.

        After a failure that includes ranks that never joined: they may still be on their way.
        """
        deadline = asyncio.get_running_loop().time() + limit_s
        failed = self._stop is not None and self._stop.failed
        everybody = set(range(1, self.spec.world_size)) if failed else set(self.joined)
        origin = {self._stop.origin_rank} if self._stop else set()
        while asyncio.get_running_loop().time() < deadline and not everybody <= self._told | origin:
            await asyncio.sleep(_RETRY_S)
        if self._server is not None:
            self._server.close()
        if self._watch is not None:
            self._watch.cancel()

    async def _expect_everybody(self) -> None:
        await asyncio.sleep(self.spec.guard.join_timeout_s)
        for rank in range(1, self.spec.world_size):
            if rank not in self.joined:
                self.listener.peer_lost(
                    rank, f"its guard did not join within {self.spec.guard.join_timeout_s:.0f} s"
                )
                return

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self.spec.guard.lost_after_s):
                rank, channel = await self._admit(reader, writer)
        except (ConnectionError, TimeoutError, AuthenticityError) as error:
            log.warning("turned a connection away: %s", error)
            writer.close()
            return
        self.joined[rank] = channel
        log.info("rank %d joined", rank)
        if self._stop is not None:
            await self._tell(rank, channel, self._stop)
        reason = await watch(channel, self.spec.guard.lost_after_s, self._hear, self._beat_s)
        channel.close()
        if self._stop is not None:
            self._told.add(rank)
        if reason is None:
            return
        if reason == "broken":
            await asyncio.sleep(RECONNECT_S)
            reason = "the connection to its guard broke and did not come back"
        if self.joined.get(rank) is channel and self._stop is None:
            self.listener.peer_lost(rank, reason)

    @property
    def _beat_s(self) -> float:
        return self.spec.guard.heartbeat_s

    def _hear(self, stop: Stop) -> None:
        self._told.add(stop.origin_rank)
        self.listener.stop_received(stop)

    async def _tell(self, rank: int, channel: Channel, stop: Stop) -> None:
        channel.send_stop(stop)
        await channel.flush()
        self._told.add(rank)

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[int, Channel]:
        nonce = secrets.token_hex(16)
        writer.write(json.dumps({"nonce": nonce}).encode() + b"\n")
        hello = await read_line(reader)
        rank, theirs = hello.get("rank"), hello.get("nonce")
        session = f"{self.spec.run_id}|{rank}|{nonce}|{theirs}"
        if not hmac.compare_digest(str(hello.get("mac")), sign(self.key, f"hello|{session}")):
            raise AuthenticityError("hello without the run's key")
        if not isinstance(rank, int) or not 0 < rank < self.spec.world_size:
            raise AuthenticityError(f"no rank {rank} in this run")
        writer.write(json.dumps({"mac": sign(self.key, f"welcome|{session}")}).encode() + b"\n")
        return rank, Channel((reader, writer), self.key, session, "head")


@dataclass
class WorkerLink:
    """The side of every other rank: one connection to rank 0, made again when it breaks."""

    spec: EngineSpec
    key: bytes
    listener: Listener
    _channel: Channel | None = None
    _stop: Stop | None = None
    _told: bool = False
    _met: bool = False
    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look for rank 0 in the background."""
        self._task = asyncio.create_task(self._keep_connected())

    async def announce(self, stop: Stop) -> None:
        """Tell rank 0 that the run ends, now or as soon as it can be reached."""
        self._stop = stop
        if stop.origin_rank != self.spec.rank:
            self._told = True
        elif self._channel is not None:
            await self._tell(self._channel, stop)

    async def linger(self, limit_s: float) -> None:
        """Keep trying to tell rank 0 until the time is over, then close.

        An asked-for stop before rank 0 was ever met is not waited for: who asked stops it too.
        """
        if self._stop is not None and not self._stop.failed and not self._met:
            limit_s = 0
        deadline = asyncio.get_running_loop().time() + limit_s
        while not self._told and asyncio.get_running_loop().time() < deadline:
            if self._task is None or self._task.done():
                # Rank 0 has ended the run itself, or is given up: nobody is left to be told.
                return
            await asyncio.sleep(_RETRY_S)
        if self._task is not None:
            self._task.cancel()

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        patience_s = self.spec.guard.join_timeout_s
        since = loop.time()
        while True:
            try:
                async with asyncio.timeout(self.spec.guard.lost_after_s):
                    self._channel = await self._join()
            except (OSError, TimeoutError, AuthenticityError) as error:
                if loop.time() - since > patience_s:
                    self.listener.peer_lost(0, f"no connection to its guard: {error}")
                    return
                await asyncio.sleep(_RETRY_S)
                continue
            self._met = True
            if self._stop is not None and not self._told:
                await self._tell(self._channel, self._stop)
            reason = await watch(
                self._channel,
                self.spec.guard.lost_after_s,
                self.listener.stop_received,
                self.spec.guard.heartbeat_s,
            )
            self._channel.close()
            self._channel = None
            if reason is None:
                return
            if reason != "broken":
                self.listener.peer_lost(0, reason)
                return
            patience_s, since = RECONNECT_S, loop.time()

    async def _tell(self, channel: Channel, stop: Stop) -> None:
        channel.send_stop(stop)
        await channel.flush()
        self._told = True

    async def _join(self) -> Channel:
        guard = self.spec.guard
        reader, writer = await asyncio.open_connection(
            guard.head_address, guard.port, limit=_MAX_LINE_BYTES
        )
        try:
            greeting = await read_line(reader)
            nonce = secrets.token_hex(16)
            session = f"{self.spec.run_id}|{self.spec.rank}|{greeting.get('nonce')}|{nonce}"
            hello = {
                "rank": self.spec.rank,
                "nonce": nonce,
                "mac": sign(self.key, f"hello|{session}"),
            }
            writer.write(json.dumps(hello).encode() + b"\n")
            welcome = await read_line(reader)
            expected = sign(self.key, f"welcome|{session}")
            if not hmac.compare_digest(str(welcome.get("mac")), expected):
                raise AuthenticityError("rank 0 does not hold the run's key")
        except BaseException:
            writer.close()
            raise
        return Channel((reader, writer), self.key, session, "rank")


class _OnStop(Protocol):
    def __call__(self, stop: Stop, /) -> None: ...


async def watch(
    channel: Channel, lost_after_s: float, on_stop: _OnStop, heartbeat_s: float
) -> str | None:
    """Beat and listen until the channel ends.

    Returns:
        None after a stop message; ``"broken"`` when the connection closed; otherwise the
        sentence that says how the peer was lost.
    """
    beats = asyncio.create_task(_beat(channel, heartbeat_s))
    try:
        while True:
            async with asyncio.timeout(lost_after_s):
                kind, body = await channel.receive()
            if kind == "stop":
                origin = body.get("origin")
                on_stop(
                    Stop(
                        reason=str(body.get("reason")),
                        origin_rank=origin if isinstance(origin, int) else -1,
                        failed=bool(body.get("failed")),
                        gentle=bool(body.get("gentle")),
                    )
                )
                return None
    except TimeoutError:
        return f"silent for {lost_after_s:.0f} s (power loss, or a dark link)"
    except AuthenticityError as error:
        return f"unauthentic message: {error}"
    except ConnectionError:
        return "broken"
    finally:
        beats.cancel()


async def _beat(channel: Channel, heartbeat_s: float) -> None:
    while True:
        channel.send("beat")
        await channel.flush()
        await asyncio.sleep(heartbeat_s)
