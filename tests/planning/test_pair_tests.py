"""Pair tests as data: bounded, without overlap, and really runnable on a plain machine."""

from __future__ import annotations

import subprocess

import pytest

from sparkserve.facts.bandwidth import ErrorCounters, Rates
from sparkserve.facts.firewall import Connections
from sparkserve.facts.reader import understand
from sparkserve.facts.registry import READERS
from sparkserve.model.reading import Reading
from sparkserve.planning import pair_tests
from sparkserve.planning.pair_tests import PairEnd, PairTest
from sparkserve.units import GIB
from tests.ports import free_port

ENDS = tuple(
    PairEnd(
        node=f"s{n}", address=f"10.0.0.{n}", interface="enp1s0f0np0", mtu_bytes=9000,
        rdma="rocep1s0f0", gid_index=3,
    )
    for n in range(1, 5)
)  # fmt: skip
LOCAL = (PairEnd(node="a", address="127.0.0.1"), PairEnd(node="b", address="127.0.0.2"))


def test_no_node_takes_part_twice_in_one_round() -> None:
    tests = pair_tests.tcp_tests(ENDS)
    rounds = pair_tests.rounds(tests)
    assert sorted(t.id for r in rounds for t in r) == sorted(t.id for t in tests)
    assert len(tests) == 12
    for one in rounds:
        nodes = [node for test in one for node in (test.client, test.server)]
        assert len(nodes) == len(set(nodes))


def test_jumbo_ping_fills_the_interface_to_the_byte() -> None:
    command = pair_tests.jumbo_pings(ENDS)[0].client_command
    assert command == "ping -n -c 2 -W 2 -M do -s 8972 -I enp1s0f0np0 10.0.0.2"


@pytest.mark.parametrize(
    ("size", "available", "words"),
    [
        (16 * GIB, 29 * GIB, "needs about 32.0 GiB of 29.0 GiB"),
        (512 << 20, None, "above the cap of 256.0 MiB"),
        (0, None, "above 0"),
        (256 << 20, 100 * GIB, None),
    ],
)
def test_sizes_that_would_freeze_a_node_are_refused(
    size: int, available: int | None, words: str | None
) -> None:
    told = pair_tests.refused(size, available)
    assert (told is None) if words is None else (told is not None and words in told)


def test_no_builder_goes_over_the_cap() -> None:
    tests = (*pair_tests.tcp_tests(ENDS), *pair_tests.rdma_tests(ENDS))
    assert max(test.load_bytes for test in tests) <= pair_tests.BUFFER_CAP_BYTES
    with pytest.raises(ValueError, match="cap"):
        pair_tests.rdma_tests(ENDS, size_bytes=64 << 20)


def test_rdma_test_names_device_and_gid_of_each_side() -> None:
    other = ENDS[1].model_copy(update={"rdma": "rocep1s0f1", "gid_index": 5})
    first = pair_tests.rdma_tests((ENDS[0], other))[0]
    assert "-d rocep1s0f0 -x 3" in first.client_command
    assert first.client_command.endswith(" 10.0.0.2")
    assert first.server_command is not None
    assert "-d rocep1s0f1 -x 5" in first.server_command
    assert pair_tests.rdma_tests((ENDS[0], LOCAL[0])) == ()


def run(test: PairTest) -> Reading:
    """Both sides on this machine, in the order that the data says."""
    assert test.server_command is not None
    with subprocess.Popen(
        ["sh", "-c", test.server_command], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().strip() == test.ready
        client = subprocess.run(
            ["sh", "-c", test.client_command],
            capture_output=True, text=True, timeout=test.timeout_s, check=False,
        )  # fmt: skip
        assert server.wait(timeout=test.timeout_s) == 0
    return Reading(
        what=test.what, text=client.stdout, node=test.client, note=test.note, rc=client.returncode
    )


def test_tcp_test_measures_what_was_received() -> None:
    test = pair_tests.tcp_tests(LOCAL, seconds=1, first_port=free_port())[0]
    ((_, fact, _, _),) = understand([run(test)], READERS).observations
    assert isinstance(fact, Rates)
    assert fact.rates[0].target == "b"
    assert (fact.best_gbps("tcp") or 0) > 0


def test_port_probe_tells_open_ports_from_closed_ones() -> None:
    opened, closed = free_port(), free_port()
    test = pair_tests.port_probes(LOCAL, (opened,))[0]
    widened = test.client_command + f" {closed}"
    reading = run(test.model_copy(update={"client_command": widened}))
    ((_, fact, _, _),) = understand([reading], READERS).observations
    assert isinstance(fact, Connections)
    assert [(one.port, one.result) for one in fact.tried] == [(opened, "ok"), (closed, "refused")]


def test_counters_of_a_plain_machine_are_read_before_and_after() -> None:
    facts = []
    for after in (False, True):
        (test,) = pair_tests.counter_reads(
            (PairEnd(node="a", address="::1", interface="lo"),), after=after
        )
        done = subprocess.run(
            ["sh", "-c", test.client_command], capture_output=True, text=True, check=True
        )
        reading = Reading(what=test.what, text=done.stdout, node="a")
        ((_, fact, _, _),) = understand([reading], READERS).observations
        assert isinstance(fact, ErrorCounters)
        facts.append(fact)
    both = facts[0].merged(facts[1])
    assert both.before.keys() == both.after.keys() != set()
    assert both.new == {}


def test_a_cable_is_qualified_with_both_payloads() -> None:
    tests = pair_tests.latency_tests(ENDS[:2])
    assert len(tests) == 4
    assert {
        size
        for size in (12288, 16384)
        if any(f"-s {size} -n 10000" in t.client_command for t in tests)
    } == {12288, 16384}
