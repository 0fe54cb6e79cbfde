"""Links, RDMA ports, subnets, cabling and reach between the nodes: all checks of the fabric."""

from __future__ import annotations

from sparkserve.checks import cabling, fabric_ports, reach, subnets, transit
from sparkserve.checks.check import Check

CHECKS: tuple[Check, ...] = (
    *fabric_ports.CHECKS,
    *subnets.CHECKS,
    *cabling.CHECKS,
    *transit.CHECKS,
    *reach.CHECKS,
)
