"""The part of a DGX Spark's /sys that no other machine has: RDMA, PCI, DMI, thermals.

Written after the layout of the mlx5 driver; not compared with a Spark.
"""

from __future__ import annotations

from tests.testbed.facts import Facts
from tests.testbed.network import FABRIC, TWIN, UNCABLED, fabric_address, twin_address

RDMA_DEVICES = {
    "rocep1s0f0": FABRIC,
    "rocep1s0f1": UNCABLED[0],
    "roceP2p1s0f0": TWIN,
    "roceP2p1s0f1": UNCABLED[1],
}
PCI_ADDRESSES = {
    "rocep1s0f0": "0000:01:00.0",
    "rocep1s0f1": "0000:01:00.1",
    "roceP2p1s0f0": "0002:01:00.0",
    "roceP2p1s0f1": "0002:01:00.1",
}
_PCI_IDS = {
    "vendor": "0x15b3", "device": "0x1021", "subsystem_device": "0x0087", "numa_node": "0",
    # gloo reads it of every device, and gives up where it is missing
    "class": "0x020000",
}  # fmt: skip
_COUNTERS = ("port_rcv_data", "port_xmit_data", "port_rcv_errors", "port_xmit_wait", "symbol_error")
_HW_COUNTERS = (
    "out_of_sequence", "packet_seq_err", "rnr_nak_retry_err", "local_ack_timeout_err",
    "np_cnp_sent", "rp_cnp_handled", "roce_adp_retrans",
)  # fmt: skip


def _pci_folder(name: str) -> str:
    address = PCI_ADDRESSES[name]
    bridge = address.replace(":01:", ":00:").replace(".1", ".0")
    return f"devices/pci{address[:4]}:00/{bridge}/{address}"


def _gid_files(port: str, facts: Facts, device: str, number: int) -> dict[str, str]:
    address = {FABRIC: fabric_address(number), TWIN: twin_address(number)}.get(device)
    local = f"fe80:0000:0000:0000:4ebb:47ff:fe{number:02x}:{len(device):02x}00"
    gids = {0: (local, "IB/RoCE v1"), 1: (local, "RoCE v2")}
    if address is not None:
        octets = [int(part) for part in address.split(".")]
        mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*octets)
        first = 2 + facts.gid_shift
        for index in range(2, first):
            gids[index] = (f"fd00{local[4:]}", ("IB/RoCE v1", "RoCE v2")[index % 2])
        gids[first] = (mapped, "IB/RoCE v1")
        gids[first + 1 + facts.gid_hole] = (mapped, "RoCE v2")
    files = {}
    for index in range(16):
        gid, kind = gids.get(index, (":".join(["0000"] * 8), ""))
        # the real files of a free index cannot be read (EINVAL); empty ones come nearest to that
        files[f"{port}/gids/{index}"] = gid
        files[f"{port}/gid_attrs/types/{index}"] = kind
        files[f"{port}/gid_attrs/ndevs/{index}"] = device if kind else ""
    return files


def _rdma_files(facts: Facts, name: str, device: str, number: int) -> dict[str, str]:
    cabled = device not in UNCABLED
    up = cabled and device not in facts.ports_down
    pci, guid = _pci_folder(name), f"4cbb:4700:0000:{number:02x}00"
    base = f"{pci}/infiniband/{name}"
    port = f"{base}/ports/1"
    files = {
        f"{base}/fw_ver": facts.nic_firmware,
        f"{base}/node_type": "1: CA",
        f"{base}/hca_type": "MT4129",
        f"{base}/board_id": "NVD0000000087",
        f"{base}/hw_rev": "0x0",
        f"{base}/node_guid": guid,
        f"{base}/sys_image_guid": guid,
        f"{base}/node_desc": f"spark{number} {name}",
        f"{port}/state": facts.port_state if up else "1: DOWN",
        f"{port}/phys_state": facts.port_phys_state if up else "3: Disabled",
        f"{port}/rate": facts.port_rate if cabled else "40 Gb/sec (4X QDR)",
        f"{port}/link_layer": "Ethernet",
        f"{port}/lid": "0x0",
        f"{port}/lid_mask_count": "0",
        f"{port}/sm_lid": "0x0",
        f"{port}/sm_sl": "0",
        f"{port}/cap_mask": "0x00010000",
        f"{port}/pkeys/0": "0xffff",
        f"{pci}/net/{device}/dev_port": "0",
        f"{pci}/current_link_width": str(facts.pcie_width),
        f"{pci}/current_link_speed": facts.pcie_speed,
        f"{pci}/max_link_width": "4",
        f"{pci}/max_link_speed": "32.0 GT/s PCIe",
        f"devices/virtual/net/{device}/speed": str(facts.link_speed_mbps if cabled else -1),
    }
    files |= {f"{pci}/{key}": text for key, text in _PCI_IDS.items()}
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
    return {path: text + "\n" if text else "" for path, text in files.items()}


def sys_links() -> dict[str, str]:
    """Path below /sys -> where the link there leads."""
    links = {}
    for name, device in RDMA_DEVICES.items():
        pci, address = _pci_folder(name), PCI_ADDRESSES[name]
        links[f"class/infiniband/{name}"] = f"../../{pci}/infiniband/{name}"
        links[f"{pci}/infiniband/{name}/device"] = f"../../../{address}"
        links[f"bus/pci/devices/{address}"] = f"../../../{pci}"
        links[f"devices/virtual/net/{device}/device"] = f"../../../../{pci}"
    return links
