"""A cluster: the nodes in rank order, how they are reached, how they are wired."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from sparkserve.model.base import Model

Topology = Literal["solo", "pair", "triangle", "ring", "switch"]


class Node(Model):
    """One machine; its place in the list is its rank."""

    name: str
    """Short name, as it stands in every message."""
    host: str
    """Address or name for SSH; ``local`` runs commands on this machine without SSH."""
    user: str | None = None
    """SSH user; none = OpenSSH's choice."""
    port: int = 22
    """SSH port."""
    fabric_address: str | None = None
    """Address on the fast network; None = the same as ``host``."""
    interface: str | None = None
    """Interface for GLOO and NCCL sockets; None = the one that carries the address."""

    @property
    def is_local(self) -> bool:
        """Whether this node is the machine sparkserve runs on."""
        return self.host == "local"


class Cluster(Model):
    """The nodes of one fleet, rank 0 first."""

    name: str
    """Equals the file's name."""
    nodes: tuple[Node, ...] = Field(min_length=1, max_length=16)
    """Rank 0 first. One run takes 8 at most; a fleet may have more to look after."""
    topology: Topology = "switch"
    """How the fast network is wired."""
    root: str = "~/sparkserve"
    """sparkserve's folder on every node; ``~`` and relative paths mean the node's home folder."""
    identity_file: str | None = None
    """SSH key on the controller; None = the agent and OpenSSH's default files."""
    profile: str | None = None
    """Profile this cluster serves when none is named."""

    @model_validator(mode="after")
    def _nodes_differ(self) -> Cluster:
        names = [node.name for node in self.nodes]
        if len(set(names)) < len(names):
            raise ValueError(f"node names must differ: {', '.join(names)}")
        places = [(node.host, node.port) for node in self.nodes]
        if len(set(places)) < len(places):
            raise ValueError("two nodes have the same host and port")
        return self

    def take(self, count: int) -> Cluster:
        """The cluster's first ``count`` nodes; the caller has checked that there are enough."""
        return self.model_copy(update={"nodes": self.nodes[:count]})

    def rank_of(self, name: str) -> int:
        """Rank of the named node.

        Raises:
            KeyError: no such node.
        """
        for rank, node in enumerate(self.nodes):
            if node.name == name:
                return rank
        raise KeyError(name)
