"""The stand-in tools of a node print what the real ones do, and follow the node's facts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.testbed.cluster import Testbed
from tests.testbed.node import Node
from tests.testbed.options import Options
from tests.testbed.plugin import require_testbed

pytestmark = pytest.mark.testbed


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    require_testbed()
    with Testbed(Options(nodes=1)) as made:
        yield made


@pytest.fixture
def node(testbed: Testbed) -> Node:
    """The node with the facts of a healthy Spark."""
    only = testbed.nodes[0]
    only.facts = type(only.facts)()
    only.set_fact()
    return only


def out(node: Node, *argv: str) -> str:
    return node.inside(argv).stdout


def as_user(testbed: Testbed, command: str) -> subprocess.CompletedProcess[str]:
    argv = testbed.ssh_argv(testbed.nodes[0], [command])
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_ports_and_interfaces_are_listed_in_both_ways(node: Node) -> None:
    assert out(node, "ibdev2netdev").splitlines() == [
        "roceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Up)",
        "roceP2p1s0f1 port 1 ==> enP2p1s0f1np1 (Down)",
        "rocep1s0f0 port 1 ==> enp1s0f0np0 (Up)",
        "rocep1s0f1 port 1 ==> enp1s0f1np1 (Down)",
    ]
    with node.link_down():
        assert "rocep1s0f0 port 1 ==> enp1s0f0np0 (Down)" in out(node, "ibdev2netdev")
        assert "roceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Up)" in out(node, "ibdev2netdev")


def gids(node: Node) -> dict[int, list[str]]:
    rows = [line.split() for line in out(node, "show_gids").splitlines()]
    return {int(row[2]): row[4:6] for row in rows if row[0] == "rocep1s0f0" and len(row) == 7}


def test_gids_of_an_address_move_and_leave_holes(node: Node) -> None:
    assert gids(node) == {2: ["10.77.1.11", "v1"], 3: ["10.77.1.11", "v2"]}
    node.set_fact(gid_shift=2)
    assert gids(node) == {4: ["10.77.1.11", "v1"], 5: ["10.77.1.11", "v2"]}
    node.set_fact(gid_shift=0, gid_hole=True)
    assert gids(node) == {2: ["10.77.1.11", "v1"], 4: ["10.77.1.11", "v2"]}


def test_active_mtu_follows_the_interface(node: Node) -> None:
    ask = ("sh", "-c", "ibv_devinfo -d rocep1s0f0 | grep active_mtu")
    assert out(node, *ask).split() == ["active_mtu:", "4096", "(5)"]
    with node.mtu(1500):
        assert out(node, *ask).split() == ["active_mtu:", "1024", "(3)"]


def test_pci_device_is_one_file_from_every_side(node: Node) -> None:
    node.set_sys("class/infiniband/rocep1s0f0/device/current_link_width", "2\n")
    for folder in (
        "class/infiniband/rocep1s0f0/device",
        "class/net/enp1s0f0np0/device",
        "bus/pci/devices/0000:01:00.0",
    ):
        assert node.read(f"/sys/{folder}/current_link_width") == "2\n"


def test_gpu_answers_any_columns_in_their_order(node: Node) -> None:
    node.set_fact(compute_apps=("77, python3, 90000 MiB",))
    query = "pstate,clocks.sm,power.draw,clocks_throttle_reasons.active,memory.used"
    asked = out(node, "nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits")
    assert asked == "P8, 208, 4.90, 0x0000000000000001, [N/A]\n"
    asked = out(node, "nvidia-smi", "--query-compute-apps=used_memory,pid", "--format=csv,noheader")
    assert asked == "90000 MiB, 77\n"
    assert "CUDA Version: 13.0" in out(node, "nvidia-smi")
    assert node.inside(["nvidia-smi", "--query-gpu=colour"], check=False).returncode == 2


def test_docker_fills_templates_and_refuses_strangers(testbed: Testbed, node: Node) -> None:
    running = {"Name": "/rank0", "Config": {"Env": ["A=1", "B=2"]}, "RestartCount": 3}
    ended = {"Name": "/old", "State": {"Status": "exited", "Running": False, "ExitCode": 137}}
    node.set_fact(docker_containers=(running, ended), docker_images=({"RepoTags": ["e:1"]},))
    assert out(node, "docker", "info", "-f", "{{.Driver}} {{.DefaultRuntime}}") == (
        "overlay2 nvidia\n"
    )
    assert out(node, "docker", "ps", "--format", "{{.Names}} {{.State}}") == "rank0 running\n"
    listed = out(node, "docker", "ps", "-a", "--format", "{{.Names}} {{.Status}}").splitlines()
    assert listed == ["rank0 Up 2 hours", "old Exited (137) 2 hours ago"]
    template = "{{range .Config.Env}}{{println .}}{{end}}"
    assert out(node, "docker", "inspect", "-f", template, "rank0").split() == ["A=1", "B=2"]
    assert json.loads(out(node, "docker", "inspect", "rank0"))[0]["RestartCount"] == 3
    asked = out(node, "docker", "image", "inspect", "-f", "{{.Os}}/{{.Architecture}}", "e:1")
    assert asked == "linux/arm64\n"
    node.set_fact(docker_access=False)
    refused = as_user(testbed, "docker ps")
    assert refused.returncode == 1
    assert "permission denied" in refused.stderr


def test_root_alone_reads_the_kernels_ring_and_the_firewall(testbed: Testbed, node: Node) -> None:
    node.set_fact(firewall=("22/tcp ALLOW IN Anywhere",), kernel_log=("one line",))
    assert as_user(testbed, "dmesg").returncode == 1
    assert as_user(testbed, "sudo -n dmesg").stdout == "one line\n"
    assert as_user(testbed, "journalctl -k -q").stdout.endswith("spark1 kernel: one line\n")
    assert as_user(testbed, "ufw status").returncode == 1
    assert "Status: active" in as_user(testbed, "sudo -n ufw status verbose").stdout


def test_services_are_listed_where_no_systemd_has_booted(node: Node) -> None:
    listed = out(node, "systemctl", "list-units", "--type=service", "--plain", "--no-legend")
    assert "docker.service loaded active running" in listed
    asked = node.inside(["systemctl", "is-active", "docker", "earlyoom"], check=False)
    assert asked.stdout.split() == ["active", "inactive"]


def test_memory_is_the_kernels_own_form(node: Node) -> None:
    node.set_fact(swap_free_kib=4_194_304, min_free_kbytes=4_194_304, cma_free_kib=0)
    assert "Swap:       16777212    12582908     4194304" in out(node, "free", "-k")
    assert out(node, "sysctl", "-n", "vm.min_free_kbytes") == "4194304\n"
    assert len(node.read("/proc/buddyinfo").splitlines()[1].split()) == 4 + 14
    assert "CmaFree:" in node.read("/proc/meminfo")


def test_bandwidth_stand_in_tells_what_the_cable_carries(make_pair: Testbed) -> None:
    server, client = make_pair.nodes

    def gbps() -> float:
        listen = "setsid ib_write_bw -d rocep1s0f0 >/dev/null 2>&1 </dev/null & "
        server.inside(["sh", "-c", listen + "until ss -ltn | grep -q :18515; do sleep 0.05; done"])
        ask = ("ib_write_bw", "-d", "rocep1s0f0", "-D", "0.3", "--report_gbits")
        report = out(client, *ask, server.fabric_address).splitlines()
        return float(report[-2].split()[3])

    assert gbps() == 96.4
    with client.rate(100, device="enp1s0f0np0"):
        assert gbps() < 8
    with server.link_down():
        refused = server.inside(["ib_write_bw", "-d", "rocep1s0f0"], check=False)
        assert refused.returncode == 1


@pytest.fixture
def make_pair() -> Iterator[Testbed]:
    require_testbed()
    with Testbed(Options(nodes=2)) as made:
        yield made
