"""What the machine must have; every missing thing is named, with what brings it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.testbed.options import Init

_TOOLS = {
    "ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux",
    "mount": "mount", "setpriv": "util-linux", "ssh": "openssh-client",
    "ssh-keygen": "openssh-client", "sshd": "openssh-server", "iptables": "iptables",
    "ethtool": "ethtool", "sudo": "sudo", "rsync": "rsync", "ping": "iputils-ping",
    "mkfs.ext4": "e2fsprogs", "sysctl": "procps",
}  # fmt: skip
_SYSTEMD_TOOLS = {"systemd-nspawn": "systemd-container", "systemctl": "systemd-sysv"}
_NAMESPACES = ("net", "mnt", "pid", "uts", "ipc")


def missing(init: Init = "mini") -> str | None:
    """Why no testbed can run here, in one line; None where it can."""
    if sys.platform != "linux":
        return f"the testbed needs Linux, this is {sys.platform}"
    if os.geteuid():
        return "the testbed needs root (it makes network namespaces): run the tests with sudo"
    absent = [name for name in _NAMESPACES if not Path("/proc/self/ns", name).exists()]
    if absent:
        return f"the kernel lacks namespaces: {', '.join(absent)}"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "the kernel lacks overlayfs (or its module is not loaded)"
    tools = _TOOLS | (_SYSTEMD_TOOLS if init == "systemd" else {})
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    packages = {package for tool, package in tools.items() if not shutil.which(tool, path=path)}
    if packages:
        return f"tools are missing: apt-get install {' '.join(sorted(packages))}"
    return None
