"""Simulated hardware: what a node's /sys, /proc and tools say about a DGX Spark.

Everything here is text made from `Facts`; which numbers a real GB10 shows is documented in
docs/, not here. Where the Linux machine below can give the true value (MTU, carrier,
counters of the simulated cables), it does, and nothing is faked.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

SERVICES = (
    "cron.service loaded active running Regular background program processing daemon",
    "dbus.service loaded active running D-Bus System Message Bus",
    "docker.service loaded active running Docker Application Container Engine",
    "nvidia-persistenced.service loaded active running NVIDIA Persistence Daemon",
    "ssh.service loaded active running OpenBSD Secure Shell server",
    "systemd-timesyncd.service loaded active running Network Time Synchronization",
)
"""Units that are active, as ``systemctl list-units --plain --no-legend`` lists them."""
BUDDYINFO = (
    "Node 0, zone      DMA      0      0      0      0      0      0      1      1      1      1"
    "      1      1      1    101 \n"
    "Node 0, zone   Normal   1203    980    702    611    402    233    121     80     44     21"
    "     19     12   1417    782 "
)
"""A freshly booted node: 782 free blocks of order 13."""
KERNEL_LOG = (
    "mlx5_core 0000:01:00.0: mlx5_pcie_event:301:(pid 512): Detected insufficient power on the"
    " PCIe slot (27W).",
    "pcieport 0002:00:00.0: AER: Correctable error message received from 0002:01:00.0",
)
"""What healthy nodes print, too."""


@dataclass(frozen=True)
class Facts:
    """The hardware of one node; `Node.set_fact` changes fields while the node runs."""

    gpu_name: str = "NVIDIA GB10"
    driver_version: str = "580.173.02"
    driver_module_version: str | None = None
    """Version of the loaded kernel module; None = the same as the tools'."""
    cuda_version: str = "13.0"
    compute_cap: str = "12.1"
    gpu_temperature_c: int = 39
    gpu_power_w: float = 4.9
    gpu_utilization_percent: int = 0
    gpu_clock_sm_mhz: int = 208
    gpu_clock_max_sm_mhz: int = 3003
    gpu_pstate: str = "P8"
    gpu_clocks_event_reasons: str = "0x0000000000000001"
    """Bit 0 = idle."""
    gpu_answers: bool = True
    """Whether ``nvidia-smi`` finds its driver."""
    compute_apps: tuple[str, ...] = ()
    """Lines of ``nvidia-smi --query-compute-apps=pid,process_name,used_memory``."""
    mem_total_kib: int = 127_600_712
    mem_available_kib: int = 121_700_352
    mem_free_kib: int | None = None
    """None = 2 GiB less than available."""
    cached_kib: int | None = None
    """None = what is available and not free."""
    swap_total_kib: int = 16_777_212
    swap_free_kib: int = 16_777_212
    cma_total_kib: int = 32_768
    cma_free_kib: int = 30_112
    buddyinfo: str = BUDDYINFO
    compact_stall: int = 12
    compact_fail: int = 2
    min_free_kbytes: int = 45_184
    machine: str = "aarch64"
    kernel_release: str = "6.17.0-1032-nvidia"
    kernel_cmdline: str = "root=UUID=5c0ffee0-0000-4000-8000-000000000001 ro quiet splash"
    kernel_log: tuple[str, ...] = KERNEL_LOG
    """Lines that ``dmesg`` and ``journalctl -k`` print."""
    kernel_log_before: tuple[str, ...] = KERNEL_LOG
    """Lines of the boot before; none = that boot's journal was not kept."""
    services: tuple[str, ...] = SERVICES
    """Active units of a node that no systemd boots."""
    product_name: str = "NVIDIA_DGX_Spark"
    bios_version: str = "5.36_0ACUM018"
    dgx_release: str = "7.3.1"
    nic_firmware: str = "28.45.4028"
    port_state: str = "4: ACTIVE"
    """RDMA state of the two cabled halves; the uncabled ones always say DOWN."""
    ports_down: tuple[str, ...] = ()
    """Interfaces whose RDMA port is down, whatever ``port_state`` says."""
    port_phys_state: str = "5: LinkUp"
    port_rate: str = "200 Gb/sec (4X HDR)"
    link_speed_mbps: int = 200_000
    active_mtu_bytes: int | None = None
    """What ``ibv_devinfo`` says; None = what follows from the interface's MTU."""
    rdma_scale: float = 40.0
    """Stand-in bandwidth tests multiply what the simulated cable carries by this."""
    rdma_limit_gbps: float = 96.4
    """And never tell more than this."""
    pcie_width: int = 4
    pcie_speed: str = "32.0 GT/s PCIe"
    gid_shift: int = 0
    """Moves the IPv4 GIDs to higher indexes, as they do on real nodes after a reboot; the indexes
    before them are those of an IPv6 address."""
    gid_hole: bool = False
    """Leaves one index free between the v1 and the v2 GID of an IPv4 address."""
    soc_temperature_c: int = 51
    clock_offset_s: float = 0.0
    """What ``date`` adds to the true time; the clock itself is shared with the machine."""
    ntp_synchronized: bool = True
    firewall: tuple[str, ...] = ()
    """Rules of an active ``ufw`` (``22/tcp ALLOW IN Anywhere``); none = inactive."""
    docker_access: bool = True
    """Whether the plain user may talk to the stand-in for Docker's daemon."""
    docker_runtimes: tuple[str, ...] = ("io.containerd.runc.v2", "nvidia", "runc")
    docker_default_runtime: str = "nvidia"
    docker_images: tuple[dict[str, Any], ...] = ()
    """Parts of what ``docker image inspect`` says; the rest has usual values."""
    docker_containers: tuple[dict[str, Any], ...] = ()
    """Likewise for ``docker inspect`` of containers."""

    def changed(self, **values: Any) -> Facts:
        """The same facts with some fields replaced.

        Raises:
            TypeError: no such fact.
        """
        return replace(self, **values)

    @property
    def free_kib(self) -> int:
        """MemFree."""
        if self.mem_free_kib is not None:
            return self.mem_free_kib
        return max(self.mem_available_kib - 2_162_688, self.mem_available_kib // 2)


def _meminfo(facts: Facts) -> str:
    cached = facts.cached_kib
    rows = {
        "MemTotal": facts.mem_total_kib,
        "MemFree": facts.free_kib,
        "MemAvailable": facts.mem_available_kib,
        "Buffers": 65_536,
        "Cached": max(0, facts.mem_available_kib - facts.free_kib) if cached is None else cached,
        "SwapCached": 0,
        "Active": 1_048_576,
        "Inactive": 1_572_864,
        "Mlocked": 0,
        "SwapTotal": facts.swap_total_kib,
        "SwapFree": facts.swap_free_kib,
        "Dirty": 128,
        "AnonPages": 524_288,
        "Mapped": 262_144,
        "Shmem": 8_192,
        "Slab": 393_216,
        "SReclaimable": 196_608,
        "CommitLimit": facts.mem_total_kib // 2 + facts.swap_total_kib,
        "Committed_AS": 2_097_152,
        "CmaTotal": facts.cma_total_kib,
        "CmaFree": facts.cma_free_kib,
    }
    lines = [f"{name + ':':<16}{kib:>8} kB" for name, kib in rows.items()]
    lines += ["HugePages_Total:       0", "HugePages_Free:        0", "Hugepagesize:       2048 kB"]
    return "\n".join(lines) + "\n"


def proc_files(facts: Facts) -> dict[str, str]:
    """Path below /proc -> text."""
    module = facts.driver_module_version or facts.driver_version
    swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    if facts.swap_total_kib:
        used = facts.swap_total_kib - facts.swap_free_kib
        swaps += f"{'/swap.img':<40}file\t\t{facts.swap_total_kib}\t\t{used}\t\t-2\n"
    success = max(0, facts.compact_stall - facts.compact_fail)
    return {
        "meminfo": _meminfo(facts),
        "buddyinfo": facts.buddyinfo.rstrip("\n") + "\n",
        "swaps": swaps,
        "vmstat": f"nr_free_pages {facts.free_kib // 4}\npgfault 812345\npgmajfault 1203\n"
        f"compact_stall {facts.compact_stall}\ncompact_fail {facts.compact_fail}\n"
        f"compact_success {success}\noom_kill 0\n",
        "cmdline": f"BOOT_IMAGE=/boot/vmlinuz-{facts.kernel_release} {facts.kernel_cmdline}\n",
        "driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64"
        f"  {module}  Release Build  (dvs-builder@U22-I3)\nGCC version:  gcc version 13.3.0\n",
    }


def tool_files(facts: Facts) -> dict[str, str]:
    """Path below the node's folder of stand-in tools -> text."""
    interpreter = Path(sys.executable).resolve()
    values = asdict(facts)
    plain = {
        name: "" if value is None else value
        for name, value in values.items()
        if value is None or isinstance(value, str | int | float)
    }
    files = {
        "facts.json": json.dumps(values, indent=1) + "\n",
        "facts.repr": f"{values!r}\n",
        # for tools written in shell: an interpreter's start would cost more than all they do
        "facts.sh": "".join(f"{name}={shlex.quote(str(v))}\n" for name, v in plain.items()),
        "services": "".join(f"{line}\n" for line in facts.services),
        "kernel_log": "".join(f"{line}\n" for line in facts.kernel_log),
        "kernel_log_before": "".join(f"{line}\n" for line in facts.kernel_log_before),
        "firewall": "".join(f"{line}\n" for line in facts.firewall),
    }
    for asset in sorted((Path(__file__).parent / "assets/bin").iterdir()):
        files[f"bin/{asset.name}"] = asset.read_text().replace("@PYTHON@", str(interpreter))
    return files


def write_in_place(path: Path, text: str) -> None:
    """Write through the same inode: a running node sees it through its mounts at once."""
    data = text.encode()
    if path.exists():
        if path.read_bytes() == data:
            return
        with path.open("r+b", buffering=0) as file:
            file.write(data)
            file.truncate()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
