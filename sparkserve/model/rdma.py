"""RDMA ports and their GID tables, as data; which of them NCCL would use is judged elsewhere."""

from __future__ import annotations

import ipaddress

from sparkserve.model.base import Model

_ZERO = ":".join(["0000"] * 8)
ROCE_V1, ROCE_V2 = "RoCE v1", "RoCE v2"


def full_gid(text: str) -> str:
    """A GID as eight groups of four digits, however it was written.

    Raises:
        ValueError: not a GID.
    """
    return ipaddress.IPv6Address(text.strip()).exploded


class Gid(Model):
    """One row of a port's GID table; empty rows are no rows."""

    index: int
    gid: str
    """Eight groups of four hexadecimal digits."""
    type: str | None = None
    """``RoCE v1``, ``RoCE v2``; None = not readable or not said."""
    netdev: str | None = None
    """Network device of this row; None = not said."""

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address that the GID stands for; None where it stands for none."""
        groups = self.gid.split(":")
        if groups[:5] != ["0000"] * 5 or groups[5] != "ffff":
            return None
        address = ipaddress.IPv4Address(int(groups[6] + groups[7], 16))
        return None if address == ipaddress.IPv4Address(0) else str(address)

    @property
    def is_empty(self) -> bool:
        """Whether the row holds no GID: a hole, or the unused end of the table."""
        return self.gid == _ZERO

    @property
    def is_v2(self) -> bool:
        """Whether it is known to be a RoCE v2 row."""
        return self.type == ROCE_V2


class RdmaPort(Model):
    """One port of one RDMA device; None = not read."""

    device: str
    port: int = 1
    state: str | None = None
    """``ACTIVE``, ``DOWN``, ``INIT`` or ``ARMED``."""
    phys_state: str | None = None
    """Such as ``LinkUp``, ``Disabled``, ``Polling``."""
    link_layer: str | None = None
    netdev: str | None = None
    active_mtu: int | None = None
    max_mtu: int | None = None
    gids: tuple[Gid, ...] | None = None

    @property
    def name(self) -> str:
        """Device, with the port where it is not the first."""
        return self.device if self.port == 1 else f"{self.device}:{self.port}"

    @property
    def is_up(self) -> bool | None:
        """Whether the port is active; None = not known."""
        return None if self.state is None else self.state == "ACTIVE"

    def merged(self, other: RdmaPort) -> RdmaPort:
        """Both readings of one port; where both know something, the first counts."""
        values = {
            name: getattr(self, name) if getattr(self, name) is not None else getattr(other, name)
            for name in type(self).model_fields
        }
        if self.gids is not None and other.gids is not None:
            rows = {gid.index: gid for gid in other.gids}
            for gid in self.gids:
                rows[gid.index] = _known(gid, rows.get(gid.index))
            values["gids"] = tuple(rows[index] for index in sorted(rows))
        return RdmaPort.model_validate(values)


def _known(gid: Gid, other: Gid | None) -> Gid:
    if other is None:
        return gid
    return gid.model_copy(
        update={"type": gid.type or other.type, "netdev": gid.netdev or other.netdev}
    )
