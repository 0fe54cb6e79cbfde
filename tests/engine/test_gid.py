"""GID index resolution: NCCL's rules of selecting ports, sentence by sentence."""

from __future__ import annotations

import pytest

from sparkserve.engine.gid import (
    ANY_PORT,
    MAX_NUMBER,
    GidQuestion,
    c_atoi,
    decide,
    member,
    parse_selector,
    preferred_ip,
    resolve,
    select,
)
from sparkserve.model.rdma import ROCE_V1, ROCE_V2, Gid, RdmaPort

FE80 = "fe80:0000:0000:0000:4ebb:47ff:fe00:0a01"


def mapped(address: str) -> str:
    """The GID of an IPv4 address, written out."""
    a, b, c, d = (int(part) for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def gid(index: int, text: str, kind: str | None = ROCE_V2, netdev: str | None = "net0") -> Gid:
    return Gid(index=index, gid=mapped(text) if "." in text else text, type=kind, netdev=netdev)


def port(device: str, *gids: Gid, number: int = 1, state: str | None = "ACTIVE") -> RdmaPort:
    return RdmaPort(
        device=device, port=number, state=state, link_layer="Ethernet", netdev="net0", gids=gids
    )


def usual(device: str, address: str, at: int = 3, netdev: str = "net0") -> RdmaPort:
    """A port with link-local rows, a v1 row and, at ``at``, the v2 row of an address."""
    return port(
        device,
        gid(0, FE80, ROCE_V1, netdev),
        gid(1, FE80, ROCE_V2, netdev),
        gid(at - 1, address, ROCE_V1, netdev),
        gid(at, address, ROCE_V2, netdev),
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("08", 8),
        (" \t2", 2),
        ("+3", 3),
        ("-1", -1),
        ("2x9", 2),
        ("x", 0),
        ("", 0),
        ("0x10", 0),
        ("999999999", 999_999_999),
        ("1000000000", MAX_NUMBER),
        ("18446744073709551615", MAX_NUMBER),
        ("-18446744073709551615", -MAX_NUMBER),
        ("0000000000007", 7),
        ("\N{ARABIC-INDIC DIGIT THREE}", 0),
    ],
)
def test_port_numbers_are_read_as_c_reads_them(text: str, value: int) -> None:
    assert c_atoi(text) == value


def names(selector: str) -> list[tuple[str, int]]:
    return [(token.name.decode(), token.port) for token in parse_selector(selector).tokens]


def test_selector_is_split_into_names_and_ports() -> None:
    assert names("roce0:1,roce1,roce2:,roce3:2:7:9") == [
        ("roce0", 1), ("roce1", ANY_PORT), ("roce2", ANY_PORT), ("roce3", 2),
    ]  # fmt: skip
    assert names(",:1,,a") == [("a", ANY_PORT)]


def test_leading_marks_mean_exclude_and_exact() -> None:
    both = parse_selector("^=a,b")
    assert (both.excludes, both.exact, len(both.tokens)) == (True, True, 2)
    # Behind the name of an exact list a caret is part of the name.
    assert names("=^a") == [("^a", ANY_PORT)]


def test_names_without_equals_sign_are_prefixes() -> None:
    ports = [usual("rocep1s0f0", "10.0.0.1"), usual("rocep1s0f01", "10.0.0.2")]
    assert len(select(ports, parse_selector("rocep1s0f0")).members) == 2
    assert [p.device for p in select(ports, parse_selector("=rocep1s0f0")).members] == [
        "rocep1s0f0"
    ]
    assert select(ports, parse_selector("ROCE")).members == ()


def test_blanks_belong_to_names() -> None:
    assert select([usual("a", "10.0.0.1")], parse_selector("b, a")).members == ()


def test_empty_list_matches_everything_and_a_bare_caret_nothing() -> None:
    ports = [usual("a", "10.0.0.1"), usual("b", "10.0.0.2")]
    for text in ("", None, "=", ",,"):
        assert len(select(ports, parse_selector(text)).members) == 2
    assert select(ports, parse_selector("^")).members == ()


def test_exclusion_takes_the_others() -> None:
    ports = [usual("a", "10.0.0.1"), usual("b", "10.0.0.2")]
    assert [p.device for p in select(ports, parse_selector("^a")).members] == ["b"]


def test_names_are_cut_to_63_bytes_not_characters() -> None:
    long = "\N{LATIN SMALL LETTER E WITH ACUTE}" * 40
    assert parse_selector(f"={long}").tokens[0].name == long.encode()[:63]
    device = "r" * 70
    assert len(select([usual(device, "10.0.0.1")], parse_selector("=" + "r" * 63)).members) == 1


def test_only_the_first_32_non_empty_names_count_and_it_is_said() -> None:
    text = ",".join(["", *(f"x{n}" for n in range(32)), "a"])
    selector = parse_selector(text)
    assert (len(selector.tokens), selector.left_out) == (32, 1)
    choice = resolve(GidQuestion([usual("a", "10.0.0.1")], text, "10.0.0.1"))
    assert choice.index is None
    assert "1 names behind the 32nd" in choice.notes[0]


def test_a_huge_port_number_does_not_wrap_into_any_port() -> None:
    ports = [usual("a", "10.0.0.1")]
    assert select(ports, parse_selector("a:18446744073709551615")).members == ()
    assert select(ports, parse_selector("a:x")).members == ()
    assert len(select(ports, parse_selector("a:1")).members) == 1
    assert len(select(ports, parse_selector("a:01.5")).members) == 1


def test_state_and_link_layer_are_tested_before_the_selector() -> None:
    down = usual("a", "10.0.0.1").model_copy(update={"port": 2, "state": "DOWN"})
    odd = usual("c", "10.0.0.3").model_copy(update={"link_layer": "Unknown"})
    selection = select([usual("a", "10.0.0.1"), down, odd], parse_selector("a,c"))
    assert [p.name for p in selection.members] == ["a"]
    assert ([p.name for p in selection.inactive], [p.name for p in selection.other_layer]) == (
        ["a:2"], ["c"],
    )  # fmt: skip


def test_what_cannot_be_read_is_no_evidence_of_inactivity() -> None:
    blind = usual("a", "10.0.0.1").model_copy(update={"state": None, "link_layer": None})
    assert select([blind], parse_selector("a")).members == (blind,)


def test_infiniband_counts_as_a_link_layer() -> None:
    ib = usual("a", "10.0.0.1").model_copy(update={"link_layer": "InfiniBand"})
    assert select([ib], parse_selector("")).members == (ib,)


def test_at_most_32_ports_are_kept_and_the_rest_is_listed() -> None:
    ports = [usual(f"d{n:02}", "10.0.0.1") for n in range(34)]
    selection = select(ports, parse_selector(""))
    assert (len(selection.members), [p.name for p in selection.cut]) == (32, ["d32", "d33"])
    choice = resolve(GidQuestion(ports, None, "10.0.0.1"))
    assert choice.index == 3
    assert "d32, d33" in choice.notes[0]


def test_nothing_selected_fails_and_names_selector_and_skipped_ports() -> None:
    down = usual("a", "10.0.0.1").model_copy(update={"state": "DOWN"})
    odd = usual("b", "10.0.0.1").model_copy(update={"link_layer": "Unspecified"})
    choice = resolve(GidQuestion([down, odd], "a", "10.0.0.1"))
    assert choice.index is None
    for words in ("NCCL_IB_HCA=a", "not active: a", "other link layer: b (Unspecified)"):
        assert words in choice.reason


def test_usable_rows_are_v2_rows_of_the_preferred_or_the_rows_own_netdev() -> None:
    table = port(
        "a",
        gid(0, FE80),
        gid(1, "10.0.0.1", ROCE_V1),
        gid(2, "10.0.0.1"),
        gid(3, "10.0.9.9", netdev="vlan9"),
        gid(4, "10.0.9.9", netdev="net0"),
        gid(5, "10.0.0.7"),
        gid(6, "10.0.5.5", None),
    )
    found = member(table, "10.0.0.1", {"net0": ["10.0.0.1"], "vlan9": ["10.0.9.9"]})
    assert (found.usable, found.preferred) == ((2, 3), (2,))


def test_the_preferred_address_counts_even_on_a_device_without_known_addresses() -> None:
    assert member(port("a", gid(7, "10.0.0.1", netdev=None)), "10.0.0.1", {}).usable == (7,)


def test_the_whole_set_is_collected_and_the_sets_are_intersected() -> None:
    one = port("a", gid(3, "10.0.0.1"), gid(5, "10.0.0.2"))
    two = port("b", gid(5, "10.0.1.1"), gid(7, "10.0.1.2"))
    addresses = {"net0": ["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2"]}
    choice = resolve(GidQuestion([one, two], None, "10.9.9.9", addresses))
    assert choice.index == 5
    assert choice.sets == "a {3, 5}; b {5, 7}"


def test_member_without_usable_index_fails_and_is_named() -> None:
    choice = resolve(
        GidQuestion([usual("a", "10.0.0.1"), port("b", gid(0, FE80))], None, "10.0.0.1", {})
    )
    assert choice.index is None
    assert choice.reason.endswith("on b")


def test_empty_intersection_prints_every_set() -> None:
    ports = [usual("a", "10.0.0.1", 3), usual("b", "10.0.1.1", 5, "net1")]
    choice = resolve(GidQuestion(ports, None, "10.0.0.1", {"net1": ["10.0.1.1"]}))
    assert choice.index is None
    assert "a {3}; b {5}" in choice.reason
    assert "NCCL_IB_HCA" in choice.reason


def test_the_preferred_address_beats_a_lower_index() -> None:
    table = port("a", gid(3, "10.0.9.9"), gid(5, "10.0.0.1"))
    addresses = {"net0": ["10.0.9.9", "10.0.0.1"]}
    assert resolve(GidQuestion([table], None, "10.0.0.1", addresses)).index == 5
    assert resolve(GidQuestion([table], None, "10.0.4.4", addresses)).index == 3


def test_one_member_that_reached_an_index_by_the_preferred_address_is_enough() -> None:
    one = port("a", gid(3, "10.0.9.9"), gid(5, "10.0.0.1"))
    two = port("b", gid(3, "10.0.9.8"), gid(5, "10.0.9.7"))
    addresses = {"net0": ["10.0.9.9", "10.0.0.1", "10.0.9.8", "10.0.9.7"]}
    assert resolve(GidQuestion([one, two], None, "10.0.0.1", addresses)).index == 5


def test_no_address_of_the_node_fails() -> None:
    choice = resolve(GidQuestion([usual("a", "10.0.0.1")], None, None))
    assert (choice.index, choice.reason) == (None, "no IPv4 address of this node is known")


def test_preferred_address_is_the_first_literal_one_in_order() -> None:
    assert preferred_ip("10.0.0.9", ["10.0.0.1"], "10.0.0.2", "10.0.0.3") == "10.0.0.9"
    assert preferred_ip(None, ["fd00::1", "10.0.0.1", "10.0.0.5"], "10.0.0.2") == "10.0.0.1"
    assert preferred_ip("", [], "spark1", "10.0.0.3") == "10.0.0.3"
    assert preferred_ip(None, [], None, "spark1.local") is None


def test_resolve_takes_the_result_and_remarks_on_a_pin_that_differs() -> None:
    choice = resolve(GidQuestion([usual("a", "10.0.0.1", 5)], None, "10.0.0.1"))
    assert decide("resolve", choice, pin=5) == ("5", "", "")
    value, problem, remark = decide("resolve", choice, pin=3)
    assert (value, problem) == ("5", "")
    assert "3 differs from the resolved 5" in remark


def test_pin_is_taken_only_where_every_member_can_use_it() -> None:
    ports = [usual("a", "10.0.0.1", 3), usual("b", "10.0.1.1", 5, "net1")]
    choice = resolve(GidQuestion(ports, None, "10.0.0.1", {"net1": ["10.0.1.1"]}))
    decision = decide("pin", choice, pin=3)
    assert decision.value is None
    assert decision.problem == "pinned index 3 is not usable: b"
    good = resolve(GidQuestion(ports[:1], None, "10.0.0.1"))
    assert decide("pin", good, pin=3).value == "3"
    assert decide("pin", good).problem != ""


@pytest.mark.parametrize("version", [None, (2, 29, 2), (2, 28, 9)])
def test_unset_needs_a_current_nccl(version: tuple[int, int, int] | None) -> None:
    choice = resolve(GidQuestion([usual("a", "10.0.0.1")], None, "10.0.0.1"))
    assert "2.29.3" in decide("unset", choice, nccl_version=version).problem


def test_unset_leaves_the_variable_out_but_still_validates() -> None:
    ports = [usual("a", "10.0.0.1", 3), usual("b", "10.0.1.1", 5, "net1")]
    apart = resolve(GidQuestion(ports, None, "10.0.0.1", {"net1": ["10.0.1.1"]}))
    assert decide("unset", apart, nccl_version=(2, 30, 7)) == (None, "", "")
    blind = resolve(GidQuestion([port("a", gid(0, FE80))], None, "10.0.0.1"))
    assert decide("unset", blind, nccl_version=(2, 30, 7)).problem != ""


def test_no_decision_ever_holds_an_empty_text() -> None:
    nothing = resolve(GidQuestion([], None, "10.0.0.1"))
    for policy in ("resolve", "unset", "pin"):
        decision = decide(policy, nothing, pin=3, nccl_version=(2, 30, 7))
        assert decision.value is None
        assert decision.problem != ""


def test_the_index_is_found_on_each_node_by_itself() -> None:
    """The same wish gives 3 on one node and 5 on the other, as in the public reports."""
    first = resolve(GidQuestion([usual("rocep1s0f0", "10.100.0.1", 3)], "rocep1s0f0", "10.100.0.1"))
    second = resolve(
        GidQuestion([usual("rocep1s0f0", "10.100.0.2", 5)], "rocep1s0f0", "10.100.0.2")
    )
    assert (first.index, second.index) == (3, 5)
    assert "rocep1s0f0" in second.reason
    assert "10.100.0.2" in second.reason
