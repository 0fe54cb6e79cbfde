"""The machine and its system: GPU, identity, Wi-Fi; versions are judged beside this module."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.machine import rules_apply, shown, wants_spark
from sparkserve.checks.scene import Scene
from sparkserve.checks.versions import CHECKS as VERSIONS
from sparkserve.facts.gpu import NO_TOOL, DrmSettings, Gpus
from sparkserve.facts.kernel_log import KernelLog, PreviousKernelLog
from sparkserve.facts.links import Links
from sparkserve.facts.reader import Fact
from sparkserve.facts.routes import Routes
from sparkserve.facts.services import ClockState, HostIdentity, WifiState


def _gpu(scene: Scene) -> Iterator[Judgement]:
    for place, gpus in scene.each(Gpus):
        if gpus.names and any("GB10" in name for name in gpus.names):
            yield passed(place, ", ".join(gpus.names))
        elif gpus.names:
            if wants_spark(scene):
                yield _no_gpu(scene, place, ", ".join(gpus.names))
        elif gpus.problem is not None and (gpus.problem != NO_TOOL or rules_apply(scene, place)):
            yield _no_gpu(scene, place, gpus.problem)


def _no_gpu(scene: Scene, place: str | None, told: str) -> Judgement:
    return Judgement(place, "fail", told, "an NVIDIA GB10", evidence=shown(scene, place, Gpus))


def _drm(scene: Scene) -> Iterator[Judgement]:
    wanted = [
        key for key, value in (scene.wanted.keys or {}).items()
        if re.search(r"(?i)display_?reserve|scan_?out", key) and value not in (None, False, "", "0")
    ]  # fmt: skip
    if not wanted:
        return
    for place, drm in scene.each(DrmSettings):
        told = f"modeset={_letter(drm.modeset)} fbdev={_letter(drm.fbdev)}"
        if drm.modeset is None or drm.fbdev is None:
            yield Judgement(place, "unknown", told)
        elif drm.modeset and not drm.fbdev:
            yield passed(place, told)
        else:
            yield Judgement(
                place, "fail", told, f"modeset=Y fbdev=N for {wanted[0]}",
                evidence=shown(scene, place, DrmSettings),
            )  # fmt: skip


def _letter(value: bool | None) -> str:
    return {True: "Y", False: "N", None: "unknown"}[value]


def _identity(scene: Scene) -> Iterator[Judgement]:
    ids: dict[str, list[str]] = {}
    keys: dict[str, list[str]] = {}
    places: list[str] = []
    for place, identity in scene.each(HostIdentity):
        if place is None or any(scene.same_place(place, other) for other in places):
            continue
        places.append(place)
        if identity.machine_id is not None:
            ids.setdefault(identity.machine_id, []).append(place)
        for key in identity.ssh_keys:
            keys.setdefault(key, []).append(place)
    clones = {tuple(p): f"machine-id {v}" for v, p in ids.items() if len(p) > 1}
    for key, shared in keys.items():
        if len(shared) > 1:
            clones.setdefault(tuple(shared), f"SSH host key {key[:40]}...")
    for shared_by, what in clones.items():
        yield Judgement(
            shared_by[-1], "fail", f"{' and '.join(shared_by)} have the same {what}",
            "different on every node",
            fix=f"on {shared_by[-1]}: sudo rm /etc/machine-id /etc/ssh/ssh_host_*; sudo"
            " systemd-machine-id-setup; sudo ssh-keygen -A; then reboot and trust the new key",
            evidence=tuple(line for p in shared_by for line in shown(scene, p, HostIdentity)),
        )  # fmt: skip
    if len(places) > 1 and not clones:
        yield passed(None, f"{len(places)} nodes, all different")


_RESET = re.compile(r"(?i)mt79\w*.*(?:chip reset|Oops)|Oops.*mt79\w*|mt79\w*.*reset failed")
_TIMEOUT = re.compile(r"(?i)mt79\w*.*\btimeout\b")
_OOPS = re.compile(r"(?i)\bOops\b|NULL pointer dereference|rtnl|blocked for more than \d+ seconds")


def _wifi_log(scene: Scene) -> Iterator[Judgement]:
    for kind, when in ((KernelLog, ""), (PreviousKernelLog, " in the boot before")):
        for place, lines in _logs(scene, kind):
            resets = [line for line in lines if _RESET.search(line)]
            stuck = [line for line in lines if _TIMEOUT.search(line)]
            oopses = [line for line in lines if _OOPS.search(line)]
            if not resets and not (stuck and oopses):
                if stuck:
                    yield _wifi_fault(place, stuck[-1] + when, stuck, is_dead=False)
                continue
            telling = [*stuck[-1:], *resets[-1:], *oopses[-2:]]
            then = f", then: {oopses[-1].strip()}" if oopses else ""
            first = (resets or stuck)[-1].strip()
            yield _wifi_fault(place, f"{first}{then}{when}", telling, is_dead=True)
    yield from _hanging(scene)


def _hanging(scene: Scene) -> Iterator[Judgement]:
    """Networking control that does not return: its lock is held."""
    told: dict[str | None, tuple[str, str]] = {}
    for place, _, _, reading in scene.observations:
        command = reading.command or ""
        if reading.rc == 124 and re.match(r"(?:timeout \S+ )?(?:ip|nmcli)\b", command):
            told.setdefault(place, (command, reading.label or command))
    for place, (command, label) in told.items():
        yield Judgement(
            place, "fail", f"`{command}` did not return", "networking control that answers",
            evidence=(label,),
        )  # fmt: skip


def _logs(scene: Scene, kind: type[Fact]) -> Iterator[tuple[str | None, tuple[str, ...]]]:
    for place, log in scene.each(kind):
        if isinstance(log, KernelLog | PreviousKernelLog):
            yield place, log.lines


def _wifi_fault(place: str | None, told: str, lines: list[str], *, is_dead: bool) -> Judgement:
    return Judgement(
        place, "fail", told, "no reset of the Wi-Fi chip",
        severity="error" if is_dead else "warning", evidence=tuple(lines[-4:]),
    )  # fmt: skip


def _wifi_route(scene: Scene) -> Iterator[Judgement]:
    for place, routes in scene.each(Routes):
        defaults = [r for r in routes.routes if r.destination in ("default", "0.0.0.0/0")]
        if not defaults:
            continue
        best = min(defaults, key=lambda route: route.metric)
        name = best.interface or ""
        wireless = scene.near(place, WifiState)
        if not (name.startswith("wl") or (wireless and name in wireless.interfaces)):
            yield passed(place, f"default route by {name}")
            continue
        links = scene.near(place, Links)
        wired = _wired_up(links)
        saving = "; power save is on" if wireless and wireless.power_save else ""
        yield Judgement(
            place, "fail", f"default route by Wi-Fi ({name}){saving}",
            f"the wired port{f' {wired}, which has a carrier' if wired else ''}",
            severity="info" if links is not None and links.links and wired is None
            and _names_wired(links) else "warning",
            evidence=shown(scene, place, Routes),
        )  # fmt: skip


def _names_wired(links: Links) -> bool:
    return any(re.match(r"en(?!p1s0f|P2p1s0f)", link.name) for link in links.links)


def _wired_up(links: Links | None) -> str | None:
    """A wired management interface that has a carrier; those of the fabric do not count."""
    for link in links.links if links else ():
        if re.match(r"(?:en(?!p1s0f|P2p1s0f)|eth)\w+", link.name) and link.has_carrier:
            return link.name
    return None


def _clock(scene: Scene) -> Iterator[Judgement]:
    for place, clock in scene.each(ClockState):
        if clock.is_synchronised:
            yield passed(place, "synchronised")
        else:
            yield Judgement(
                place, "fail", "the clock is not synchronised", "synchronised with a time server",
                evidence=shown(scene, place, ClockState),
            )  # fmt: skip


CHECKS: tuple[Check, ...] = (
    Check(
        "GPU.PRESENT", "GPU_ABSENT", "the GPU answers",
        ("doctor", "launch"), "error", "hardware", (Gpus,), _gpu,
        why="without the GPU's driver no engine starts",
        fix="nvidia-smi -L; sudo dmesg | grep -i nvrm; a reboot after an update of the driver",
        symptom="`No devices were found`, or nvidia-smi cannot talk to the driver.",
    ),
    Check(
        "GPU.DRM", "GPU_DRM_SETTINGS", "the display's memory is free for rows",
        ("doctor",), "error", "hardware", (DrmSettings,), _drm,
        why="rows kept in the display's reserve need modeset without a framebuffer console",
        fix="options nvidia_drm modeset=1 fbdev=0 in /etc/modprobe.d, then reboot; no desktop",
        symptom="The cache of rows in the display's reserve cannot be made.",
    ),
    Check(
        "HOST.IDENTITY", "HOST_CLONED", "no node is a clone of another",
        ("doctor", "launch"), "error", "hardware", (HostIdentity,), _identity,
        why="cloned disks share machine-id and host keys: leases, logs and host keys get mixed up",
        fix="make a new machine-id and new SSH host keys on the clone",
        symptom="Two nodes get one address, or SSH warns of a changed host key now and then.",
    ),
    Check(
        "HOST.SYNC", "HOST_CLOCK_SKEW", "the clock is kept by a time server",
        ("doctor", "launch"), "warning", "hardware", (ClockState,), _clock,
        why="logs of ranks whose clocks drift apart cannot be put in order",
        fix="sudo timedatectl set-ntp true",
        symptom="The earliest error of a failed launch is on the wrong rank.",
    ),
    Check(
        "HOST.WIFI", "HOST_WIFI_OOPS", "the Wi-Fi chip has not taken the network down",
        ("doctor", "watch"), "error", "hardware", (KernelLog,), _wifi_log,
        why="the reset path of the MT7925 crashes with the lock of all networking held: every ip"
        " and nmcli command then hangs",
        fix="power-cycle the node, manage it by the wired port, and switch Wi-Fi off: sudo nmcli"
        " radio wifi off; sysctl kernel.panic_on_oops=1 and a watchdog restart it by itself",
        symptom="A node becomes unreachable although its cable is fine; only a power cycle helps.",
    ),
    Check(
        "HOST.WIFI_ROUTE", "HOST_WIFI_OOPS", "nodes are managed by cable",
        ("doctor",), "warning", "hardware", (Routes,), _wifi_route,
        why="the Wi-Fi driver can take the whole network of the node down",
        fix="connect the wired port and switch Wi-Fi off: sudo nmcli radio wifi off",
        symptom="A node becomes unreachable although its cable is fine.",
    ),
    *VERSIONS,
)  # fmt: skip
