"""Copies Ethernet frames between two interfaces with delay, jitter and loss.

argv: INTERFACE INTERFACE DELAY_S JITTER_S LOSS. Prints ``relaying`` once it does.
"""

import contextlib
import heapq
import itertools
import random
import select
import socket
import struct
import sys
import time

ETH_P_ALL = 3
PACKET_OUTGOING = 4
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 263, 1, 1
LARGEST_FRAME_BYTES = 70_000


def open_port(interface):
    """A raw socket that sees every frame of one interface."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    port.bind((interface, 0))
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    index = socket.if_nametoindex(interface)
    request = struct.pack("iHH8s", index, PACKET_MR_PROMISC, 0, b"")
    port.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, request)
    port.setblocking(False)
    return port


def main():
    """Relay for ever."""
    left, right = open_port(sys.argv[1]), open_port(sys.argv[2])
    delay_s, jitter_s, loss = (float(word) for word in sys.argv[3:6])
    other = {left: right, right: left}
    waiting = []
    order = itertools.count()
    print("relaying", flush=True)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, port, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # a link that is down loses its frames
                port.send(frame)
        pause_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        for port in select.select([left, right], [], [], pause_s)[0]:
            with contextlib.suppress(BlockingIOError):
                for _ in range(64):
                    frame, sender = port.recvfrom(LARGEST_FRAME_BYTES)
                    if sender[2] == PACKET_OUTGOING or random.random() < loss:
                        continue
                    due = time.monotonic() + delay_s + random.uniform(-jitter_s, jitter_s)
                    heapq.heappush(waiting, (due, next(order), other[port], frame))


main()
