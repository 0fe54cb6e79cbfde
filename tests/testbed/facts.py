"""Simulated hardware: what a node's /sys, /proc and tools say about a DGX Spark.

Everything here is text made from `Facts`; which numbers a real GB10 shows is documented in
docs/, not here. Where the Linux machine below can give the true value (MTU, carrier,
counters of the simulated cables), it does, and nothing is faked.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.testbed.network import FABRIC, TWIN, UNCABLED, fabric_address, twin_address

RDMA_DEVICES = {
    "rocep1s0f0": FABRIC,
    "rocep1s0f1": UNCABLED[0],
    "roceP2p1s0f0": TWIN,
    "roceP2p1s0f1": UNCABLED[1],
}
_PCI_IDS = {"vendor": "0x15b3", "device": "0x1021", "subsystem_device": "0x0087"}
_COUNTERS = ("port_rcv_data", "port_xmit_data", "port_rcv_errors", "port_xmit_wait", "symbol_error")
_HW_COUNTERS = (
    "out_of_sequence", "packet_seq_err", "rnr_nak_retry_err", "local_ack_timeout_err",
    "np_cnp_sent", "rp_cnp_handled", "roce_adp_retrans",
)  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """The hardware of one node; `Node.set_fact` changes fields while the node runs."""

    gpu_name: str = "NVIDIA GB10"
    driver_version: str = "580.95.05"
    compute_cap: str = "12.1"
    gpu_temperature_c: int = 48
    gpu_power_w: float = 12.3
    gpu_utilization_percent: int = 0
    gpu_clock_sm_mhz: int = 2418
    compute_apps: tuple[str, ...] = ()
    """Lines of ``nvidia-smi --query-compute-apps=pid,process_name,used_memory``."""
    mem_total_kib: int = 127_600_000
    mem_available_kib: int = 121_000_000
    mem_free_kib: int | None = None
    """None = as much as available."""
    swap_total_kib: int = 0
    swap_free_kib: int = 0
    cma_total_kib: int = 0
    cma_free_kib: int = 0
    buddyinfo: str = "Node 0, zone   Normal  210  180  160  140  120  100   90   80   70   60 28000"
    machine: str = "aarch64"
    kernel_release: str = "6.17.0-1014-nvidia"
    kernel_log: tuple[str, ...] = ()
    """Lines that ``dmesg`` prints."""
    product_name: str = "NVIDIA_DGX_Spark"
    bios_version: str = "5.36_0ACUM018"
    dgx_release: str = "7.3.1"
    nic_firmware: str = "28.45.4028"
    port_state: str = "4: ACTIVE"
    """RDMA state of the two cabled halves; the uncabled ones always say DOWN."""
    port_phys_state: str = "5: LinkUp"
    port_rate: str = "200 Gb/sec (4X HDR)"
    link_speed_mbps: int = 200_000
    pcie_width: int = 4
    pcie_speed: str = "32.0 GT/s PCIe"
    gid_shift: int = 0
    """Moves the IPv4 GIDs to higher indexes, as they do on real nodes after a reboot."""
    soc_temperature_c: int = 51
    clock_offset_s: float = 0.0
    """What ``date`` adds to the true time; the clock itself is shared with the machine."""
    ntp_synchronized: bool = True

    def changed(self, **values: Any) -> Facts:
        """The same facts with some fields replaced.

        Raises:
            TypeError: no such fact.
        """
        return replace(self, **values)


def _gid_files(port: str, facts: Facts, device: str, number: int) -> dict[str, str]:
    address = {FABRIC: fabric_address(number), TWIN: twin_address(number)}.get(device)
    local = f"fe80:0000:0000:0000:4ebb:47ff:fe{number:02x}:{len(device):02x}00"
    gids = {0: local, 1: local}
    if address is not None:
        octets = [int(part) for part in address.split(".")]
        mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*octets)
        gids |= {2 + facts.gid_shift: mapped, 3 + facts.gid_shift: mapped}
    files = {}
    for index in range(16):
        files[f"{port}/gids/{index}"] = gids.get(index, ":".join(["0000"] * 8))
        if index in gids:
            files[f"{port}/gid_attrs/types/{index}"] = (
                "RoCE v2" if (index - (facts.gid_shift if index > 1 else 0)) % 2 else "IB/RoCE v1"
            )
            files[f"{port}/gid_attrs/ndevs/{index}"] = device
    return files


def _rdma_files(facts: Facts, name: str, device: str, number: int) -> dict[str, str]:
    cabled = device not in UNCABLED
    base, guid = f"class/infiniband/{name}", f"4cbb:4700:0000:{number:02x}00"
    port = f"{base}/ports/1"
    pci = {**_PCI_IDS, "numa_node": "0"}
    pci |= {"current_link_width": str(facts.pcie_width), "current_link_speed": facts.pcie_speed}
    files = {
        f"{base}/fw_ver": facts.nic_firmware,
        f"{base}/node_type": "1: CA",
        f"{base}/hca_type": "MT4129",
        f"{base}/board_id": "NVD0000000087",
        f"{base}/hw_rev": "0x0",
        f"{base}/node_guid": guid,
        f"{base}/sys_image_guid": guid,
        f"{base}/node_desc": f"spark{number} {name}",
        f"{port}/state": facts.port_state if cabled else "1: DOWN",
        f"{port}/phys_state": facts.port_phys_state if cabled else "3: Disabled",
        f"{port}/rate": facts.port_rate if cabled else "40 Gb/sec (4X QDR)",
        f"{port}/link_layer": "Ethernet",
        f"{port}/lid": "0x0",
        f"{port}/lid_mask_count": "0",
        f"{port}/sm_lid": "0x0",
        f"{port}/sm_sl": "0",
        f"{port}/cap_mask": "0x00010000",
        f"{port}/pkeys/0": "0xffff",
        f"{base}/device/net/{device}/dev_port": "0",
        f"devices/virtual/net/{device}/device/infiniband/{name}/node_type": "1: CA",
        f"devices/virtual/net/{device}/speed": str(facts.link_speed_mbps if cabled else -1),
    }
    files |= {f"{base}/device/{key}": text for key, text in pci.items()}
    files |= {f"devices/virtual/net/{device}/device/{key}": text for key, text in pci.items()}
    files |= {f"{port}/counters/{counter}": "0" for counter in _COUNTERS}
    files |= {f"{port}/hw_counters/{counter}": "0" for counter in _HW_COUNTERS}
    return files | _gid_files(port, facts, device, number)


def sys_files(facts: Facts, number: int) -> dict[str, str]:
    """Path below /sys -> text, for node ``number``."""
    files = {
        "class/infiniband_mad/abi_version": "5",
        "class/infiniband_verbs/abi_version": "6",
        "class/dmi/id/product_name": facts.product_name,
        "class/dmi/id/sys_vendor": "NVIDIA",
        "class/dmi/id/bios_version": facts.bios_version,
        "class/thermal/thermal_zone0/temp": str(facts.soc_temperature_c * 1000),
        "class/thermal/thermal_zone0/type": "acpitz",
        "class/nvme/nvme0/model": "SAMSUNG MZALC4T0HBL1-00B07",
        "class/nvme/nvme0/state": "live",
        "module/nvidia_drm/parameters/modeset": "Y",
        "module/nvidia_drm/parameters/fbdev": "N",
    }
    for index, (name, device) in enumerate(RDMA_DEVICES.items()):
        files |= _rdma_files(facts, name, device, number)
        files[f"class/infiniband_verbs/uverbs{index}/ibdev"] = name
        files[f"class/infiniband_verbs/uverbs{index}/abi_version"] = "1"
    return {path: text + "\n" for path, text in files.items()}


def proc_files(facts: Facts) -> dict[str, str]:
    """Name below /proc -> text."""
    free = facts.mem_available_kib if facts.mem_free_kib is None else facts.mem_free_kib
    rows = {
        "MemTotal": facts.mem_total_kib,
        "MemFree": free,
        "MemAvailable": facts.mem_available_kib,
        "Buffers": 0,
        "Cached": max(0, facts.mem_available_kib - free),
        "SwapCached": 0,
        "SwapTotal": facts.swap_total_kib,
        "SwapFree": facts.swap_free_kib,
        "Dirty": 0,
        "Shmem": 0,
        "CmaTotal": facts.cma_total_kib,
        "CmaFree": facts.cma_free_kib,
    }
    lines = [f"{name + ':':<16}{kib:>8} kB" for name, kib in rows.items()]
    lines += ["HugePages_Total:       0", "Hugepagesize:       2048 kB"]
    return {"meminfo": "\n".join(lines) + "\n", "buddyinfo": facts.buddyinfo.rstrip() + "\n"}


def tool_files(facts: Facts) -> dict[str, str]:
    """Path below the node's folder of stand-in tools -> text."""
    interpreter = Path(sys.executable).resolve()
    files = {"facts.json": json.dumps(asdict(facts), indent=1) + "\n"}
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
