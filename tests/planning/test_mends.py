"""Mends change only what is safe: never the way in, and always with the exact way back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from sparkserve.facts.firewall import Forwarding
from sparkserve.facts.links import Link, Links
from sparkserve.facts.reader import Fact
from sparkserve.facts.routes import Address, Addresses
from sparkserve.facts.services import Service, Services
from sparkserve.facts.unified import Reserve
from sparkserve.model.finding import Finding, Outcome
from sparkserve.model.mend import Change
from sparkserve.planning.mends import MENDS, fix_plan, mends_for, undo_plan

F = TypeVar("F", bound=Fact)


@dataclass
class Told:
    """A node of which a test tells everything."""

    facts: tuple[Fact, ...]
    name: str = "spark2"
    is_root: bool = False
    management_address: str | None = "10.0.0.12"
    fabric_address: str | None = "192.168.0.12"
    seen: list[type[Fact]] = field(default_factory=list)

    def fact(self, kind: type[F]) -> F | None:
        return next((fact for fact in self.facts if isinstance(fact, kind)), None)


def changes(name: str, patient: Told) -> list[Change]:
    (mend,) = (mend for mend in MENDS if mend.name == name)
    return list(mend.changes(patient))


def finding(code: str, node: str | None = "spark2", outcome: Outcome = "fail") -> Finding:
    return Finding(
        code=code, check_id="X", title="x", node=node, outcome=outcome, severity="warning",
        verdict="WARN",
    )  # fmt: skip


LINKS = Links(
    links=(
        Link(name="enP7s7", mtu_bytes=1500),
        Link(name="enp1s0f0np0", mtu_bytes=1500),
        Link(name="enP2p1s0f0np0", mtu_bytes=9000),
        Link(name="bond0", mtu_bytes=4200),
        Link(name="docker0", mtu_bytes=1500),
    )
)
ADDRESSES = Addresses(
    addresses=(
        Address(interface="enP7s7", address="10.0.0.12", prefix_length=24),
        Address(interface="bond0", address="192.168.0.12", prefix_length=24),
    )
)


def test_mtu_rises_on_fast_interfaces_and_goes_back_to_what_it_was() -> None:
    found = changes("mtu", Told((LINKS, ADDRESSES)))
    assert [(change.line, change.undo_line) for change in found] == [
        (
            "sudo -n ip link set dev enp1s0f0np0 mtu 9000",
            "sudo -n ip link set dev enp1s0f0np0 mtu 1500",
        ),
        ("sudo -n ip link set dev bond0 mtu 9000", "sudo -n ip link set dev bond0 mtu 4200"),
    ]


def test_the_way_in_is_never_touched() -> None:
    """A node that is reached over its fast interface could be lost by a new MTU."""
    found = changes("mtu", Told((LINKS, ADDRESSES), management_address="192.168.0.12"))
    assert {change.title for change in found} == {"MTU of enp1s0f0np0 from 1500 to 9000"}
    assert changes("mtu", Told((LINKS, ADDRESSES), management_address=None)) == []
    assert changes("mtu", Told((LINKS,))) == []


def test_root_needs_no_sudo() -> None:
    (change,) = changes("ip-forward", Told((Forwarding(ip_forward=False),), is_root=True))
    assert change.argv == ("sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
    assert change.undo_argv == ("sysctl", "-q", "-w", "net.ipv4.ip_forward=0")


def test_what_is_as_it_should_be_is_left_alone() -> None:
    well = Told((Forwarding(ip_forward=True), Reserve(min_free_bytes=1 << 30), LINKS))
    for name in ("ip-forward", "min-free", "oom-killer"):
        assert changes(name, well) == []
        assert changes(name, Told(())) == []


def test_reserve_goes_back_to_its_old_figure() -> None:
    (change,) = changes("min-free", Told((Reserve(min_free_bytes=4 << 30),)))
    assert change.argv[-1] == "vm.min_free_kbytes=1048576"
    assert change.undo_argv[-1] == "vm.min_free_kbytes=4194304"


def test_only_running_killers_that_are_no_part_of_the_system_are_stopped() -> None:
    services = Services(
        services=(
            Service(name="earlyoom", is_active=True),
            Service(name="systemd-oomd", is_active=True),
            Service(name="nohang", is_active=False),
        )
    )
    (change,) = changes("oom-killer", Told((services,)))
    assert change.argv[-2:] == ("stop", "earlyoom.service")
    assert change.undo_argv[-2:] == ("start", "earlyoom.service")


def test_a_mend_is_offered_for_failing_findings_of_a_node_alone() -> None:
    findings = [
        finding("NET_ACTIVE_MTU_LOW"),
        finding("NET_MTU_MISMATCH"),
        finding("MEM_MIN_FREE_KBYTES", outcome="pass"),
        finding("NET_TRANSIT_DROPPED", node=None),
        finding("MEM_FRAGMENTED"),
    ]
    assert [(mend.name, node) for mend, node in mends_for(findings)] == [("mtu", "spark2")]
    assert mends_for(findings, ("min-free",)) == []


def test_undo_goes_backwards_and_every_step_names_its_way_back() -> None:
    done = changes("mtu", Told((LINKS, ADDRESSES)))
    forth, back = fix_plan(done), undo_plan(done)
    assert [step.id for step in back.steps] == [step.id for step in reversed(forth.steps)]
    assert [step.undo for step in forth.steps] == [f"as root: {c.undo_line}" for c in done]
    assert len({step.id for step in forth.steps}) == 2
    assert fix_plan([]).steps == ()
