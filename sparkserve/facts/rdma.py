"""RDMA devices and their ports: state, GIDs, MTU, and the netdev that each belongs to."""

from __future__ import annotations

from sparkserve.facts.reader import Ask, Reader

READERS: tuple[Reader, ...] = ()
ASKS: tuple[Ask, ...] = ()
