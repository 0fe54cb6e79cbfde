"""What a simulated cluster is made of: sizes, flavour, extra binds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

Init = Literal["mini", "systemd"]

DROPPED_CAPABILITIES = (
    "sys_time", "sys_module", "sys_rawio", "syslog", "audit_control", "sys_boot", "mknod",
)  # fmt: skip
"""Never in a node: real time, modules, the kernel log and power are the machine's own."""


@dataclass(frozen=True)
class Options:
    """How every node of a cluster is built."""

    nodes: int = 4
    init: Init = "mini"
    disk_mib: int = 1024
    """Size of the node's root disk, which holds /home/spark; memory is used as it fills."""
    nvme_mib: int = 512
    nvme: Literal["tmpfs", "ext4"] = "tmpfs"
    """``ext4`` is a real file system on a loop device, so O_DIRECT works."""
    shm_mib: int = 2048
    """Limit of the node's own /dev/shm; a real SGLang rank needs about 2 GiB."""
    binds: tuple[str, ...] = ()
    """Folders of the machine that every node sees read-only at the same path."""
    keep_capabilities: tuple[str, ...] = ()
    """Of the dropped ones, those that nodes keep (a node that runs dockerd needs mknod)."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 16:
            raise ValueError(f"nodes = {self.nodes}, expected 1 to 16")
        if "sys_time" in self.keep_capabilities:
            raise ValueError("a node never gets sys_time: it would set the machine's clock")

    @property
    def dropped(self) -> tuple[str, ...]:
        """Capabilities taken from every process of a node."""
        return tuple(name for name in DROPPED_CAPABILITIES if name not in self.keep_capabilities)

    def to_json(self) -> str:
        """Text from which `from_json` makes the same options again."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Options:
        """Read options that another process wrote."""
        values = json.loads(text)
        for name in ("binds", "keep_capabilities"):
            values[name] = tuple(values[name])
        return cls(**values)
