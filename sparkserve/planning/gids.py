"""Which GID index each rank is told, by its own node's tables and the profile's policy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparkserve.engine.gid import (
    NO_ADDRESS,
    GidChoice,
    GidQuestion,
    Member,
    as_set,
    decide,
    resolve,
)
from sparkserve.model.profile import Profile
from sparkserve.model.rdma import RdmaPort


class GidEnd(NamedTuple):
    """What is known of one node."""

    node: str
    ports: Sequence[RdmaPort] | None = None
    """None = not read; empty = the node has no RDMA device."""
    addresses: Mapping[str, Collection[str]] | None = None
    """IPv4 addresses by network device; None = not read."""
    preferred_ip: str | None = None
    nccl_version: tuple[int, int, int] | None = None
    """Of the engine that will be started; None = not known."""
    unread: str = ""
    """Why something could not be read."""


@dataclass(frozen=True)
class GidPlan:
    """What one rank is told, and why."""

    node: str
    selector: str
    """Value of ``NCCL_IB_HCA``; empty = every port."""
    index: int | None = None
    """None = the variable is left out."""
    reason: str = ""
    choice: GidChoice | None = None
    """What the node's tables give; None = they were not looked at."""
    problem: str = ""
    """Why the rank must not start; empty = it may."""
    is_unread: bool = False
    """Whether the problem is that the node's tables or addresses are not known."""
    remedy: str = ""
    remark: str = ""
    """What of the profile does not hold on this node."""

    @property
    def members(self) -> tuple[Member, ...]:
        """The ports that NCCL will use."""
        return self.choice.members if self.choice else ()

    @property
    def told(self) -> str:
        """What becomes of the variable on this node, or why the rank must not start."""
        if self.problem:
            sets = self.choice.sets if self.choice else ""
            return self.problem + (f"; usable: {sets}" if sets not in self.problem else "")
        if self.index is None:
            return f"NCCL_IB_GID_INDEX is not set: {self.reason}"
        return f"NCCL_IB_GID_INDEX={self.index}: {self.reason}"

    @property
    def member_lines(self) -> tuple[str, ...]:
        """For every port its usable set, and what stands at the chosen index."""
        return tuple(_member_line(one, self.index) for one in self.members)


def _member_line(member: Member, index: int | None) -> str:
    port = member.port
    line = f"{port.name} {as_set(member.usable)}"
    row = next((gid for gid in port.gids or () if gid.index == index), None)
    if row is None:
        return line
    netdev = row.netdev or port.netdev
    return f"{line}: {index} is {row.type} of {row.ipv4}" + (f" on {netdev}" if netdev else "")


def selector_of(profile: Profile) -> str:
    """What ``NCCL_IB_HCA`` will hold; a variable of the profile's own wins, as in the engine."""
    return profile.fabric.nccl.get("NCCL_IB_HCA", ",".join(profile.fabric.hca))


def is_asked(profile: Profile, nodes: int) -> bool:
    """Whether an index is wanted at all.

    Not for one node, not for a CPU engine, and not where the profile says nothing of RDMA: NCCL
    then chooses by itself.
    """
    fabric = profile.fabric
    if nodes < 2 or profile.engine.device == "cpu":
        return False
    return bool(selector_of(profile)) or fabric.gid_index is not None or fabric.gid_policy == "pin"


def plan(profile: Profile, ends: Sequence[GidEnd]) -> tuple[GidPlan, ...]:
    """What every rank is told, in the order of the ends; nothing where no index is wanted.

    Where no node has an RDMA device, ``resolve`` and ``unset`` leave the variable out. Where only
    some have none, those cannot take part and are a problem.
    """
    if not is_asked(profile, len(ends)):
        return ()
    selector, policy = selector_of(profile), profile.fabric.gid_policy
    if policy != "pin" and all(end.ports is not None and not end.ports for end in ends):
        reason = "no node has an RDMA device"
        return tuple(GidPlan(end.node, selector, reason=reason) for end in ends)
    return tuple(_plan_one(profile, selector, end) for end in ends)


def _plan_one(profile: Profile, selector: str, end: GidEnd) -> GidPlan:
    fabric = profile.fabric
    if end.ports is None or end.addresses is None:
        what = "RDMA ports" if end.ports is None else "network addresses"
        problem = f"the {what} could not be read: {end.unread or 'no answer'}"
        return GidPlan(end.node, selector, problem=problem, is_unread=True,
                       remedy="sparkserve doctor, which says what could not be read")  # fmt: skip
    choice = resolve(GidQuestion(end.ports, selector, end.preferred_ip, end.addresses))
    value, problem, remark = decide(
        fabric.gid_policy, choice, pin=fabric.gid_index, nccl_version=end.nccl_version
    )
    if fabric.gid_policy == "unset" and fabric.gid_index is not None:
        remark = f"fabric.gid_index = {fabric.gid_index} is not used with gid_policy = unset"
    reason = choice.reason
    if fabric.gid_policy != "resolve":
        reason = f"fabric.gid_policy = {fabric.gid_policy}"
    return GidPlan(
        end.node,
        selector,
        index=None if value is None else int(value),
        reason="; ".join((reason, *choice.notes)),
        choice=choice,
        problem=problem,
        remedy=_remedy(profile, choice, end) if problem else "",
        remark=remark,
    )


def _remedy(profile: Profile, choice: GidChoice, end: GidEnd) -> str:
    """What to do about a problem, the nearest cause first."""
    if choice.reason == NO_ADDRESS:
        return f"give {end.node} a fabric_address (IPv4) in the cluster file"
    if not choice.members:
        up = ",".join(port.name for port in end.ports or () if port.is_up and port.gids)
        named = f"; ports that are up on {end.node}: {up}" if up else ""
        return f"ibdev2netdev (which ports are up?), then name them in fabric.hca{named}"
    empty = [one.port for one in choice.members if not one.usable]
    if empty:
        netdev = empty[0].netdev or "<network device>"
        if any("." in address for address in (end.addresses or {}).get(netdev, ())):
            return (
                f"show_gids on {end.node}: {netdev} has its address but no RoCE v2 row for it; "
                f"sudo ip link set {netdev} down, then up, builds the rows anew"
            )
        return f"sudo ip addr add <IPv4 address>/24 dev {netdev} on {end.node} (the GID follows)"
    if profile.fabric.gid_policy == "unset":
        return f"install NCCL 2.30.7 on {end.node}, or --set fabric.gid_policy=resolve"
    if choice.index is None:
        return "name only ports with a common index in fabric.hca"
    return f"--set fabric.gid_policy=resolve (here that gives {choice.index})"
