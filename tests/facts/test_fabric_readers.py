"""Readers of fabric texts: what they take, what they refuse, what stays unknown."""

from __future__ import annotations

import subprocess

import pytest

from sparkserve.facts import bandwidth, firewall, links, nccl_library, rdma, routes
from sparkserve.facts.firewall import Connections, Echoes, PacketFilter, Ufw
from sparkserve.facts.links import Links
from sparkserve.facts.nccl_library import NcclFiles
from sparkserve.facts.probe import Context
from sparkserve.facts.rdma import Rdma
from sparkserve.facts.reader import Ask, Fact, understand
from sparkserve.facts.routes import Addresses, Routes
from sparkserve.model.facts import Unobserved
from sparkserve.model.reading import Reading
from tests.readings import holds, ran, told

MODULES = (rdma, links, routes, firewall, bandwidth, nccl_library)
READERS = tuple(reader for module in MODULES for reader in module.READERS)
ASKS = tuple(ask for module in MODULES for ask in module.ASKS)


def facts(reading: Reading) -> list[Fact | Unobserved]:
    """What our readers make of one text; an unread text is an error of the test."""
    understood = understand([reading], READERS)
    assert understood.unread == ()
    return [one.fact for one in understood.observations]


@pytest.mark.parametrize(
    "command",
    [
        "show_gids",
        "sudo show_gids rocep1s0f0",
        "ssh spark@10.0.0.2 show_gids",
        "ibdev2netdev -v",
        "ibv_devinfo -d rocep1s0f0",
        "rdma -d link show",
        "ibstat rocep1s0f0",
        "cat /sys/class/infiniband/rocep1s0f0/ports/1/gids/3",
        "ip link",
        "ip -d -o link show",
        "ip -s l",
        "ethtool enp1s0f0np0",
        "sudo ethtool -S enp1s0f0np0",
        "lspci -s 01:00.0 -vvv",
        "grep . /sys/class/net/*/mtu",
        "ip a",
        "ip -4 -o addr show",
        "ip -br address",
        "ifconfig -a",
        "ip route",
        "ip -4 r",
        "ip -4 route get 1.1.1.1",
        "route -n",
        "getent ahosts spark1.local",
        "sysctl net.ipv4.ip_forward",
        "cat /proc/sys/net/ipv4/ip_forward",
        "sudo iptables -S",
        "iptables-save -t filter",
        "sudo nft list ruleset",
        "ufw status numbered",
        "nc -zv 10.0.0.2 22",
        "ping -c 2 10.0.0.2",
        "ib_write_bw -d x 10.0.0.2",
        "iperf3 -c 10.0.0.2",
        "cat /etc/nccl.conf",
        "docker run --rm --entrypoint cat img:1 /etc/nccl.conf",
        "strings /usr/lib/libnccl.so.2 | grep 'NCCL version'",
    ],
)
def test_garbage_is_refused_by_every_reader_and_a_missing_tool_says_nothing(command: str) -> None:
    for fact in facts(ran(command, "%%% nothing of the kind\nat all\nreally\nnothing\n", "n")):
        assert isinstance(fact, Unobserved)
    name = command.removeprefix("sudo ").split()[0]
    missing = facts(ran(command, f"bash: line 1: {name}: command not found\n", "n", rc=127))
    assert all(isinstance(fact, Unobserved) or _is_silent(fact) for fact in missing)


def _is_silent(fact: Fact) -> bool:
    return not any(value for value in fact.model_dump().values())


def test_holes_of_a_gid_table_are_no_rows_and_an_unreadable_type_stays_unknown() -> None:
    base = "/sys/class/infiniband/d/ports/1"
    zero = ":".join(["0000"] * 8)
    text = (
        f"{base}/gids/0: fe80:0000:0000:0000:0000:0000:0000:0001\n"
        f"{base}/gids/1: {zero}\n"
        f"cat: {base}/gid_attrs/types/1: Invalid argument\n"
        f"{base}/gids/2: 0000:0000:0000:0000:0000:ffff:0a00:0001\n"
        f"{base}/gid_attrs/types/0: IB/RoCE v1\n"
    )
    (fact,) = facts(holds("/sys/class/infiniband/*/ports/*/...", text))
    assert isinstance(fact, Rdma)
    rows = fact.ports[0].gids or ()
    assert [(g.index, g.type, g.ipv4) for g in rows] == [
        (0, "RoCE v1", None),
        (2, None, "10.0.0.1"),
    ]


def test_readings_of_one_port_complete_each_other() -> None:
    first = Rdma(ports=(facts(ran("ibdev2netdev", "d port 1 ==> net0 (Up)\n"))[0].ports))  # type: ignore[union-attr]
    text = "hca_id:\td\n\tport:\t1\n\t\tmax_mtu:\t4096 (5)\n\t\tactive_mtu:\t1024 (3)\n"
    (second,) = facts(ran("ibv_devinfo", text))
    assert isinstance(second, Rdma)
    (port,) = first.merged(second).ports
    assert (port.state, port.netdev, port.active_mtu) == ("ACTIVE", "net0", 1024)


def test_a_verbose_list_of_ports_is_read() -> None:
    text = (
        "0000:01:00.0 rocep1s0f0 (MT4129 - 30-1) NVIDIA ConnectX-7 fw 28.45.4028 "
        "port 1 (DOWN  ) ==> enp1s0f0np0 (Down)\n"
    )
    (fact,) = facts(ran("ibdev2netdev -v", text))
    assert isinstance(fact, Rdma)
    assert [(p.device, p.state, p.netdev) for p in fact.ports] == [
        ("rocep1s0f0", "DOWN", "enp1s0f0np0")
    ]


def test_speed_of_a_port_without_carrier_is_unknown_not_zero() -> None:
    text = (
        "/sys/class/net/a/mtu: 9000\n/sys/class/net/a/speed: -1\n/sys/class/net/a/operstate: down\n"
    )
    (fact,) = facts(holds("/sys/class/net/*/...", text))
    assert isinstance(fact, Links)
    (link,) = fact.links
    assert (link.mtu_bytes, link.speed_mbps, link.has_carrier) == (9000, None, False)
    (ethtool,) = facts(
        ran("ethtool a", "Settings for a:\n\tSpeed: Unknown!\n\tLink detected: no\n")
    )
    assert isinstance(ethtool, Links)
    assert ethtool.links[0].speed_mbps is None


def test_headings_of_head_and_one_bare_value_are_read_as_files() -> None:
    heads = "==> /sys/class/net/a/mtu <==\n9000\n\n==> /sys/class/net/b/mtu <==\n1500\n"
    (fact,) = facts(ran("head /sys/class/net/*/mtu", heads))
    assert isinstance(fact, Links)
    assert [(link.name, link.mtu_bytes) for link in fact.links] == [("a", 9000), ("b", 1500)]
    (one,) = facts(ran("cat /sys/class/net/enp1s0f0np0/mtu", "4200\n"))
    assert isinstance(one, Links)
    assert one.links[0].mtu_bytes == 4200


def test_excerpt_of_addresses_does_not_count_as_the_whole_list() -> None:
    text = "5: a    inet 10.0.0.1/24 scope global a\n"
    whole = {
        command: facts(ran(command, text))[0].listed  # type: ignore[union-attr]
        for command in (
            "ip -o -4 addr",
            "ip -o addr show dev a",
            "ip -o addr | grep a",
            "ip a show a",
        )
    }
    assert list(whole.values()) == [True, False, False, False]


def test_routes_are_read_with_metric_and_the_way_out_is_the_cheapest() -> None:
    text = (
        "default via 10.1.1.1 dev wlP9s9 proto dhcp src 10.1.1.7 metric 600\n"
        "default via 10.2.1.1 dev enP7s7 proto dhcp metric 100\n"
        "10.2.1.0/24 dev enP7s7 proto kernel scope link src 10.2.1.7\n"
    )
    (fact,) = facts(ran("ip route", text))
    assert isinstance(fact, Routes)
    way = fact.way_out()
    assert way is not None
    assert (way.interface, len(fact.routes)) == ("enP7s7", 3)


def test_ways_to_peers_are_read_with_those_that_do_not_exist() -> None:
    text = (
        "peer 10.0.0.2\n10.0.0.2 dev a src 10.0.0.1 uid 0 \n    cache \n"
        "peer 10.9.0.2\nRTNETLINK answers: Network is unreachable\n"
    )
    (fact,) = facts(told("fabric routes", text))
    assert isinstance(fact, Routes)
    assert [(r.destination, r.interface) for r in fact.routes] == [("10.0.0.2", "a")]
    assert fact.unreachable == ("10.9.0.2",)


def test_filter_that_only_root_may_list_is_unknown() -> None:
    for text in (
        "iptables v1.8.10 (nf_tables): Could not fetch rule set generation id: Permission denied"
        " (you must be root)\n",
        "sudo: a password is required\n",
    ):
        (fact,) = facts(ran("iptables -S", text))
        assert isinstance(fact, Unobserved)


def test_localised_status_of_ufw_is_read() -> None:
    (fact,) = facts(ran("ufw status", "Status: Aktiv\n"))
    assert fact == Ufw(is_active=True)


def test_netcat_answers_are_connections() -> None:
    text = (
        "Connection to 10.0.0.2 20000 port [tcp/*] succeeded!\n"
        "nc: connect to 10.0.0.2 port 41873 (tcp) failed: Connection timed out\n"
        "nc: connect to 10.0.0.2 port 50655 (tcp) failed: Connection refused\n"
    )
    (fact,) = facts(ran("nc -zv 10.0.0.2 20000 41873 50655", text))
    assert isinstance(fact, Connections)
    assert [(c.port, c.result) for c in fact.tried] == [
        (20000, "ok"), (41873, "timeout"), (50655, "refused"),
    ]  # fmt: skip


def test_version_that_torch_prints_is_read() -> None:
    command = 'python3 -c "import torch; print(torch.cuda.nccl.version())"'
    (fact,) = facts(ran(command, "(2, 28, 9)\n"))
    assert isinstance(fact, NcclFiles)
    assert fact.files[0].version == (2, 28, 9)


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.id)
def test_every_question_is_answered_by_a_plain_machine_in_a_text_that_a_reader_takes(
    ask: Ask,
) -> None:
    context = Context(root="/nowhere", peers=("127.0.0.1",), fabric_peers=("127.0.0.1",))
    script = "ROOT=/nowhere\n" + ask.script(context)
    done = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    reading = ask.reading("here", done.returncode, done.stdout + done.stderr)
    refused = [fact for fact in facts(reading) if isinstance(fact, Unobserved)]
    # Without root the packet filter stays unknown; everything else is read or absent.
    assert not refused or ask.id == "firewall.rules"


def test_questions_to_peers_are_silent_without_peers() -> None:
    for ask in ASKS:
        if ask.what in ("peer pings", "fabric routes"):
            done = subprocess.run(
                ["sh"], input=ask.script(Context(root="/")), capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            assert facts(ask.reading("here", done.returncode, done.stdout)) == []


def test_pings_one_behind_the_other_are_kept_apart() -> None:
    text = (
        "PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.\n\n--- 10.0.0.2 ping statistics ---\n"
        "1 packets transmitted, 0 received, 100% packet loss, time 0ms\n"
        "PING 10.0.0.3 (10.0.0.3) from 10.0.0.1 a: 8972(9000) bytes of data.\n"
        "--- 10.0.0.3 ping statistics ---\n2 packets transmitted, 2 received, 0% packet loss\n"
    )
    (fact,) = facts(told("peer pings", text))
    assert isinstance(fact, Echoes)
    assert [(e.address, e.received, e.payload_bytes) for e in fact.echoes] == [
        ("10.0.0.2", 0, 56), ("10.0.0.3", 2, 8972),
    ]  # fmt: skip


def test_narrow_rules_are_told_from_wide_ones() -> None:
    text = (
        '-P FORWARD DROP\n-A FORWARD -i a -o b -m comment --comment "x y" -j ACCEPT\n'
        "-A FORWARD -i a -o b -p tcp -j ACCEPT\n-A FORWARD ! -i a -o b -j ACCEPT\n"
        "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"
        "-A FORWARD -s 10.0.0.0/8 -j ACCEPT\n"
    )
    (fact,) = facts(ran("iptables -S", text))
    assert isinstance(fact, PacketFilter)
    chain = fact.chain("FORWARD")
    assert chain is not None
    assert [rule.covers("a", "b") for rule in chain.rules] == [True, False, False, False, False]


def test_addresses_of_all_forms_agree() -> None:
    forms = {
        "ip -o -4 addr": "5: a    inet 10.0.0.1/20 brd 10.0.15.255 scope global a\n",
        "ip addr": "5: a: <UP,LOWER_UP> mtu 9000 state UP\n    inet 10.0.0.1/20 scope global a\n",
        "ip -br addr": "a    UP   10.0.0.1/20 fe80::1/64\n",
        "ifconfig": "a: flags=4163<UP>  mtu 9000\n        inet 10.0.0.1  netmask 255.255.240.0\n",
    }
    for command, text in forms.items():
        (known,) = [f for f in facts(ran(command, text)) if isinstance(f, Addresses)]
        assert [(a.interface, a.network) for a in known.addresses if a.is_ipv4] == [
            ("a", "10.0.0.0/20")
        ]
