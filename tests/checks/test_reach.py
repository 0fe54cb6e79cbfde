"""Transit, firewalls, echoes, names and a dead adapter."""

from __future__ import annotations

import pytest

from sparkserve.model.reading import Reading
from tests.casefiles import CASES, variants
from tests.readings import findings, passes, ran, told, verdicts

F0, F1 = "enp1s0f0np0", "enp1s0f1np1"


def case(number: str) -> tuple[Reading, ...]:
    (folder,) = CASES.glob(f"{number}-*")
    return next(iter(variants(folder))).readings


ON = ran("sysctl -n net.ipv4.ip_forward", "1\n", "n2")
FORWARD = ran(
    "iptables -S FORWARD",
    "-P FORWARD DROP\n-A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-FORWARD\n",
    "n2",
)


def user(*rules: str) -> Reading:
    return ran(
        "iptables -S DOCKER-USER", "-N DOCKER-USER\n" + "".join(f"{r}\n" for r in rules), "n2"
    )


def accept(one: str, other: str) -> str:
    return f"-A DOCKER-USER -i {one} -o {other} -j ACCEPT"


RING = told("profile", "topology: ring\nnnodes: 4\n", format="yaml")


def test_one_accepted_direction_is_told_from_the_dropped_one() -> None:
    (finding,) = findings(*case("B12"))
    assert verdicts([finding]) == [("NET_TRANSIT_DROPPED", "FAIL", "node2")]
    assert "only one direction is accepted (f0 to f1" in finding.observed
    assert f"f1 to f0: {F1} to {F0} is dropped" in finding.observed
    assert finding.fix.startswith(f"sudo iptables -I DOCKER-USER -i {F1} -o {F0} -j ACCEPT")


def test_the_other_direction_alone_is_told_as_well() -> None:
    (finding,) = findings(ON, FORWARD, user(accept(F1, F0)))
    assert "(f1 to f0" in finding.observed
    assert f"-i {F0} -o {F1}" in finding.fix


@pytest.mark.parametrize(
    "rules",
    [
        (accept(F0, F1), accept(F1, F0)),
        ("-A DOCKER-USER -j ACCEPT",),
        ("-A DOCKER-USER -i enp1s0f+ -o enp1s0f+ -j ACCEPT",),
        (accept(F1, F0) + ' -m comment --comment "ring"', accept(F0, F1)),
    ],
)
def test_both_directions_accepted_is_quiet(rules: tuple[str, ...]) -> None:
    assert findings(ON, FORWARD, user(*rules), RING, code="NET_TRANSIT_DROPPED") == []


@pytest.mark.parametrize(
    "rules",
    [
        (),
        ("-A DOCKER-USER -j RETURN",),
        (
            f"-A DOCKER-USER -i {F0} -o {F1} -p tcp -j ACCEPT",
            f"-A DOCKER-USER -i {F1} -o {F0} -s 10.1.0.0/16 -j ACCEPT",
        ),
        ("-A DOCKER-USER -i enp1s0f0np0 -j DROP", accept(F0, F1), accept(F1, F0)),
    ],
)
def test_what_does_not_let_everything_through_is_no_acceptance(rules: tuple[str, ...]) -> None:
    (finding,) = findings(ON, FORWARD, user(*rules), RING, code="NET_TRANSIT_DROPPED")
    assert verdicts([finding]) == [("NET_TRANSIT_DROPPED", "FAIL", "n2")]


@pytest.mark.parametrize("topology", ["pair", "switch", "triangle"])
def test_where_nobody_passes_through_dropping_is_right(topology: str) -> None:
    wish = told("profile", f"topology: {topology}\n", format="yaml")
    off = ran("cat /proc/sys/net/ipv4/ip_forward", "0\n", "n2")
    assert findings(off, FORWARD, user(), wish) == []


def test_policy_that_accepts_is_enough_but_forwarding_must_be_on() -> None:
    open_policy = ran("iptables -S", "-P FORWARD ACCEPT\n", "n2")
    assert findings(ON, open_policy, RING, code="NET_TRANSIT_DROPPED") == []
    off = ran("sysctl net.ipv4.ip_forward", "net.ipv4.ip_forward = 0\n", "n2")
    (finding,) = findings(off, open_policy, RING, code="NET_TRANSIT_DROPPED")
    assert finding.observed == "net.ipv4.ip_forward is 0"
    assert finding.fix.startswith("sudo sysctl -w net.ipv4.ip_forward=1")


IPTABLES_LIST = f"""\
Chain FORWARD (policy DROP 10 packets, 840 bytes)
 pkts bytes target     prot opt in     out     source               destination
  100  8400 DOCKER-USER  all  --  *      *       0.0.0.0/0            0.0.0.0/0

Chain DOCKER-USER (1 references)
 pkts bytes target     prot opt in     out     source               destination
   50  4200 ACCEPT     all  --  {F0} {F1}  0.0.0.0/0            0.0.0.0/0
"""
NFT = f"""\
table ip filter {{
	chain DOCKER-USER {{
		iifname "{F0}" oifname "{F1}" counter packets 5 bytes 420 accept
	}}
	chain FORWARD {{
		type filter hook forward priority filter; policy drop;
		counter packets 9 bytes 840 jump DOCKER-USER
	}}
}}
"""
SAVE = f"""\
*nat
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -o {F1} -j MASQUERADE
COMMIT
*filter
:FORWARD DROP [1:2]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A DOCKER-USER -i {F0} -o {F1} -j ACCEPT
COMMIT
"""


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("sudo iptables -L -v -n", IPTABLES_LIST),
        ("nft list ruleset", NFT),
        ("iptables-save", SAVE),
    ],
)
def test_half_open_transit_is_found_in_every_listing(command: str, text: str) -> None:
    (finding,) = findings(ON, ran(command, text, "n2"))
    assert f"f1 to f0: {F1} to {F0} is dropped" in finding.observed


def test_missing_route_over_a_ring_is_named() -> None:
    texts = [
        ran("ip -o -4 addr", f"5: {F0}    inet 10.1.{n}.2/24 scope global\n"
            f"6: {F1}    inet 10.1.{n + 1}.1/24 scope global\n", f"n{n}")
        for n in range(1, 4)
    ]  # fmt: skip
    way = ran(
        "ip -4 route", f"10.1.3.0/24 via 10.1.2.2 dev {F1}\ndefault via 10.0.0.1 dev e\n", "n1"
    )
    (finding,) = [
        f
        for f in findings(ran("sysctl -n net.ipv4.ip_forward", "1\n", "n1"), *texts, way, RING)
        if f.code == "NET_TRANSIT_DROPPED"
    ]
    assert finding.observed == "no route to 10.1.4.0/24"


# Firewalls


def test_static_rules_and_tried_connections_of_one_node_are_one_finding() -> None:
    (finding,) = findings(*case("B17"))
    assert verdicts([finding]) == [("NET_FIREWALL", "FAIL", "node2")]
    for words in ("ephemeral ports blocked", "41873", "50655", "ufw is active"):
        assert words in finding.observed
    assert "10.100.0.0/24" in finding.fix


PROBE = told("connect probe", "10.100.0.2:20000 ok\n10.100.0.2:41873 ok 0.001\n", "node1")


@pytest.mark.parametrize(
    ("status", "loud"),
    [
        ("Status: inactive\n", False),
        ("Status: active\nDefault: deny (incoming), allow (outgoing), disabled (routed)\n", True),
        ("Status: active\nDefault: allow (incoming), allow (outgoing)\n", False),
        (
            "Status: active\nDefault: deny (incoming)\n\nTo   Action   From\n"
            f"Anywhere on {F0}   ALLOW IN    10.100.0.0/24\n",
            False,
        ),
        (
            "Status: active\nDefault: deny (incoming)\n\n22/tcp   ALLOW IN    Anywhere\n"
            "Anywhere                   ALLOW IN    192.168.50.0/24\n",
            True,
        ),
    ],
)
def test_ufw_is_judged_by_what_it_lets_in_from_the_fabric(status: str, loud: bool) -> None:
    own = ran("ip -o -4 addr", f"5: {F0}    inet 10.100.0.2/24 scope global {F0}\n", "node2")
    found = findings(ran("ufw status verbose", status, "node2"), own)
    assert bool(found) == loud
    if loud:
        assert found[0].fix == f"sudo ufw allow in on {F0} from 10.100.0.0/24"


def test_connections_that_succeed_outweigh_rules_that_look_closed() -> None:
    own = ran("ip -o -4 addr", f"5: {F0}    inet 10.100.0.2/24 scope global {F0}\n", "node2")
    ufw = ran("ufw status", "Status: active\n\n22/tcp   ALLOW   Anywhere\n", "node2")
    assert findings(PROBE, own, ufw) == []


def test_probe_alone_names_the_owner_of_the_address() -> None:
    own = ran("ip -o -4 addr", f"5: {F0}    inet 10.9.0.7/24 scope global {F0}\n", "s7")
    bad = told("connection probe", "10.9.0.7:50001: refused\n10.9.0.7:20000 open\n", "s1")
    (finding,) = findings(own, bad)
    assert finding.node == "s7"
    assert "10.9.0.7:50001 refused" in finding.observed


def test_input_that_drops_without_an_opening_is_found_in_iptables() -> None:
    own = ran("ip -o -4 addr", f"5: {F0}    inet 10.9.0.7/24 scope global {F0}\n", "s7")
    closed = "-P INPUT DROP\n-A INPUT -i lo -j ACCEPT\n-A INPUT -p tcp --dport 22 -j ACCEPT\n"
    (finding,) = findings(own, ran("iptables -S", closed, "s7"))
    assert (finding.code, finding.node) == ("NET_FIREWALL", "s7")
    opened = closed + f"-A INPUT -s 10.9.0.0/24 -i {F0} -j ACCEPT\n"
    assert findings(own, ran("iptables -S", opened, "s7")) == []


# Echoes


def ping(address: str, sent: int, got: int, payload: int = 56, more: str = "") -> str:
    return (
        f"PING {address} ({address}) {payload}({payload + 28}) bytes of data.\n{more}\n"
        f"--- {address} ping statistics ---\n"
        f"{sent} packets transmitted, {got} received, 0% packet loss, time 1ms\n"
    )


def test_node_that_nobody_reaches_is_the_guilty_one() -> None:
    own = ran("ip -o -4 addr", "2: enP7s7    inet 10.0.0.3/24 scope global\n", "s3")
    texts = [told("peer pings", ping("10.0.0.3", 1, 0), node) for node in ("s1", "s2")]
    (finding,) = findings(own, *texts)
    assert verdicts([finding]) == [("NET_PEER_SILENT", "FAIL", "s3")]
    assert "no node reaches s3 (s1, s2)" in finding.observed


def test_one_way_that_is_dead_is_named_at_the_node_that_tried() -> None:
    texts = (
        told("peer pings", ping("10.0.0.3", 1, 0) + ping("10.0.0.2", 1, 1), "s1"),
        told("peer pings", ping("10.0.0.3", 1, 1), "s2"),
    )
    (finding,) = findings(*texts)
    assert (finding.node, "10.0.0.3" in finding.observed) == ("s1", True)


def test_long_packets_that_do_not_pass_are_told_from_a_dead_way() -> None:
    text = ping("10.9.0.2", 2, 0, 8972, "ping: local error: message too long, mtu=1500")
    (finding,) = findings(ran("ping -c 2 -W 2 -M do -s 8972 10.9.0.2", text, "s1"))
    assert finding.code == "NET_JUMBO_BLOCKED"
    assert "8972 bytes" in finding.observed
    assert "too long" in finding.observed
    assert "MTU 9000" in finding.fix


def test_lost_echoes_warn_with_their_count() -> None:
    (finding,) = findings(told("peer pings", ping("10.9.0.2", 4, 3, 8972), "s1"))
    assert verdicts([finding]) == [("NET_PACKET_LOSS", "WARN", "s1")]
    assert "1 of 4" in finding.observed
    assert passes(told("peer pings", ping("10.9.0.2", 4, 4, 8972), "s1"), check="RING.JUMBO_PING")


# Names and the adapter


def test_dead_ipv6_before_a_living_ipv4_warns_at_the_client() -> None:
    (finding,) = findings(*case("B19"))
    assert verdicts([finding]) == [("NET_MDNS_DELAY", "WARN", "client")]
    assert "IPv6 first and dead" in finding.observed
    assert finding.fix == "use http://192.168.50.11:8888 as the endpoint"


@pytest.mark.parametrize(
    "timings",
    [
        "[fd00::1]:8888 ok 0.002\n10.0.0.1:8888 ok 0.001\n",
        "[fd00::1]:8888 timeout 2.0\n10.0.0.1:8888 timeout 2.0\n",
        "10.0.0.1:8888 ok 0.001\n",
    ],
)
def test_name_is_quiet_where_ipv6_answers_or_nothing_does(timings: str) -> None:
    names = ran("getent ahosts s.local", "fd00::1 STREAM s.local\n10.0.0.1 STREAM\n", "c")
    assert findings(names, told("connect timings", timings, "c")) == []


def test_fatal_error_of_the_adapter_names_root_port_and_adapter() -> None:
    found = findings(*case("B18"), code="NET_CX7_AER_FATAL")
    (finding,) = [f for f in found if f.check_id == "NET.AER"]
    assert finding.node == "head"
    assert "fatal AER on root port 0000:00:00.0 of the ConnectX-7" in finding.observed
    assert "restart is suppressed" in finding.why


@pytest.mark.parametrize(
    ("line", "loud"),
    [
        ("pcieport 0000:00:00.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0", True),
        ("watchdog: BUG: soft lockup - CPU#7 stuck for 40s! [irq/99-aerdrv:12]", True),
        ("mlx5_core 0002:01:00.0: mlx5_pci_slot_reset Device state = 2", True),
        ("pcieport 0002:00:00.0: AER: Correctable error message received from 0002:01:00.0", False),
        ("pcieport 0002:00:00.0: AER: Uncorrectable (Non-Fatal) error message received", False),
        ("mlx5_core 0000:01:00.0: Detected insufficient power on the PCIe slot (27W).", False),
    ],
)
def test_only_fatal_lines_count(line: str, loud: bool) -> None:
    found = [
        f for f in findings(ran("dmesg -T", f"[Mon] {line}\n", "n")) if f.check_id == "NET.AER"
    ]
    assert bool(found) == loud


def test_fatal_error_before_the_reboot_warns_only_where_this_boot_is_shown_to_be_clean() -> None:
    text = "pcieport 0000:00:00.0: AER: Uncorrectable (Fatal) error message received\n"
    before = ran("journalctl -k -b -1", text, "n")
    since = ran("journalctl -k", "mlx5_core 0000:01:00.0: Port module event: plugged\n", "n")

    def verdicts(*readings: Reading) -> list[str]:
        found = findings(*readings, code="NET_CX7_AER_FATAL")
        return [f.verdict for f in found if f.check_id == "NET.AER" and f.outcome == "fail"]

    assert verdicts(before) == ["FAIL"]
    assert verdicts(before, since) == ["WARN"]


def test_closed_input_is_found_where_no_address_is_known() -> None:
    closed = "-P INPUT DROP\n-A INPUT -i lo -j ACCEPT\n-A INPUT -p tcp --dport 22 -j ACCEPT\n"
    assert [f.code for f in findings(ran("iptables -S INPUT", closed, "n"))] == ["NET_FIREWALL"]
    opened = closed + "-A INPUT -s 10.0.0.0/8 -j ACCEPT\n"
    assert findings(ran("iptables -S INPUT", opened, "n")) == []


def test_probe_lines_may_be_written_with_blanks() -> None:
    text = "10.9.0.7 20000 ok\n10.9.0.7 port 50001: timed out after 3 s\n"
    (finding,) = findings(told("connect probe", text, "s1", note="s1 -> s7"))
    assert verdicts([finding]) == [("NET_FIREWALL", "FAIL", "s7")]


def test_numbered_rules_of_ufw_are_read() -> None:
    text = (
        "Status: active\n\n     To              Action      From\n"
        "[ 1] 22/tcp          ALLOW IN    Anywhere\n"
        "[ 2] Anywhere        ALLOW IN    10.100.0.0/24\n"
    )
    assert findings(ran("sudo ufw status numbered", text, "n2")) == []
    (finding,) = findings(
        ran("ufw status numbered", text.replace("Anywhere   ", "443/tcp    "), "n2")
    )
    assert finding.code == "NET_FIREWALL"


def test_way_to_a_far_node_that_leaves_by_the_office_network_is_named() -> None:
    answer = "10.1.34.3 via 192.168.50.1 dev enP7s7 src 192.168.50.11 uid 0\n    cache\n"
    (finding,) = findings(
        ran("sysctl -n net.ipv4.ip_forward", "1\n", "n1"),
        ran("ip route get 10.1.34.3", answer, "n1"),
        RING,
        code="NET_TRANSIT_DROPPED",
    )
    assert finding.observed == "the way to 10.1.34.3 leaves by enP7s7"
    assert finding.fix.startswith("sudo ip route add")
