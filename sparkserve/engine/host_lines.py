"""Lines that kernels, docker, ssh, exporters and journals print around an engine."""

from __future__ import annotations

import re
from re import compile as regex

from sparkserve.engine.patterns import Pattern

_AROUND: tuple[Pattern, ...] = (
    Pattern(
        "docker-permission",
        regex(r"(?i)permission denied while trying to connect to the Docker daemon socket"),
        "fault", "this user may not speak to docker, so nothing is known of its containers",
        ("CTR_DOCKER_PERMISSION",), "sudo usermod -aG docker $USER  # then log in anew", "B37",
        "ssh",
    ),
    Pattern(
        "ssh-permission", regex(r"Permission denied \((?P<what>[^)]*)\)"), "fault",
        "the login was refused; the server offers {what}", ("SSH_KEY_NOT_VISIBLE",),
        "ssh-copy-id -i KEY USER@NODE", "B43", "ssh",
    ),
    Pattern(
        "nfs-export", regex(r"(?P<what>\S{1,300}) does not support NFS export"), "fault",
        "{what} lies on a file system that NFS cannot export, such as an overlay",
        ("CTR_NFS_EXPORT_OVERLAY",), "export a bind mount of a real disk", "B42", "exporter",
    ),
    Pattern(
        "pcie-fatal", regex(r"AER: .*Uncorrect\w+ \(Fatal\)"), "fault",
        "a PCIe device of the ConnectX-7 failed fatally", ("NET_CX7_AER_FATAL",),
        "do not restart the engine; power the node off and on", "B18", "kernel",
    ),
    Pattern(
        "mlx5-reset", regex(r"mlx5_pci_slot_reset"), "fault",
        "the reset of a ConnectX-7 function hangs after a fatal PCIe error",
        ("NET_CX7_AER_FATAL",), "power the node off and on", "B18", "kernel",
    ),
    Pattern(
        "aer-lockup", regex(r"soft lockup .*aerdrv"), "fault",
        "the thread that handles PCIe errors locked up", ("NET_CX7_AER_FATAL",),
        "power the node off and on", "B18", "kernel",
    ),
    Pattern(
        "wifi-reset",
        regex(r"mt7925\w*.*(?:chip reset|timeout|Oops)|Oops.*mt7925"), "fault",
        "the Wi-Fi chip fails and may take the kernel's network with it", ("HOST_WIFI_OOPS",),
        "use the wired port for management and switch Wi-Fi off: nmcli radio wifi off", "B83",
        "kernel",
    ),
    Pattern(
        "oom-killed",
        regex(r"(?i)Out of memory: Killed process (?P<pid>\d+) \((?P<what>[^)]+)\)"), "evidence",
        "the kernel killed {what} (pid {pid}) because memory ran out", ("ENG_EXIT_137",),
        source="B72", stream="kernel",
    ),
    Pattern(
        "oom-task",
        regex(r"oom-kill:.*task_memcg=(?P<group>[^,]*),task=(?P<what>[^,]+),pid=(?P<pid>\d+)"),
        "evidence", "the kernel chose {what} (pid {pid}) of {group} when memory ran out",
        ("ENG_EXIT_137",), source="B72", stream="kernel",
    ),
    Pattern(
        "userspace-kill",
        regex(r"SIGKILL .*|(?i:sending) SIG\w+ .*|Killed /\S+ due to memory"), "evidence",
        "a guard of memory in user space killed a process", ("MEM_USERSPACE_KILLER",),
        source="B35", stream="journal",
    ),
    Pattern(
        "nvrm-no-memory", regex(r"NV_ERR_NO_MEMORY"), "info",
        "the GPU driver asked for memory in vain; it says so on paths that recover, too",
        ("MEM_NVRM_LINE_ALONE", "MEM_FRAGMENTED"), source="B21, B22", stream="kernel",
    ),
    Pattern(
        "verbatim-loop", regex(r"(?P<what>.{40,400}?)(?P=what){3,}", re.DOTALL), "fault",
        "the answer repeats itself word for word", ("SRV_VERBATIM_LOOP",),
        "end the request; set a repetition or presence penalty", "B81", "reply", lasting=True,
    ),
)  # fmt: skip

LINES = tuple(pattern for pattern in _AROUND if pattern.stream != "reply")
"""Rows for lines of logs."""
REPLIES = tuple(pattern for pattern in _AROUND if pattern.stream == "reply")
"""Rows for the end of an answer's text, not for lines."""
