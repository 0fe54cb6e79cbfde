"""Where one rank stands: the few things about a node that its spec needs."""

from __future__ import annotations

from pathlib import PurePosixPath

from sparkserve.model.base import Model


class Place(Model):
    """One node as its rank's spec sees it; all paths absolute on the node."""

    name: str
    root: str
    python: str
    address: str
    """Address on the rendezvous network."""
    interface: str
    """Interface that carries the address."""
    cpu_count: int
    package_dir: str
    """Folder of the sparkserve package in the runtime."""
    gid_index: int | None = None
    """GID index for NCCL on this node's RDMA ports; None = NCCL is not told one."""

    def below_root(self, folder: str, path: str) -> str:
        """An absolute path as it is, a relative one below ``<root>/<folder>``."""
        pure = PurePosixPath(path)
        return path if pure.is_absolute() else str(PurePosixPath(self.root) / folder / path)
