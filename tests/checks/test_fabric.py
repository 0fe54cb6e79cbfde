"""Ports, GIDs, subnets and names of the fabric, in all the forms in which people paste them."""

from __future__ import annotations

import pytest

from sparkserve.model.reading import Reading
from tests.casefiles import CASES, variants
from tests.readings import findings, holds, passes, ran, told, verdicts

ADDRESSES = """\
1: lo    inet 127.0.0.1/8 scope host lo
3: enP7s7    inet 192.168.50.11/24 brd 192.168.50.255 scope global dynamic enP7s7
5: enp1s0f0np0    inet 10.100.0.1/24 brd 10.100.0.255 scope global enp1s0f0np0
"""


def case(number: str) -> tuple[Reading, ...]:
    """The faulty texts of one case."""
    (folder,) = CASES.glob(f"{number}-*")
    return next(iter(variants(folder))).readings


def sysfs(
    device: str, netdev: str, rows: dict[int, tuple[str, str]], state: str = "4: ACTIVE"
) -> str:
    """``path: value`` lines of one port; rows: index -> (gid, type)."""
    base = f"/sys/class/infiniband/{device}/ports/1"
    lines = [f"{base}/state: {state}", f"{base}/link_layer: Ethernet"]
    for index, (gid, kind) in rows.items():
        lines.append(f"{base}/gids/{index}: {gid}")
        if kind:
            lines.append(f"{base}/gid_attrs/types/{index}: {kind}")
            lines.append(f"{base}/gid_attrs/ndevs/{index}: {netdev}")
    return "\n".join(lines) + "\n"


V4 = "0000:0000:0000:0000:0000:ffff:0a64:0002"
ULA = "fd00:0000:0000:0000:4ebb:47ff:fe00:0b02"
ZERO = ":".join(["0000"] * 8)


# GIDs


def test_pinned_ula_gid_is_named_with_the_usable_set_and_the_good_node_passes() -> None:
    (finding,) = findings(*case("B01"))
    assert verdicts([finding]) == [("NET_GID_PER_NODE", "FAIL", "node2")]
    assert "pinned 3 is a ULA IPv6 GID" in finding.observed
    assert "usable set is {5}" in finding.observed
    (good,) = passes(*case("B01"), check="RING.ROCE_GID")
    assert (good.node, "{3}" in good.observed) == ("node1", True)


def test_hole_is_named_with_the_usable_set() -> None:
    (finding,) = findings(*case("B02"))
    assert finding.code == "NET_GID_HOLE"
    assert "roceP2p1s0f1: index 3 does not exist; usable set is {4}" in finding.observed


@pytest.mark.parametrize(
    ("rows", "code", "words"),
    [
        ({3: (ULA, "RoCE v2"), 5: (V4, "RoCE v2")}, "NET_GID_PER_NODE", "ULA"),
        ({2: (V4, "IB/RoCE v1"), 3: (ZERO, ""), 4: (V4, "RoCE v2")}, "NET_GID_HOLE", "{4}"),
        ({3: (V4, "IB/RoCE v1"), 4: (V4, "RoCE v2")}, "NET_GID_PER_NODE", "RoCE v1"),
        ({0: (ULA, "RoCE v2"), 1: (V4, "RoCE v2")}, "NET_GID_PER_NODE", "{1}"),
    ],
)
def test_the_same_faults_are_found_in_sysfs(
    rows: dict[int, tuple[str, str]], code: str, words: str
) -> None:
    text = holds(
        "/sys/class/infiniband/*/ports/1/...", sysfs("rocep1s0f0", "enp1s0f0np0", rows), "n7"
    )
    (finding,) = findings(text, told("profile", "nccl_ib_gid_index: 3\n", format="yaml"))
    assert verdicts([finding]) == [(code, "FAIL", "n7")]
    assert words in finding.observed


def test_the_same_fault_is_found_in_ibv_devinfo() -> None:
    text = """\
hca_id:\trocep1s0f0
\tport:\t1
\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\tmax_mtu:\t\t4096 (5)
\t\tactive_mtu:\t\t4096 (5)
\t\tlink_layer:\t\tEthernet
\t\tGID[  0]:\t\tfe80::4ebb:47ff:fe00:a01, RoCE v2
\t\tGID[  3]:\t\tfd00::4ebb:47ff:fe00:a01, RoCE v2
\t\tGID[  5]:\t\t::ffff:10.100.0.2, RoCE v2
"""
    env = told("container env", "NCCL_IB_GID_INDEX=3\nNCCL_IB_HCA=rocep1s0f0\n", "n7", format="env")
    (finding,) = findings(ran("ibv_devinfo -v", text, "n7"), env, code="NET_GID_PER_NODE")
    assert "usable set is {5}" in finding.observed


def test_address_that_the_port_no_longer_has_makes_a_row_unusable() -> None:
    rows = {3: (V4, "RoCE v2"), 5: ("0000:0000:0000:0000:0000:ffff:0a64:0001", "RoCE v2")}
    texts = (
        holds(
            "/sys/class/infiniband/*/ports/1/...", sysfs("rocep1s0f0", "enp1s0f0np0", rows), "n1"
        ),
        ran("ip -o -4 addr", ADDRESSES, "n1"),
        told("profile", "nccl_ib_gid_index: 3\nib_hca: rocep1s0f0\n", format="yaml"),
    )
    (finding,) = findings(*texts)
    assert "10.100.0.2, which its network device does not have" in finding.observed
    assert "{5}" in finding.observed


def test_two_ports_without_a_common_index_fail_where_both_are_named() -> None:
    text = sysfs("rocep1s0f0", "enp1s0f0np0", {3: (V4, "RoCE v2")})
    text += sysfs("roceP2p1s0f0", "enP2p1s0f0np0", {5: (V4, "RoCE v2")})
    wish = told("profile", "ib_hca: rocep1s0f0,roceP2p1s0f0\n", format="yaml")
    (finding,) = findings(holds("/sys/class/infiniband/*/ports/1/...", text, "n1"), wish)
    assert "rocep1s0f0 {3}; roceP2p1s0f0 {5}" in finding.observed


def test_port_that_is_down_neither_fails_nor_constrains() -> None:
    text = sysfs("rocep1s0f0", "enp1s0f0np0", {3: (V4, "RoCE v2")})
    text += sysfs("rocep1s0f1", "enp1s0f1np1", {1: (ULA, "RoCE v2")}, state="1: DOWN")
    wish = told("profile", "gid_index: 3\n", format="yaml")
    assert findings(holds("/sys/class/infiniband/*/ports/1/...", text, "n1"), wish) == []


def test_selector_that_fits_no_port_of_a_node_is_named() -> None:
    listing = "rocep1s0f1\t1\t5\t" + V4 + " 10.100.0.2\tv2\tenp1s0f1np1\n"
    wish = told("profile", "ib_hca: rocep1s0f0\nnccl_ib_gid_index: 3\n", format="yaml")
    found = findings(ran("show_gids", listing, "n2"), wish, code="NET_GID_PER_NODE")
    assert "selects no port here; usable: rocep1s0f1 {5}" in found[0].observed
    assert "NCCL_IB_HCA=rocep1s0f1" in found[0].fix


# Ports


IBDEV_DOWN = "rocep1s0f0 port 1 ==> enp1s0f0np0 (Down)\nrocep1s0f1 port 1 ==> enp1s0f1np1 (Up)\n"
RDMA_LINK = """\
link rocep1s0f1/1 state ACTIVE physical_state LINK_UP netdev enp1s0f1np1
link rocep1s0f0/1 state DOWN physical_state DISABLED netdev enp1s0f0np0
"""
IBSTAT = """\
CA 'rocep1s0f0'
\tCA type: MT4129
\tPort 1:
\t\tState: Down
\t\tPhysical state: Disabled
\t\tLink layer: Ethernet
CA 'rocep1s0f1'
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tLink layer: Ethernet
"""
IBSTATUS = """\
Infiniband device 'rocep1s0f0' port 1 status:
\tstate:\t\t 1: DOWN
\tlink_layer:\t Ethernet
Infiniband device 'rocep1s0f1' port 1 status:
\tstate:\t\t 4: ACTIVE
"""


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("ibdev2netdev", IBDEV_DOWN),
        ("/usr/sbin/ibdev2netdev | sort", IBDEV_DOWN),
        ("rdma link show", RDMA_LINK),
        ("ibstat", IBSTAT),
        ("ibstatus", IBSTATUS),
        (
            "cat /sys/class/infiniband/*/ports/1/state",
            sysfs("rocep1s0f0", "x", {}, "1: DOWN") + sysfs("rocep1s0f1", "y", {}),
        ),
    ],
)
def test_named_port_that_is_down_is_found_with_the_port_to_use(command: str, text: str) -> None:
    wish = told("profile", "ib_hca: rocep1s0f0\n", format="yaml")
    (finding,) = findings(ran(command, text, "node9"), wish)
    assert verdicts([finding]) == [("NET_HCA_DOWN", "FAIL", "node9")]
    assert "rocep1s0f0 is Down" in finding.observed
    assert "rocep1s0f1/enp1s0f1np1" in finding.fix


def test_case_of_the_port_in_the_other_cage() -> None:
    (finding,) = findings(*case("B04"))
    assert (finding.node, "rocep1s0f0 is Down" in finding.observed) == ("node3", True)
    assert "rocep1s0f1/enp1s0f1np1" in finding.fix


def test_prefix_that_selects_one_port_that_is_up_is_enough() -> None:
    wish = told("profile", "ib_hca: rocep1s0\n", format="yaml")
    assert findings(ran("ibdev2netdev", IBDEV_DOWN, "n"), wish) == []


def test_device_that_a_full_list_lacks_is_found() -> None:
    wish = told("profile", "ib_hca: mlx5_0\n", format="yaml")
    (finding,) = findings(ran("ibdev2netdev", IBDEV_DOWN, "n"), wish)
    assert finding.observed == "there is no RDMA device mlx5_0"


def test_unused_twin_warns_and_both_listed_or_single_rail_is_quiet() -> None:
    (finding,) = findings(*case("B05"))
    assert verdicts([finding]) == [("NET_TWIN_UNUSED", "WARN", "node1")]
    assert "twin roceP2p1s0f0 is Up and unused" in finding.observed
    listing = case("B05")[0]
    for text in (
        "ib_hca: rocep1s0f0,roceP2p1s0f0\n",
        "ib_hca: rocep1s0f0\nsingle_rail: true\n",
        "ib_hca: ^rocep1s0f1\n",
    ):
        assert findings(listing, told("profile", text, format="yaml")) == []


def test_twins_are_known_by_their_network_devices_where_rdma_names_say_nothing() -> None:
    text = "mlx5_0 port 1 ==> enp1s0f1np1 (Up)\nmlx5_2 port 1 ==> enP2p1s0f1np1 (Up)\n"
    wish = told("profile", "ib_hca: mlx5_0\n", format="yaml")
    (finding,) = findings(ran("ibdev2netdev", text, "n"), wish)
    assert "twin mlx5_2" in finding.observed


def test_small_rdma_mtu_is_named_with_that_of_the_network_device() -> None:
    (finding,) = findings(*case("B06"))
    assert verdicts([finding]) == [("NET_ACTIVE_MTU_LOW", "WARN", "node2")]
    assert "active_mtu 1024" in finding.observed
    assert "netdev 1500" in finding.observed
    assert "sudo ip link set enp1s0f1np1 mtu 9000" in finding.fix


@pytest.mark.parametrize(
    ("reading", "loud"),
    [
        (holds("/sys/class/net/enp1s0f0np0/mtu", "1500\n", "n"), True),
        (holds("/sys/class/net/enp1s0f0np0/mtu", "9000\n", "n"), False),
        (holds("/sys/class/net/enp1s0f0np0/mtu", "4200\n", "n"), False),
        (holds("/sys/class/net/enP7s7/mtu", "1500\n", "n"), False),
        (ran("grep . /sys/class/net/*/mtu", "/sys/class/net/enP2p1s0f1np1/mtu:1500\n", "n"), True),
        (
            ran("ip link", "5: enp1s0f0np0: <NO-CARRIER,BROADCAST,UP> mtu 1500 state DOWN\n", "n"),
            False,
        ),
    ],
)
def test_mtu_of_fabric_devices_with_carrier_counts(reading: Reading, loud: bool) -> None:
    assert [f.code for f in findings(reading)] == (["NET_ACTIVE_MTU_LOW"] if loud else [])


def test_link_without_carrier_that_has_an_address_warns_and_a_named_one_fails() -> None:
    link = ran(
        "ip link", "5: enp1s0f0np0: <NO-CARRIER,BROADCAST,UP> mtu 9000 qdisc mq state DOWN\n", "n1"
    )
    addresses = ran("ip -o -4 addr", ADDRESSES, "n1")
    assert findings(link) == []
    assert [f.verdict for f in findings(link, addresses)] == ["WARN"]
    wish = told("profile", "fabric_ifname: enp1s0f0np0\n", format="yaml")
    (finding,) = findings(link, addresses, wish)
    assert verdicts([finding]) == [("NET_LINK_DOWN", "FAIL", "n1")]


def test_slow_link_and_narrow_pcie_are_named_with_their_figures() -> None:
    text = "Settings for enp1s0f0np0:\n\tSpeed: 100000Mb/s\n\tLink detected: yes\n"
    (finding,) = findings(ran("ethtool enp1s0f0np0", text, "n1"))
    assert (finding.code, finding.observed) == ("NET_LINK_SLOW", "enp1s0f0np0 100000 Mb/s")
    slot = holds("/sys/bus/pci/devices/0002:01:00.0/current_link_width", "2\n", "n1")
    (finding,) = findings(slot)
    assert finding.code == "NET_PCIE_NARROW"
    assert "x2" in finding.observed
    lspci = "0000:01:00.0 Ethernet controller: Mellanox\n\t\tLnkSta:\tSpeed 16GT/s, Width x4\n"
    (finding,) = findings(ran("lspci -vvv", lspci, "n1"))
    assert "16" in finding.observed


def test_disk_with_four_narrow_lanes_is_no_adapter() -> None:
    lspci = "0004:21:00.0 Non-Volatile memory\n\t\tLnkSta:\tSpeed 8GT/s, Width x2\n"
    assert findings(ran("lspci -vv", lspci, "n1")) == []


def test_infiniband_mode_is_named() -> None:
    text = "hca_id:\trocep1s0f0\n\tport:\t1\n\t\tstate:\tPORT_ACTIVE (4)\n"
    text += "\t\tlink_layer:\tInfiniBand\n"
    assert [f.code for f in findings(ran("ibv_devinfo", text, "n"))] == ["NET_RDMA_LINK_LAYER"]


# Subnets, names, host address


def test_twins_in_one_subnet_warn_and_two_cages_fail() -> None:
    (finding,) = findings(*case("B16"))
    assert verdicts([finding]) == [("NET_SAME_SUBNET", "WARN", "node1")]
    assert "twins of cage 0 share 10.100.0.0/24" in finding.observed
    text = """\
2: enp1s0f0np0    inet 10.5.0.1/16 scope global enp1s0f0np0
3: enp1s0f1np1    inet 10.5.9.1/16 scope global enp1s0f1np1
"""
    (finding,) = findings(ran("ip -o -4 addr show", text, "n4"))
    assert verdicts([finding]) == [("NET_SAME_SUBNET", "FAIL", "n4")]
    assert "10.5.0.0/16" in finding.observed


def test_two_ordinary_cards_in_one_network_are_nobodys_business() -> None:
    text = (
        "2: enP7s7    inet 10.5.0.1/16 scope global\n3: wlP9s9    inet 10.5.9.1/16 scope global\n"
    )
    assert findings(ran("ip -o -4 addr", text, "n4")) == []


LONG_FORM = """\
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000
    inet 127.0.0.1/8 scope host lo
       valid_lft forever preferred_lft forever
5: enp1s0f0np0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default
    inet 10.100.0.1/24 brd 10.100.0.255 scope global enp1s0f0np0
    inet6 fe80::1/64 scope link
6: enp1s0f1np1: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 9000 qdisc mq state DOWN group default
"""
IFCONFIG = """\
enp1s0f0np0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 9000
        inet 10.100.0.1  netmask 255.255.255.0  broadcast 10.100.0.255
"""
BRIEF = "lo UNKNOWN 127.0.0.1/8 ::1/128\nenp1s0f0np0 UP 10.100.0.1/24\nenp1s0f1np1 DOWN\n"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("ip -o -4 addr", ADDRESSES),
        ("ip a", LONG_FORM),
        ("ip addr show", LONG_FORM),
        ("ifconfig", IFCONFIG),
        ("ip -br a", BRIEF),
    ],
)
def test_socket_name_without_address_is_found_in_every_form(command: str, text: str) -> None:
    env = told("rendered env", "GLOO_SOCKET_IFNAME=enp1s0f1np1\n", "n1", format="env")
    (finding,) = findings(ran(command, text, "n1"), env)
    assert verdicts([finding]) == [("NET_IFNAME_ABSENT", "FAIL", "n1")]
    assert "enp1s0f1np1" in finding.observed
    assert finding.fix.startswith("GLOO_SOCKET_IFNAME=enp1s0f0np0")


def test_case_of_the_absent_name() -> None:
    found = findings(*case("B08"), code="NET_IFNAME_ABSENT")
    assert any(f.node == "node1" and "enp1s0f1np1" in f.observed for f in found)


@pytest.mark.parametrize(
    ("variable", "lost"),
    [
        ("NCCL_SOCKET_IFNAME=enp1s0", False),
        ("NCCL_SOCKET_IFNAME==enp1s0", True),
        ("NCCL_SOCKET_IFNAME=^docker,lo", False),
        ("NCCL_SOCKET_IFNAME=eth0,enp1s0f0np0", False),
        ("GLOO_SOCKET_IFNAME=enp1s0", True),
        ("GLOO_SOCKET_IFNAME=enp1s0f0np0,eth0", True),
        ("TP_SOCKET_IFNAME=enp1s0f0np0", False),
    ],
)
def test_names_are_understood_as_each_library_does(variable: str, lost: bool) -> None:
    env = told("rendered env", f"{variable}\n", "n1", format="env")
    found = findings(ran("ip -o -4 addr", ADDRESSES, "n1"), env, code="NET_IFNAME_ABSENT")
    assert bool(found) == lost


def test_list_of_one_interface_does_not_prove_that_others_lack_addresses() -> None:
    env = told("rendered env", "GLOO_SOCKET_IFNAME=enp1s0f0np0\n", "n1", format="env")
    text = "3: enP7s7    inet 192.168.50.11/24 scope global enP7s7\n"
    assert findings(ran("ip -o -4 addr show dev enP7s7", text, "n1"), env) == []


def test_default_route_over_wifi_without_host_address_is_found() -> None:
    found = findings(*case("B07"), code="NET_SGLANG_HOST_IP")
    assert any("wlP9s9 with 192.168.50.37" in f.observed and f.node == "head" for f in found)


@pytest.mark.parametrize(
    ("route", "env", "loud"),
    [
        ("default via 10.1.1.1 dev wlP9s9 proto dhcp metric 600\n", "", True),
        ("default via 10.1.1.1 dev enP7s7 proto dhcp metric 100\n", "", True),
        ("default via 10.100.0.9 dev enp1s0f0np0\n", "", False),
        ("default via 10.1.1.1 dev wlP9s9\n", "SGLANG_HOST_IP=10.100.0.1\n", False),
        ("default via 10.1.1.1 dev wlP9s9\n", "HOST_IP=10.100.0.1\n", False),
        ("default via 10.1.1.1 dev wlP9s9\n", "VLLM_HOST_IP=10.100.0.1\n", False),
    ],
)
def test_host_address_is_judged_by_the_way_out(route: str, env: str, loud: bool) -> None:
    texts = (
        ran("ip route", route, "n1"),
        ran("ip -o -4 addr", ADDRESSES, "n1"),
        told("container env", f"NCCL_SOCKET_IFNAME=enp1s0f0np0\n{env}", "n1", format="env"),
    )
    found = [f for f in findings(*texts) if f.check_id == "NET.HOST_IP"]
    assert bool(found) == loud
    if loud:
        assert "SGLANG_HOST_IP=10.100.0.1" in found[0].fix


def test_interface_with_an_ipv6_address_only_is_no_address_for_sockets() -> None:
    text = ADDRESSES + "6: enp1s0f1np1    inet6 fd00::1/64 scope global\n"
    env = told("rendered env", "GLOO_SOCKET_IFNAME=enp1s0f1np1\n", "n1", format="env")
    (finding,) = findings(ran("ip -o addr", text, "n1"), env)
    assert finding.code == "NET_IFNAME_ABSENT"


def test_port_in_the_other_cage_is_found_from_links_alone() -> None:
    text = (
        "5: enp1s0f0np0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 9000 state DOWN\n"
        "6: enp1s0f1np1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 state UP\n"
    )
    wish = told("profile", "ib_hca: rocep1s0f0\n", format="yaml")
    (finding,) = findings(ran("ip -o link", text, "n3"), wish)
    assert verdicts([finding]) == [("NET_HCA_DOWN", "FAIL", "n3")]
    assert "rocep1s0f1/enp1s0f1np1" in finding.fix


def test_host_address_of_the_default_route_is_no_fabric_address() -> None:
    texts = (
        ran("ip route get 8.8.8.8", "8.8.8.8 via 10.1.1.1 dev enP7s7 src 10.1.1.7 uid 0\n", "n1"),
        told(
            "container env", "GLOO_SOCKET_IFNAME=enp1s0f0np0\nSGLANG_HOST_IP=10.1.1.7\n", "n1",
            format="env",
        ),
    )  # fmt: skip
    found = [f for f in findings(*texts) if f.check_id == "NET.HOST_IP"]
    assert "enP7s7" in found[0].observed
