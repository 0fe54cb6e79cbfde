"""The cabling map, and what follows from it for triangles, rings and MTU."""

from __future__ import annotations

from sparkserve.checks.cabling import cabling
from sparkserve.checks.diagnose import diagnose
from sparkserve.checks.scene import Scene
from sparkserve.model.reading import Reading
from tests.readings import findings, holds, passes, ran, told, verdicts


def addresses(node: str, *rows: tuple[str, str]) -> Reading:
    """(interface, address/length) rows of one node."""
    lines = [
        f"{n}: {name}    inet {net} scope global {name}" for n, (name, net) in enumerate(rows, 5)
    ]
    return ran("ip -o -4 addr", "\n".join(lines) + "\n", node)


def scene(*readings: Reading) -> Scene:
    return diagnose(readings).scene


F0, F1, T0 = "enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0"
WRONG = (
    addresses("a", (F0, "10.1.12.1/24"), (F1, "10.1.13.1/24")),
    addresses("b", (F0, "10.1.12.2/24"), (F1, "10.1.23.2/24")),
    addresses("c", (F0, "10.1.23.3/24"), (F1, "10.1.13.3/24")),
)
RIGHT = (
    addresses("a", (F0, "10.1.13.1/24"), (F1, "10.1.12.1/24")),
    *WRONG[1:],
)


def test_cables_of_a_triangle_that_join_equal_ports_are_named_and_one_swap_is_advised() -> None:
    (finding,) = findings(*WRONG)
    assert verdicts([finding]) == [("NET_CABLE_SAME_INDEX", "FAIL", None)]
    for words in ("cable a-b p0-p0", "cable a-c p1-p1", "right: b-c p1-p0"):
        assert words in finding.observed
    assert "swap the two plugs at a" in finding.fix


def test_swap_that_was_advised_mends_the_triangle() -> None:
    assert findings(*RIGHT) == []
    assert len(passes(*RIGHT, check="CABLE.INDEX")) == 1


def test_triangle_wired_by_first_ports_only_is_wrong() -> None:
    """Three cables between f0 ports need two ports each, so a second half stands in here."""
    wired = (
        addresses("a", (F0, "10.1.12.1/24"), (F1, "10.1.13.1/24")),
        addresses("b", (F0, "10.1.12.2/24"), (F1, "10.1.23.2/24")),
        addresses("c", (F1, "10.1.23.3/24"), (F0, "10.1.13.3/24")),
    )
    (finding,) = findings(*wired)
    assert "cable a-b p0-p0; cable b-c p1-p1; cable" not in finding.observed
    assert "cable a-b p0-p0" in finding.observed


def test_halves_of_a_cage_are_one_cable() -> None:
    more = (
        addresses("a", (T0, "10.2.13.1/24")),
        addresses("c", ("enP2p1s0f1np1", "10.2.13.3/24")),
    )
    assert findings(*RIGHT, *more) == []


def test_pair_and_switch_may_join_equal_ports() -> None:
    pair = (addresses("a", (F0, "10.1.1.1/24")), addresses("b", (F0, "10.1.1.2/24")))
    assert findings(*pair) == []
    switch = tuple(addresses(n, (F0, f"10.1.1.{i}/24")) for i, n in enumerate("abc", 1))
    assert findings(*switch) == []
    told_so = told("profile", "topology: switch\n", format="yaml")
    assert findings(*WRONG, told_so) == []


def ring(count: int, *, gap: bool = False) -> list[Reading]:
    """Node n joins its f1 to the next one's f0; the last cable may be missing."""
    found = []
    for n in range(count):
        before = count - 1 if n == 0 else n - 1
        rows = [(F0, f"10.1.{before}.2/24"), (F1, f"10.1.{n}.1/24")]
        if gap and n == 0:
            rows = rows[1:]
        found.append(addresses(f"n{n}", *rows))
    return found


def test_ring_must_be_one_circle() -> None:
    wish = told("profile", "topology: ring\nnnodes: 4\n", format="yaml")
    assert findings(*ring(4), wish, code="NET_NOT_A_CYCLE") == []
    (finding,) = findings(*ring(4, gap=True), wish, code="NET_NOT_A_CYCLE")
    assert "n0 1, n3 1" in finding.observed


def test_two_circles_are_no_ring() -> None:
    wish = told("profile", "topology: ring\nnnodes: 6\n", format="yaml")
    first, second = ring(3), ring(3)
    apart = [
        r.model_copy(update={"node": f"m{r.node}", "text": r.text.replace("10.1.", "10.7.")})
        for r in second
    ]
    (finding,) = findings(*first, *apart, wish, code="NET_NOT_A_CYCLE")
    assert "separate circles" in finding.observed


def test_map_holds_what_is_known_of_both_ends() -> None:
    readings = (
        addresses("a", (F0, "10.1.1.1/24")),
        addresses("b", (F0, "10.1.1.2/24")),
        holds(
            "/sys/class/net/*/...",
            f"/sys/class/net/{F0}/mtu:9000\n/sys/class/net/{F0}/carrier:1\n"
            f"/sys/class/net/{F0}/speed:200000\n"
            f"/sys/class/net/{F0}/device/current_link_width:4\n"
            f"/sys/class/net/{F0}/device/current_link_speed:32.0 GT/s PCIe\n",
            "a",
        ),
        ran(
            "show_gids",
            f"rocep1s0f0\t1\t3\t0000:0000:0000:0000:0000:ffff:0a01:0101 10.1.1.1\tv2\t{F0}\n",
            "a",
        ),
    )
    (cable,) = cabling(scene(*readings))
    one, other = cable.ends
    assert cable.text == "a p0 - b p0"
    assert one.text == f"a p0 {F0}: MTU 9000, 200G, PCIe x4 32 GT/s, rocep1s0f0 GID {{3}}"
    assert (other.mtu_bytes, other.rdma, other.gid) == (None, None, None)
    assert cable.advice == ""


def test_different_mtu_fails_at_the_smaller_end_and_is_advised_in_the_map() -> None:
    texts = (
        addresses("a", (F0, "10.1.1.1/24")),
        addresses("b", (F0, "10.1.1.2/24")),
        holds(f"/sys/class/net/{F0}/mtu", "9000\n", "a"),
        holds(f"/sys/class/net/{F0}/mtu", "4200\n", "b"),
    )
    (finding,) = findings(*texts)
    assert verdicts([finding]) == [("NET_MTU_MISMATCH", "FAIL", "b")]
    assert "MTU 4200, but a" in finding.observed
    assert finding.fix == f"sudo ip link set {F0} mtu 9000"
    assert cabling(scene(*texts))[0].advice == "MTU differs between its ends"


def test_map_says_which_cable_to_swap() -> None:
    advice = [cable.advice for cable in cabling(scene(*WRONG))]
    assert advice == [
        "joins equal ports: swap cable 1 at one end", "joins equal ports: swap cable 2 at one end",
        "",
    ]  # fmt: skip


def lldp(node: str, *rows: tuple[str, str, str]) -> Reading:
    """(own interface, neighbour, its port) as lldpcli prints them."""
    text = "LLDP neighbors:\n" + "".join(
        f"Interface:    {own}, via: LLDP, RID: 1\n  Chassis:\n    ChassisID:    mac 4c:bb:1\n"
        f"    SysName:      {other}\n  Port:\n    PortID:       ifname {port}\n"
        f"    PortDescr:    {port}\n"
        for own, other, port in rows
    )
    return ran("lldpcli show neighbors", text, node)


def test_triangle_is_known_by_lldp_as_well() -> None:
    wrong = (
        lldp("a", (F0, "b", F0), (F1, "c", F1)), lldp("b", (F0, "a", F0), (F1, "c", F0)),
    )  # fmt: skip
    (finding,) = findings(*wrong)
    assert verdicts([finding]) == [("NET_CABLE_SAME_INDEX", "FAIL", None)]
    assert "cable a-b p0-p0; cable a-c p1-p1; right: b-c p1-p0" in finding.observed
    right = (lldp("a", (F0, "b", F1), (F1, "c", F0)), lldp("b", (F0, "c", F1)))
    assert findings(*right) == []


def test_cables_that_addresses_and_lldp_show_are_counted_once() -> None:
    both = (*RIGHT, lldp("a", (F0, "c", F1), (F1, "b", F0)))
    assert len(cabling(scene(*both))) == 3
    values = "lldp.enp1s0f0np0.chassis.name=b\nlldp.enp1s0f0np0.port.ifname=enp1s0f1np1\n"
    (cable,) = cabling(scene(ran("lldpctl -f keyvalue", values, "a")))
    assert cable.text == "a p0 - b p1"
