"""What pair tests measured, against what healthy ports give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.fabric_ports import LINK_SPEED_MBPS, PCIE_GTPS, PCIE_WIDTH
from sparkserve.checks.fabric_view import at, is_fabric
from sparkserve.checks.scene import Scene
from sparkserve.facts.bandwidth import ErrorCounters, Latencies, Rate, Rates
from sparkserve.facts.links import Links, PciSlots

HEALTHY_GBPS = (92.0, 97.0)
"""RDMA of one half of a cage; case NET_CX7_DEGRADED."""
ENOUGH_GBPS = 0.75 * 100
"""Three quarters of a half's share of the port; preflight section 7."""
DEGRADED_GBPS = (8.0, 25.0)
"""A degraded ConnectX-7 gives this; below it is another fault. Case NET_CX7_DEGRADED."""
LEAST_TCP_GBPS = 1.0
"""Less over a 200 Gb/s port is a broken way or another network [proposal]."""
UNEVEN = 0.4
"""A pair below this part of the median pair is named [proposal]."""
LEAST_COLLECTIVE_GBPS = 21.875 * 8
LEAST_RING_GBPS = 10 * 8
"""Bus bandwidth of all_gather_perf; preflight section 7."""
MOST_AVERAGE_US, MOST_P99_US = 10.0, 20.0
"""Latency of small RDMA writes; preflight section 7."""
LARGE_BYTES = 16 << 20
"""A collective of smaller size measures latency [proposal]."""


def _rdma(scene: Scene) -> Iterator[Judgement]:
    judged = []
    for place, known, _ in scene.seen(Rates):
        # A test over all sizes starts with small ones, which are slow by nature.
        tests = [rate for rate in known.rates if rate.tool == "rdma"]
        if tests:
            best = max(tests, key=lambda one: one.average_gbps or 0)
            judged.append((place, best, _judge_rdma(scene, place, best)))
    yield from _blamed(judged)


def _blamed(judged: Sequence[tuple[str | None, Rate, Judgement]]) -> Iterator[Judgement]:
    """The judgements of several pairs, each failing one at the node that all failing ones share.

    A pair has two ends, and the one that measured is not more suspect than the other. One node is
    blamed where every failing test has it at an end, with two others at the other ends or more.
    Otherwise the node that measured keeps the judgement.
    """
    slow = [{place, rate.target} for place, rate, one in judged if one.outcome == "fail"]
    shared = set.intersection(*slow) if slow else set()
    others = set().union(*slow) - shared
    culprit = shared.pop() if len(shared) == 1 and len(others) > 1 else None
    for place, _, one in judged:
        if one.outcome == "fail" and culprit is not None and place != culprit:
            told = f"{one.observed}, measured by {place}; every slow test has {culprit} at an end"
            yield replace(one, node=culprit, observed=told)
        else:
            yield one


def _judge_rdma(scene: Scene, place: str | None, rate: Rate) -> Judgement:
    way = _way(rate)
    expected = f"{HEALTHY_GBPS[0]:g} to {HEALTHY_GBPS[1]:g} Gb/s per half"
    if rate.average_gbps is None or rate.average_gbps < DEGRADED_GBPS[0]:
        told = "no result" if rate.average_gbps is None else f"{rate.average_gbps:g} Gb/s"
        return Judgement(
            place,
            "fail",
            observed=f"{told}{way}",
            expected=expected,
            why="less than a degraded adapter gives: another fault, such as a wrong GID, a blocked"
            " way or a dead cable",
            fix="sparkserve doctor --only fabric; then repeat the test on one cable",
            code="NET_RDMA_BROKEN",
        )
    told = f"{rate.average_gbps:g} Gb/s{way}"
    if rate.average_gbps >= ENOUGH_GBPS:
        return passed(place, told)
    narrow = _narrow(scene, place)
    if narrow is None and rate.average_gbps <= DEGRADED_GBPS[1]:
        return Judgement(
            place, "fail", observed=f"degraded: {told}{_proof(scene, place)}", expected=expected
        )
    return Judgement(
        place,
        "fail",
        observed=told + (f"; {narrow}" if narrow else ""),
        expected=expected,
        why="the link itself is narrow or slow" if narrow else "slower than healthy ports are",
        fix="mend the link first, then measure again"
        if narrow
        else "check MTU 9000 and active_mtu 4096 at both ends, then measure again",
        code="NET_RDMA_SLOW",
        severity=None if narrow else "warning",
    )


def _way(rate: Rate) -> str:
    device = f" on {rate.device}" if rate.device else ""
    return device + (f" to {rate.target}" if rate.target else "")


def _narrow(scene: Scene, place: str | None) -> str | None:
    """What is wrong with link or PCIe at this place; None where both are well or not known."""
    links, slots = at(scene, place, Links), at(scene, place, PciSlots)
    for link in links.links if links else ():
        if not is_fabric(scene, place, link.name) or link.has_carrier is False:
            continue
        if link.speed_mbps is not None and link.speed_mbps < LINK_SPEED_MBPS:
            return f"{link.name} runs at {link.speed_mbps} Mb/s"
        if link.pcie_width is not None and link.pcie_width < PCIE_WIDTH:
            return f"{link.name} has PCIe x{link.pcie_width}"
    for slot in slots.slots if slots else ():
        if slot.width is not None and slot.width < PCIE_WIDTH:
            return f"{slot.address} has PCIe x{slot.width}"
        if slot.speed_gtps is not None and slot.speed_gtps < PCIE_GTPS:
            return f"{slot.address} has PCIe {slot.speed_gtps:g} GT/s"
    return None


def _proof(scene: Scene, place: str | None) -> str:
    """What was measured of the link, so that nobody looks there again."""
    links, slots = at(scene, place, Links), at(scene, place, PciSlots)
    known = [
        f"{link.name} {link.speed_mbps} Mb/s" for link in (links.links if links else ())
        if link.speed_mbps is not None and is_fabric(scene, place, link.name)
    ]  # fmt: skip
    known += [
        f"PCIe x{slot.width} {slot.speed_gtps:g} GT/s" for slot in (slots.slots if slots else ())
        if slot.width is not None and slot.speed_gtps is not None
    ]  # fmt: skip
    return f", though {' and '.join(known)} are well" if known else ""


def _tcp(scene: Scene) -> Iterator[Judgement]:
    found = [
        (place, rate) for place, known in scene.each(Rates) for rate in known.rates
        if rate.tool == "tcp"
    ]  # fmt: skip
    known = [rate.average_gbps for _, rate in found if rate.average_gbps is not None]
    usual = median(known) if len(known) > 2 else None
    yield from _blamed(
        [(place, rate, _judge_tcp(scene, place, rate, usual)) for place, rate in found]
    )


def _judge_tcp(scene: Scene, place: str | None, rate: Rate, usual: float | None) -> Judgement:
    told = "no result" if rate.average_gbps is None else f"{rate.average_gbps:g} Gb/s"
    told += _way(rate)
    if rate.average_gbps is None or rate.average_gbps < LEAST_TCP_GBPS:
        return Judgement(
            place,
            "fail",
            observed=f"TCP {told}",
            expected=f"at least {LEAST_TCP_GBPS:g} Gb/s",
            fix="ip -4 route get <the peer's fabric address>: the way must leave by a fabric"
            " interface; then check cable and MTU",
        )
    if rate.is_iperf and rate.average_gbps <= DEGRADED_GBPS[1]:
        return Judgement(
            place,
            "fail",
            observed=f"iperf {told}{_proof(scene, place)}",
            expected="about 96 Gb/s untuned",
            why="as much as a degraded adapter gives; RDMA tells whether it is one",
            fix="ib_write_bw -d <hca> -x <gid> -q 8 --report_gbits <peer>: 8 to 25 Gb/s means a"
            " degraded adapter and a cold power cycle",
            severity="warning",
        )
    if usual is not None and rate.average_gbps < UNEVEN * usual:
        return Judgement(
            place,
            "fail",
            observed=f"TCP {told}; the median pair has {usual:g} Gb/s",
            expected=f"at least {UNEVEN * usual:.3g} Gb/s",
            fix=f"check cable and MTU between {place} and {rate.target or 'its peer'}",
            severity="warning",
        )
    return passed(place, f"TCP {told}")


def _collective(scene: Scene) -> Iterator[Judgement]:
    for place, known in scene.each(Rates):
        tests = [rate for rate in known.rates if rate.tool == "collective"]
        if tests:
            yield _judge_collective(scene, place, tests)


def _judge_collective(scene: Scene, place: str | None, tests: Sequence[Rate]) -> Judgement:
    failed = [one.failure for one in tests if one.failure is not None]
    if failed:
        return Judgement(
            place,
            "fail",
            observed=f"no result: {failed[0]}",
            expected="a result on every rank",
            why="what a launch would meet in its first collective",
            fix="sparkserve doctor --only fabric,gids,nccl",
            code="NET_COLLECTIVE_BROKEN",
            severity="error",
        )
    wrong = sum(one.wrong_values or 0 for one in tests)
    if wrong:
        return Judgement(
            place,
            "fail",
            observed=f"{wrong} wrong values",
            expected="0 wrong values",
            why="a link or an NCCL build that corrupts data makes every answer worthless",
            fix="test each pair of nodes alone; change the cable or NCCL of the pair that fails",
            code="NET_COLLECTIVE_BROKEN",
            severity="error",
        )
    best = max(tests, key=lambda one: one.average_gbps or 0)
    told = f"collective of {best.size_bytes} B: {(best.average_gbps or 0) / 8:.3g} GB/s"
    if best.backend == "gloo":
        return passed(place, f"{told} by gloo; no GPU took part, so its speed is not judged")
    large = [one for one in tests if (one.size_bytes or 0) >= LARGE_BYTES]
    if not large:
        return Judgement(place, "skipped", f"{told}; too small to judge the speed")
    least = LEAST_RING_GBPS if scene.wanted.topology == "ring" else LEAST_COLLECTIVE_GBPS
    if max(one.average_gbps or 0 for one in large) >= least:
        return passed(place, told)
    return Judgement(
        place, "fail", observed=told, expected=f"at least {least / 8:g} GB/s", severity="warning"
    )


def _latency(scene: Scene) -> Iterator[Judgement]:
    for place, known in scene.each(Latencies):
        slow = [
            one for one in known.tests
            if one.average_us > MOST_AVERAGE_US or (one.p99_us or 0) > MOST_P99_US
        ]  # fmt: skip
        told = ", ".join(
            f"{one.size_bytes} B {one.average_us:g} us"
            + (f" (99 %: {one.p99_us:g} us)" if one.p99_us is not None else "")
            for one in slow or known.tests
        )
        if slow:
            yield Judgement(
                place,
                "fail",
                observed=told,
                expected=f"{MOST_AVERAGE_US:g} us on average, 99 % within {MOST_P99_US:g} us",
            )
        else:
            yield passed(place, told)


def _errors(scene: Scene) -> Iterator[Judgement]:
    for place, known in scene.each(ErrorCounters):
        if not known.before or not known.after:
            continue
        if known.new:
            told = ", ".join(f"{name} +{count}" for name, count in known.new.items())
            first = next(iter(known.new)).partition("/")[0]
            yield Judgement(
                place,
                "fail",
                observed=f"during the test: {told}",
                expected="no new error",
                fix=f"reseat or change the cable of {first}, then test again",
            )
        else:
            yield passed(place, f"{len(known.after)} counters unchanged")


_ONLY_ON_REQUEST = (
    "a test is a load: it runs only where `sparkserve doctor --bandwidth` asks for it"
)

CHECKS: tuple[Check, ...] = (
    Check(
        "RDMA.BANDWIDTH", "NET_CX7_DEGRADED", "RDMA runs at full speed", ("doctor",),
        "error", "hardware", (Rates,), _rdma,
        why="the ConnectX-7 came up in a degraded state, though link and PCIe look right (its"
        " power warning of 27 W says nothing: healthy nodes print it, too)",
        fix="cold power cycle: shut down, unplug for 60 s, start, then measure again",
        symptom="The link says 200 Gb/s and PCIe Gen5 x4, yet everything stops near 13 Gb/s.",
        text_only=_ONLY_ON_REQUEST,
        also=("NET_RDMA_BROKEN", "NET_RDMA_SLOW"),
    ),
    Check(
        "RDMA.LATENCY", "NET_RDMA_LATE", "small RDMA writes are quick", ("doctor",),
        "warning", "hardware", (Latencies,), _latency,
        why="a hop too many, a power-saving state or a bad cable delays every small collective",
        fix="test the same cable at the other port, and the other cable at this one",
        symptom="Decode over several nodes is slow although the bandwidth is right.",
        text_only=_ONLY_ON_REQUEST,
    ),
    Check(
        "CABLE.ERRORS", "NET_CABLE_ERRORS", "a test causes no new errors", ("doctor",),
        "error", "hardware", (ErrorCounters,), _errors,
        why="checksum, PHY or carrier errors under load mean a marginal cable or connector",
        fix="reseat or change the cable",
        symptom="Transfers now and then stand still or are slow, and nothing is ever down.",
        text_only=_ONLY_ON_REQUEST,
    ),
    Check(
        "TCP.BANDWIDTH", "NET_TCP_SLOW", "TCP runs at a fair speed", ("doctor",),
        "error", "hardware", (Rates,), _tcp,
        why="traffic takes another network or a bad cable",
        fix="check the way, the cable and the MTU between the two nodes",
        symptom="Copies between nodes and the start of a run are slow.",
        text_only=_ONLY_ON_REQUEST,
    ),
    Check(
        "NCCL.BANDWIDTH", "NET_COLLECTIVE_SLOW", "collectives run at full speed", ("doctor",),
        "warning", "hardware", (Rates,), _collective,
        why="NCCL uses one half of a port, TCP sockets or a small MTU",
        fix="NCCL_DEBUG=INFO and read the `NET/IB : Using` line: both halves must be in it",
        symptom="Prefill over several nodes is slow though each pair test is fast.",
        text_only=_ONLY_ON_REQUEST,
        also=("NET_COLLECTIVE_BROKEN",),
    ),
)  # fmt: skip
