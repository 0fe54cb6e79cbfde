"""Guards believe only who holds the run's key, in order and once, and wait for nobody in vain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sparkserve.model.engine_spec import EngineSpec
from sparkserve.node.peers import AuthenticityError, Channel, HeadLink, Stop, WorkerLink
from tests.node.harness import Run

KEY, OTHER = b"k" * 32, b"o" * 32
DEADLINE_S = 20.0
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Told:
    """What a link tells its guard."""

    lost: list[tuple[int, str]] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)

    def peer_lost(self, rank: int, reason: str) -> None:
        self.lost.append((rank, reason))

    def stop_received(self, stop: Stop) -> None:
        self.stops.append(stop)


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Pair, Pair]]:
    """Both ends of one TCP connection."""
    accepted: asyncio.Future[Pair] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(
        lambda reader, writer: accepted.set_result((reader, writer)), "127.0.0.1", 0
    )
    ours = await asyncio.open_connection(*server.sockets[0].getsockname())
    theirs = await accepted
    try:
        yield ours, theirs
    finally:
        for _, writer in (ours, theirs):
            writer.close()
        server.close()


def within(work: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine; a test that hangs fails."""

    async def bounded() -> None:
        await asyncio.wait_for(work(), DEADLINE_S)
        # Connections are closed by the tasks that serve them.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*rest, return_exceptions=True), DEADLINE_S)
        await asyncio.sleep(0)

    asyncio.run(bounded())


def specs(tmp_path: Path, count: int = 2) -> list[EngineSpec]:
    return [rank.spec for rank in Run(tmp_path).make([""] * count)]


def test_message_arrives_as_it_was_sent() -> None:
    async def work() -> None:
        async with pair() as (ours, theirs):
            head, rank = Channel(ours, KEY, "s", "head"), Channel(theirs, KEY, "s", "rank")
            head.send("beat")
            head.send_stop(Stop('a „quoted" reason', 2, failed=True))
            assert (await rank.receive())[0] == "beat"
            kind, body = await rank.receive()
            assert (kind, body["origin"], body["failed"]) == ("stop", 2, True)
            assert body["reason"] == 'a „quoted" reason'

    within(work)


@pytest.mark.parametrize("trick", ["replay", "reflect", "change", "other key", "other session"])
def test_message_that_the_peer_did_not_send_now_is_not_believed(trick: str) -> None:
    async def work() -> None:
        async with pair() as (ours, theirs), pair() as (spy_in, spy_out):
            key = OTHER if trick == "other key" else KEY
            session = "t" if trick == "other session" else "s"
            side = "rank" if trick == "reflect" else "head"
            Channel(spy_in, key, session, side).send_stop(Stop("end", 0, failed=False))
            line = await spy_out[0].readuntil()
            rank = Channel(theirs, KEY, "s", "rank")
            if trick == "replay":
                ours[1].write(line)
                assert (await rank.receive())[0] == "stop"
            if trick == "change":
                message = json.loads(line)
                message["body"]["origin"] = 1
                line = json.dumps(message).encode() + b"\n"
            ours[1].write(line)
            with pytest.raises(AuthenticityError):
                await rank.receive()

    within(work)


@pytest.mark.parametrize("line", [b"no json\n", b"[1]\n", b"{}", b"x" * 200_000])
def test_line_that_is_no_message_ends_the_connection(line: bytes) -> None:
    async def work() -> None:
        async with pair() as (ours, theirs):
            ours[1].write(line)
            ours[1].write_eof()
            with pytest.raises(ConnectionError):
                await Channel(theirs, KEY, "s", "rank").receive()

    within(work)


def test_rank_without_the_key_stays_outside_and_the_right_one_joins_beside_idle_strangers(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        head_spec, rank_spec = specs(tmp_path)
        told = Told()
        head = HeadLink(head_spec, KEY, told)
        await head.start()
        where = (head_spec.guard.head_address, head_spec.guard.port)
        strangers = [await asyncio.open_connection(*where) for _ in range(50)]
        impostor, worker = WorkerLink(rank_spec, OTHER, Told()), WorkerLink(rank_spec, KEY, told)
        await impostor.start()
        await asyncio.sleep(0)
        assert head.joined == {}
        await worker.start()
        while 1 not in head.joined:
            await asyncio.sleep(0.01)
        await head.announce(Stop("end", 0, failed=False))
        while not told.stops:
            await asyncio.sleep(0.01)
        assert told.stops == [Stop("end", 0, failed=False)]
        await impostor.linger(0)
        for _, writer in strangers:
            writer.close()
        await head.linger(0)

    within(work)


def test_rank_does_not_believe_a_head_without_the_key(tmp_path: Path) -> None:
    async def work() -> None:
        _, spec = specs(tmp_path)
        spec = spec.model_copy(
            update={"guard": spec.guard.model_copy(update={"join_timeout_s": 0.1})}
        )

        async def pretend(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'{"nonce": "00"}\n{"mac": "00"}\n')
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(pretend, "127.0.0.1", spec.guard.port)
        told = Told()
        await WorkerLink(spec, KEY, told).start()
        while not told.lost:
            await asyncio.sleep(0.01)
        assert told.lost == [(0, "no connection to its guard: rank 0 does not hold the run's key")]
        server.close()

    within(work)


def test_rank_that_ends_as_rank_0_does_waits_for_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        head_spec, rank_spec = specs(tmp_path)
        told = Told()
        head, worker = HeadLink(head_spec, KEY, Told()), WorkerLink(rank_spec, KEY, told)
        await head.start()
        await worker.start()
        while 1 not in head.joined:
            await asyncio.sleep(0.01)
        await head.announce(Stop("stopped on request", 0, failed=False))
        while not told.stops:
            await asyncio.sleep(0.01)
        # Its own stop came first, but there is no connection left to tell it on.
        await worker.announce(Stop("stopped on request", 1, failed=False))
        await worker.linger(10 * DEADLINE_S)
        await head.linger(0)

    within(work)


class CancelsWhoDrains:
    """A writer whose drain is done in the very moment in which the waiting task is cancelled."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None

    async def drain(self) -> None:
        await asyncio.sleep(0)
        if self.task is not None:
            self.task.cancel()


def test_cancelled_heartbeat_ends_although_its_last_beat_went_out() -> None:
    async def beat(channel: Channel, beats: list[int]) -> None:
        while len(beats) < 5:
            await channel.flush()
            beats.append(1)
            await asyncio.sleep(0)

    async def main() -> tuple[bool, int]:
        writer, beats = CancelsWhoDrains(), list[int]()
        channel = Channel((asyncio.StreamReader(), writer), KEY, "s", "head")  # type: ignore[arg-type]
        writer.task = asyncio.create_task(beat(channel, beats))
        await asyncio.wait({writer.task})
        return writer.task.cancelled(), len(beats)

    cancelled, beats = asyncio.run(main())
    assert cancelled
    assert beats <= 1
