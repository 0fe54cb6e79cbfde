"""Every fault does what it says, and is undone."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.testbed.cluster import Testbed
from tests.testbed.network import FABRIC
from tests.testbed.node import Node
from tests.testbed.plugin import MakeTestbed
from tests.testbed.shell import wait_until

pytestmark = pytest.mark.testbed


def banner(node: Node, *, timeout_s: float = 2) -> bytes:
    """First bytes that the node's sshd sends; raises what the socket raises."""
    with socket.create_connection((node.address, 22), timeout_s) as connection:
        connection.settimeout(timeout_s)
        return connection.recv(8)


def ping(node: Node, target: str, *options: str) -> subprocess.CompletedProcess[str]:
    return node.inside(["ping", "-c", "1", "-W", "1", *options, target], check=False)


@pytest.fixture
def inside(testbed: Testbed) -> Iterator[Testbed]:
    with testbed.enter():
        yield testbed


def test_a_stopped_sshd_refuses_while_its_sessions_go_on(inside: Testbed) -> None:
    node = inside.nodes[0]
    session = subprocess.Popen(
        inside.ssh_argv(node, ["cat"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with session:
        assert session.stdin is not None
        assert session.stdout is not None
        print("before", file=session.stdin, flush=True)
        assert session.stdout.readline() == "before\n"
        with node.sshd(on=False):
            with pytest.raises(ConnectionRefusedError):
                banner(node)
            print("during", file=session.stdin, flush=True)
            assert session.stdout.readline() == "during\n"
        assert banner(node) == b"SSH-2.0-"
        session.stdin.close()
        assert session.wait() == 0


def test_a_black_hole_answers_nothing_at_all(inside: Testbed) -> None:
    node = inside.nodes[1]
    with node.blackhole():
        with pytest.raises(TimeoutError):
            banner(node, timeout_s=0.3)
        assert ping(node, inside.nodes[0].fabric_address).returncode != 0
    assert banner(node) == b"SSH-2.0-"


def test_rejected_ssh_is_refused_at_once_and_other_ports_are_not(inside: Testbed) -> None:
    node = inside.nodes[2]
    with node.reject_ssh():
        with pytest.raises(ConnectionRefusedError):
            banner(node)
        assert ping(inside.nodes[0], node.address).returncode == 0
    assert banner(node) == b"SSH-2.0-"


def test_total_loss_is_silence_and_half_loss_loses_some(inside: Testbed) -> None:
    first, second = inside.nodes[:2]
    with second.loss(1.0):
        assert ping(first, second.address).returncode != 0
    with second.loss(0.5):
        argv = ["ping", "-q", "-c", "200", "-i", "0.002", "-W", "1", second.address]
        report = first.inside(argv, check=False).stdout
        received = int(re.search(r"(\d+) received", report).group(1))
        # 200 coins: outside 50..150 less often than once in 10^11 runs
        assert 50 < received < 150
    assert ping(first, second.address).returncode == 0


def test_a_shaped_link_is_slower_in_both_directions(inside: Testbed) -> None:
    node = inside.nodes[0]
    with node.rate(16):
        for source, sink in ((node, inside.nodes[1]), (inside.nodes[1], node)):
            # 1 MiB at 16 Mbit/s takes 0.52 s, less the 64 KiB bucket
            assert transfer_s(source, sink, 1 << 20) > 0.4
    assert "tbf" not in node.in_network("tc", "qdisc", "show", "dev", "enP7s7").stdout


def transfer_s(source: Node, sink: Node, size_bytes: int) -> float:
    receive = (
        "import socket,sys,time\n"
        "s=socket.create_server(('', 9999)); print('up', flush=True); c,_=s.accept()\n"
        "t=time.monotonic(); n=0\n"
        f"while n < {size_bytes}: n += len(c.recv(65536))\n"
        "print(time.monotonic()-t)\n"
    )
    sending = (
        f"import socket\ns=socket.create_connection(('{sink.address}', 9999), 5)\n"
        f"s.sendall(bytes({size_bytes})); s.recv(1)\n"
    )
    with ThreadPoolExecutor() as pool:
        receiver = pool.submit(sink.inside, [sys.executable, "-IS", "-c", receive])
        wait_until(lambda: "9999" in sink.in_network("ss", "-ltnH").stdout, what="receiver listens")
        source.inside([sys.executable, "-IS", "-c", sending], check=False)
        return float(receiver.result().stdout.split()[-1])


def test_the_slow_relay_adds_its_delay_each_way(inside: Testbed) -> None:
    node = inside.nodes[3]
    with node.slow(20):
        begin = time.monotonic()
        assert banner(node, timeout_s=5) == b"SSH-2.0-"
        # connect is one round trip, the banner another half: 60 ms, whatever the machine's load
        assert time.monotonic() - begin >= 0.059
        report = ping(inside.nodes[0], node.address).stdout
        assert float(re.search(r"time=([\d.]+)", report).group(1)) >= 39.5
    links = subprocess.run(
        ["ip", "-n", inside.network.switch, "link", "show", "master", "brm"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "m4@" in links
    assert "m4y" not in links
    assert banner(node) == b"SSH-2.0-"


def test_a_relay_with_loss_still_carries_tcp(inside: Testbed) -> None:
    node = inside.nodes[3]
    with node.slow(2, jitter_ms=1, loss=0.02):
        argv = inside.ssh_argv(node, ["head -c 200000 /dev/zero | wc -c"])
        assert subprocess.run(argv, capture_output=True, text=True).stdout.strip() == "200000"


def test_a_link_that_is_down_shows_in_sysfs_and_on_the_rdma_port(inside: Testbed) -> None:
    first, second = inside.nodes[:2]
    state = f"cat /sys/class/net/{FABRIC}/operstate /sys/class/infiniband/rocep1s0f0/ports/1/state"
    with first.link_down():
        assert first.inside(["sh", "-c", state]).stdout == "down\n1: DOWN\n"
        assert ping(second, first.fabric_address).returncode != 0
        assert ping(second, first.address).returncode == 0
    assert first.inside(["sh", "-c", state]).stdout == "up\n4: ACTIVE\n"
    assert ping(second, first.fabric_address).returncode == 0


def test_a_small_mtu_loses_jumbo_frames_only(inside: Testbed) -> None:
    first, second = inside.nodes[:2]
    jumbo = ("-M", "do", "-s", "8972")
    assert ping(first, second.fabric_address, *jumbo).returncode == 0
    with second.mtu(1500):
        assert second.read(f"/sys/class/net/{FABRIC}/mtu") == "1500\n"
        assert ping(first, second.fabric_address, *jumbo).returncode != 0
        assert ping(first, second.fabric_address).returncode == 0
    assert ping(first, second.fabric_address, *jumbo).returncode == 0


def test_a_filled_disk_takes_no_more(inside: Testbed) -> None:
    node = inside.nodes[0]
    write = ["head", "-c", "100000", "/dev/zero"]
    command = ["sh", "-c", f"{' '.join(write)} >/home/spark/new"]
    with node.fill("/home/spark", leave_kib=8):
        failed = node.inside(command, check=False)
        assert "No space left" in failed.stderr
    assert node.inside(command, check=False).returncode == 0


def test_a_read_only_disk_refuses_writes(inside: Testbed) -> None:
    node = inside.nodes[0]
    with node.readonly("/mnt/nvme"):
        assert "Read-only" in node.inside(["touch", "/mnt/nvme/x"], check=False).stderr
    node.inside(["touch", "/mnt/nvme/x"])


def test_the_nvme_can_be_a_real_file_system_with_direct_io(make_testbed: MakeTestbed) -> None:
    node = make_testbed(nodes=1, nvme="ext4", nvme_mib=64).nodes[0]
    assert node.inside(["findmnt", "-no", "FSTYPE", "/mnt/nvme"]).stdout == "ext4\n"
    copy = ["dd", "if=/dev/zero", "of=/mnt/nvme/x", "bs=4096", "count=16", "oflag=direct"]
    assert node.inside(copy).returncode == 0
    with node.readonly():
        assert "Read-only" in node.inside(copy, check=False).stderr


@pytest.mark.parametrize("init", ["mini", "systemd"])
def test_a_changed_host_key_is_noticed_by_ssh(make_testbed: MakeTestbed, init: str) -> None:
    testbed = make_testbed(nodes=1, init=init)
    argv = testbed.ssh_argv(testbed.nodes[0], ["true"])
    with testbed.nodes[0].replace_host_key():
        failed = subprocess.run(argv, capture_output=True, text=True)
        assert failed.returncode == 255
        assert "HOST IDENTIFICATION HAS CHANGED" in failed.stderr
    assert subprocess.run(argv).returncode == 0


def test_heal_undoes_everything_and_undo_twice_is_harmless(inside: Testbed) -> None:
    node = inside.nodes[0]
    faults = [node.blackhole(), node.loss(1.0), node.rate(1), node.slow(5)]
    node.heal()
    for fault in faults:
        fault.undo()
    assert node.active_faults == []
    assert banner(node) == b"SSH-2.0-"
    with contextlib.closing(socket.create_connection((node.address, 22), 2)) as open_one:
        assert open_one.recv(8)
