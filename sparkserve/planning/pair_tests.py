"""Tests between two nodes as data: what runs where, and as which reading its answer is known.

Nothing runs here. Every test is bounded in bytes and in time: a bandwidth test with large
buffers has frozen a node. A listener ends by itself, so a lost connection leaves nothing behind.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from sparkserve.model.base import Model
from sparkserve.units import GIB, format_bytes

BUFFER_CAP_BYTES = 256 << 20
"""Largest buffer of any test [proposal]; a collective of 16 GB froze a node."""
SECONDS = 3
"""How long one bandwidth test sends."""
TCP_CAP_BYTES = 8 * GIB
"""Most bytes of one TCP test; they pass through one buffer of 1 MiB and are not kept."""
PORTS = range(18515, 18700)
"""Where listeners open; below the range that the kernel gives to connections."""


class PairEnd(Model):
    """One side of a test."""

    node: str
    address: str
    """On the network under test."""
    interface: str | None = None
    mtu_bytes: int | None = None
    rdma: str | None = None
    """RDMA device; None = no RDMA test."""
    gid_index: int | None = None


class PairTest(Model):
    """One test: start the server, wait for its mark, run the client, read the client's answer."""

    id: str
    """Such as ``tcp spark1 -> spark2``."""
    what: str
    """How the answer is named as a reading, with the client as its node."""
    note: str
    """``client -> server``, kept with the reading."""
    client: str
    """Node that sends."""
    server: str
    """Node that listens; the client itself where nothing must listen."""
    client_command: str
    server_command: str | None = None
    ready: str = "listening"
    """Text that the server prints when it listens."""
    timeout_s: float = 30.0
    needs: str | None = None
    """Program that both nodes must have; None = nothing besides a plain system."""
    load_bytes: int = 0
    """Memory that it takes on either node, at most."""


def refused(size_bytes: int, available_bytes: int | None = None) -> str | None:
    """Why a test with such buffers must not run; None = it may.

    Sender and receiver each hold it, and a collective holds input and output.
    """
    if size_bytes <= 0:
        return f"a test needs a size above 0, got {size_bytes}"
    needed = 2 * size_bytes
    if available_bytes is not None and needed > available_bytes:
        return (
            f"needs about {format_bytes(needed)} of {format_bytes(available_bytes)} available"
            " memory: it would freeze the node"
        )
    if size_bytes > BUFFER_CAP_BYTES:
        return f"{format_bytes(size_bytes)} is above the cap of {format_bytes(BUFFER_CAP_BYTES)}"
    return None


def rounds(tests: Sequence[PairTest]) -> tuple[tuple[PairTest, ...], ...]:
    """Tests in rounds in which no node takes part twice, in order."""
    left, done = list(tests), []
    while left:
        busy: set[str] = set()
        now = []
        for test in left:
            if not busy & {test.client, test.server}:
                busy |= {test.client, test.server}
                now.append(test)
        left = [test for test in left if test not in now]
        done.append(tuple(now))
    return tuple(done)


def jumbo_pings(ends: Sequence[PairEnd]) -> tuple[PairTest, ...]:
    """Every end to every other end, with the longest packet that its interface takes."""
    return tuple(
        PairTest(
            id=f"ping {one.node} -> {other.node} {other.address}",
            what="jumbo ping",
            note=_arrow(one, other),
            client=one.node,
            server=one.node,
            client_command=(
                f"ping -n -c 2 -W 2 -M do -s {(one.mtu_bytes or 1500) - 28}"
                f" {_bound(one)}{shlex.quote(other.address)}"
            ),
            timeout_s=10,
        )
        for one, other in _ordered(ends)
    )


def cable_pings(ends: Sequence[PairEnd]) -> tuple[PairTest, ...]:
    """Five echoes bound to the interface, as in the qualification of a cable."""
    return tuple(
        PairTest(
            id=f"cable ping {one.node} -> {other.node} {other.address}",
            what="fabric ping",
            note=_arrow(one, other),
            client=one.node,
            server=one.node,
            client_command=f"ping -n -c 5 -i 0.2 -W 2 {_bound(one)}{shlex.quote(other.address)}",
            timeout_s=15,
        )
        for one, other in _ordered(ends)
    )


_LISTEN = """\
import socket, sys, time
address, port, limit = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with socket.create_server((address, port)) as door:
    door.settimeout(limit)
    print("listening", flush=True)
    peer, _ = door.accept()
    with peer:
        peer.settimeout(limit)
        buffer, total, begin = bytearray(1 << 20), 0, time.monotonic()
        while got := peer.recv_into(buffer):
            total += got
        spent = time.monotonic() - begin
        peer.sendall(f"bytes={total} seconds={spent:.4f}\\n".encode())
"""
_SEND = """\
import socket, sys, time
own, address, port, seconds, cap = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
try:
    with socket.create_connection((address, port), 5, (own, 0)) as peer:
        peer.settimeout(seconds + 10)
        block, total, end = bytes(1 << 20), 0, time.monotonic() + seconds
        while time.monotonic() < end and total < cap:
            peer.sendall(block)
            total += len(block)
        peer.shutdown(socket.SHUT_WR)
        print(peer.makefile().readline().strip())
except OSError as error:
    print("no connection:", error)
"""
_PROBE = """\
import socket, sys, time
for text in sys.argv[2:]:
    begin = time.monotonic()
    try:
        socket.create_connection((sys.argv[1], int(text)), 3).close()
        word = f"ok {time.monotonic() - begin:.3f}"
    except ConnectionRefusedError:
        word = "refused"
    except TimeoutError:
        word = "timeout"
    except OSError:
        word = "unreachable"
    print(f"{sys.argv[1]}:{text} {word}")
"""
_OPEN = """\
import select, socket, sys, time
doors = [socket.create_server((sys.argv[1], int(text))) for text in sys.argv[3:]]
print("listening", flush=True)
end, left = time.monotonic() + float(sys.argv[2]), len(doors)
while left > 0 and (rest := end - time.monotonic()) > 0:
    for door in select.select(doors, [], [], rest)[0]:
        door.accept()[0].close()
        left -= 1
"""


def _python(code: str, *arguments: object) -> str:
    words = " ".join(shlex.quote(str(one)) for one in arguments)
    return f"python3 -c {shlex.quote(code)} {words}"


def tcp_tests(
    ends: Sequence[PairEnd], seconds: int = SECONDS, first_port: int = PORTS.start
) -> tuple[PairTest, ...]:
    """One stream from every end to every other, with nothing installed besides python3."""
    limit = seconds + 10
    return tuple(
        PairTest(
            id=f"tcp {one.node} -> {other.node} {other.address}",
            what="tcp pair test",
            note=_arrow(one, other),
            client=one.node,
            server=other.node,
            server_command=_python(_LISTEN, other.address, port, limit),
            client_command=_python(_SEND, one.address, other.address, port, seconds, TCP_CAP_BYTES),
            timeout_s=limit + 10,
            needs="python3",
            load_bytes=2 << 20,
        )
        for port, (one, other) in _numbered(ends, first_port)
    )


def port_probes(
    ends: Sequence[PairEnd], ports: Sequence[int] = (20000, 41873, 50655)
) -> tuple[PairTest, ...]:
    """Connections to listeners on several ports, both ways; for firewalls, without root."""
    return tuple(
        PairTest(
            id=f"ports {one.node} -> {other.node} {other.address}",
            what="connect probe",
            note=_arrow(one, other),
            client=one.node,
            server=other.node,
            server_command=_python(_OPEN, other.address, 12, *ports),
            client_command=_python(_PROBE, other.address, *ports),
            needs="python3",
        )
        for one, other in _ordered(ends)
    )


def rdma_tests(
    ends: Sequence[PairEnd],
    size_bytes: int = 65536,
    seconds: int = SECONDS,
    first_port: int = PORTS.start,
) -> tuple[PairTest, ...]:
    """``ib_write_bw`` from every end to every other, where both have a device and a GID index.

    Raises:
        ValueError: buffers above the cap.
    """
    queues = 8
    problem = refused(size_bytes * queues)
    if problem is not None:
        raise ValueError(problem)
    able = [end for end in ends if end.rdma is not None and end.gid_index is not None]
    tests = []
    for port, (one, other) in _numbered(able, first_port):
        common = f"-q {queues} -s {size_bytes} -D {seconds} --report_gbits -p {port} -F"
        tests.append(
            PairTest(
                id=f"rdma {one.node} {one.rdma} -> {other.node} {other.rdma}",
                what=f"ib_write_bw -d {one.rdma}",
                note=_arrow(one, other),
                client=one.node,
                server=other.node,
                server_command=(
                    f"echo listening; timeout {seconds + 20} ib_write_bw -d {other.rdma}"
                    f" -x {other.gid_index} {common}"
                ),
                client_command=(
                    f"sleep 1; timeout {seconds + 15} ib_write_bw -d {one.rdma}"
                    f" -x {one.gid_index} {common} {shlex.quote(other.address)}"
                ),
                timeout_s=seconds + 25,
                needs="ib_write_bw",
                load_bytes=size_bytes * queues,
            )
        )
    return tuple(tests)


PAYLOADS_BYTES = (12288, 16384)
"""Payloads with which a cable is qualified; preflight section 7."""


def latency_tests(ends: Sequence[PairEnd], first_port: int = PORTS.start) -> tuple[PairTest, ...]:
    """``ib_write_lat`` with 10,000 writes of each payload, as in the qualification of a cable."""
    able = [end for end in ends if end.rdma is not None and end.gid_index is not None]
    tests = []
    for size_bytes in PAYLOADS_BYTES:
        for port, (one, other) in _numbered(able, first_port):
            common = f"-s {size_bytes} -n 10000 -p {port} -F"
            tests.append(
                PairTest(
                    id=f"latency {size_bytes} {one.node} {one.rdma} -> {other.node} {other.rdma}",
                    what=f"ib_write_lat -d {one.rdma}",
                    note=_arrow(one, other),
                    client=one.node,
                    server=other.node,
                    server_command=(
                        f"echo listening; timeout 25 ib_write_lat -d {other.rdma}"
                        f" -x {other.gid_index} {common}"
                    ),
                    client_command=(
                        f"sleep 1; timeout 20 ib_write_lat -d {one.rdma} -x {one.gid_index}"
                        f" {common} {shlex.quote(other.address)}"
                    ),
                    needs="ib_write_lat",
                    load_bytes=size_bytes,
                )
            )
    return tuple(tests)


def counter_reads(ends: Sequence[PairEnd], *, after: bool) -> tuple[PairTest, ...]:
    """Error counters of every end's interface, to be read before and after the other tests."""
    when = "after" if after else "before"
    names = "rx_errors tx_errors rx_crc_errors rx_frame_errors tx_carrier_errors rx_length_errors"
    tests = []
    for end in ends:
        if end.interface is None:
            continue
        folder = f"/sys/class/net/{shlex.quote(end.interface)}"
        files = " ".join(f"{folder}/statistics/{name}" for name in names.split())
        tests.append(
            PairTest(
                id=f"counters {when} {end.node} {end.interface}",
                what=f"link counters {when} the tests",
                note="",
                client=end.node,
                server=end.node,
                client_command=f"grep -H . {files} {folder}/carrier_down_count 2>/dev/null; :",
                timeout_s=10,
            )
        )
    return tuple(tests)


def _arrow(one: PairEnd, other: PairEnd) -> str:
    return f"{one.node} -> {other.node}"


def _bound(end: PairEnd) -> str:
    return f"-I {shlex.quote(end.interface)} " if end.interface else ""


def _ordered(ends: Sequence[PairEnd]) -> Iterator[tuple[PairEnd, PairEnd]]:
    for one in ends:
        for other in ends:
            if one.node != other.node:
                yield one, other


def _numbered(
    ends: Sequence[PairEnd], first_port: int
) -> Iterator[tuple[int, tuple[PairEnd, PairEnd]]]:
    """Pairs with a port each, so that a listener that lingers is in nobody's way."""
    for number, pair in enumerate(_ordered(ends)):
        yield first_port + number % len(PORTS), pair
