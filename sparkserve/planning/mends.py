"""Named mends: small changes that last until a reboot and can be taken back exactly.

Whatever is not listed here is never done by ``doctor``: it prints the command instead. A mend
touches no file, ends nothing that serves, and knows the value that it replaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sparkserve.facts.fabric_names import fabric_name
from sparkserve.facts.firewall import Forwarding
from sparkserve.facts.links import Links
from sparkserve.facts.reader import Fact
from sparkserve.facts.routes import Addresses
from sparkserve.facts.services import Services
from sparkserve.facts.unified import Reserve
from sparkserve.model.finding import Finding
from sparkserve.model.mend import Change
from sparkserve.model.plan import Plan, RunCommand, Stage, Step

F = TypeVar("F", bound=Fact)
JUMBO_MTU_BYTES = 9000
"""What every end of the fast network should have; case NET_ACTIVE_MTU_LOW."""
RESERVE_BYTES = 1 << 30
"""Largest vm.min_free_kbytes that leaves the engine its memory; case MEM_MIN_FREE_KBYTES."""
_STEP_S = 20.0
_KILLER = re.compile(r"(?i)earlyoom|nohang")


class Patient(Protocol):
    """One node as a mend sees it."""

    @property
    def name(self) -> str:
        """The node's name."""

    @property
    def is_root(self) -> bool:
        """Whether commands run as root there."""

    @property
    def management_address(self) -> str | None:
        """The address at which the node was reached; None = not known."""

    @property
    def fabric_address(self) -> str | None:
        """The node's address on the fast network by the cluster file."""

    def fact(self, kind: type[F]) -> F | None:
        """What was read there."""


@dataclass(frozen=True)
class Mend:
    """One row: what may be changed, for which findings."""

    name: str
    codes: tuple[str, ...]
    """Findings that it mends."""
    title: str
    changes: Callable[[Patient], Iterable[Change]]


def _mtu(patient: Patient) -> Iterator[Change]:
    links = patient.fact(Links)
    for name in _fast(patient):
        link = links.named(name) if links else None
        if link is None or link.mtu_bytes is None or link.mtu_bytes >= JUMBO_MTU_BYTES:
            continue
        argv = ("ip", "link", "set", "dev", name, "mtu")
        yield _change(
            patient, "mtu", f"MTU of {name} from {link.mtu_bytes} to {JUMBO_MTU_BYTES}",
            (*argv, str(JUMBO_MTU_BYTES)), (*argv, str(link.mtu_bytes)),
        )  # fmt: skip


def _fast(patient: Patient) -> list[str]:
    """Interfaces of the fast network; never the one over which the node was reached."""
    addresses = patient.fact(Addresses)
    links = patient.fact(Links)
    if addresses is None or links is None or patient.management_address is None:
        # Without knowing the way in, nobody can tell that it stays open.
        return []
    holders = {one.interface: one.address for one in addresses.addresses}
    way_in = {
        one.interface for one in addresses.addresses if one.address == patient.management_address
    }
    named = [link.name for link in links.links if fabric_name(link.name) is not None]
    told = [name for name, address in holders.items() if address == patient.fabric_address]
    return [name for name in dict.fromkeys([*named, *told]) if name not in way_in]


def _forward(patient: Patient) -> Iterator[Change]:
    forwarding = patient.fact(Forwarding)
    if forwarding is not None and not forwarding.ip_forward:
        yield _sysctl(patient, "ip-forward", "net.ipv4.ip_forward", 0, 1)


def _reserve(patient: Patient) -> Iterator[Change]:
    reserve = patient.fact(Reserve)
    if reserve is not None and (reserve.min_free_bytes or 0) > RESERVE_BYTES:
        before = (reserve.min_free_bytes or 0) >> 10
        yield _sysctl(patient, "min-free", "vm.min_free_kbytes", before, RESERVE_BYTES >> 10)


def _killers(patient: Patient) -> Iterator[Change]:
    services = patient.fact(Services)
    for service in services.services if services else ():
        if service.is_active and _KILLER.search(service.name):
            unit = f"{service.name}.service"
            yield _change(
                patient, "oom-killer", f"stop {unit} until the next boot",
                ("systemctl", "stop", unit), ("systemctl", "start", unit),
            )  # fmt: skip


MENDS: tuple[Mend, ...] = (
    Mend("mtu", ("NET_ACTIVE_MTU_LOW", "NET_MTU_MISMATCH"),
         "raise the MTU of fast interfaces to 9000", _mtu),
    Mend("ip-forward", ("NET_TRANSIT_DROPPED",),
         "let the kernel forward packets between the cables of a ring", _forward),
    Mend("min-free", ("MEM_MIN_FREE_KBYTES",),
         "lower vm.min_free_kbytes to 1 GiB", _reserve),
    Mend("oom-killer", ("MEM_USERSPACE_KILLER",),
         "stop earlyoom and its like", _killers),
)  # fmt: skip
"""In the order in which they are applied."""


def mends_for(findings: Sequence[Finding], names: Sequence[str] = ()) -> list[tuple[Mend, str]]:
    """(mend, node) of every failing finding that one of the named mends is for.

    names: none = all.
    """
    wanted = [mend for mend in MENDS if not names or mend.name in names]
    found = [
        (mend, finding.node)
        for mend in wanted
        for finding in findings
        if finding.outcome == "fail" and finding.code in mend.codes and finding.node is not None
    ]
    return list(dict.fromkeys(found))


def fix_plan(changes: Sequence[Change]) -> Plan:
    """The steps that make the changes, node by node in parallel."""
    return _plan("fix", "mend", [(one, one.argv, f"as root: {one.undo_line}") for one in changes])


def undo_plan(changes: Sequence[Change]) -> Plan:
    """The steps that take changes back, the newest first."""
    return _plan("undo", "take back", [(one, one.undo_argv, None) for one in reversed(changes)])


def _plan(
    verb: str, title: str, rows: Sequence[tuple[Change, tuple[str, ...], str | None]]
) -> Plan:
    steps = tuple(
        Step(
            id=change.id,
            node=change.node,
            title=change.title if verb == "fix" else f"take back: {change.title}",
            effect="writes-node",
            action=RunCommand(argv=argv),
            done_when="the command returns 0",
            undo=undo,
            timeout_s=_STEP_S,
        )
        for change, argv, undo in rows
    )
    # One after the other on a node: a change may need the one before it.
    stages = (Stage(title=title, steps=steps),) if steps else ()
    return Plan(verb=verb, run_id="doctor", stages=stages)


def _sysctl(patient: Patient, mend: str, key: str, before: int, after: int) -> Change:
    return _change(
        patient, mend, f"{key} from {before} to {after}",
        ("sysctl", "-q", "-w", f"{key}={after}"), ("sysctl", "-q", "-w", f"{key}={before}"),
    )  # fmt: skip


def _change(
    patient: Patient, mend: str, title: str, argv: tuple[str, ...], undo: tuple[str, ...]
) -> Change:
    sudo = () if patient.is_root else ("sudo", "-n")
    return Change(
        mend=mend, node=patient.name, title=title, argv=(*sudo, *argv), undo_argv=(*sudo, *undo)
    )
