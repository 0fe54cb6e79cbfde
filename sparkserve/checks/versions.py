"""Kernel, driver and firmware: the same everywhere, as at the last good launch, not known bad."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import NamedTuple

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.known_bad import Match, Setup, in_range, matches
from sparkserve.checks.machine import rules_apply, shown
from sparkserve.checks.scene import Scene
from sparkserve.facts.baseline import NodeBaseline
from sparkserve.facts.container_kinds import Containers
from sparkserve.facts.environment import Environment
from sparkserve.facts.gpu import GpuDriver
from sparkserve.facts.kernel import HostVersions, versions_of
from sparkserve.facts.logs import EngineLog
from sparkserve.facts.tools import Packages
from sparkserve.facts.unified import Meminfo
from sparkserve.model.finding import Severity


class _Item(NamedTuple):
    """One version that all nodes must share."""

    field: str
    plural: str
    severity: Severity


_ITEMS = (
    _Item("kernel", "kernels", "error"),
    _Item("driver_module", "driver modules", "error"),
    _Item("driver_userland", "driver versions", "error"),
    _Item("nic_firmware", "ConnectX firmware versions", "error"),
    _Item("dgx_os", "DGX OS versions", "warning"),
    _Item("bios", "BIOS versions", "warning"),
    _Item("docker", "docker versions", "warning"),
    _Item("architecture", "architectures", "error"),
)
_NOT_A_NODE = re.compile(r"(?i).*(?:client|control|laptop|container|image|exporter|host ?pc).*")


def _nodes(scene: Scene) -> dict[str, HostVersions]:
    """Versions by Spark; readings of one Spark under several names are one."""
    found: dict[str, HostVersions] = {}
    for place, versions in scene.each(HostVersions):
        if place is None or _NOT_A_NODE.fullmatch(place):
            continue
        known = next((other for other in found if scene.same_place(place, other)), place)
        parts = [found[known], versions] if known in found else [versions]
        found[known] = reduce(HostVersions.merged, parts)
    return found


def _skew(scene: Scene) -> Iterator[Judgement]:
    nodes = _nodes(scene)
    told = {place: versions_of(v) for place, v in nodes.items()}
    for place, versions in nodes.items():
        if versions.architecture is not None:
            told[place]["architecture"] = versions.architecture
    alike = [item for item in _ITEMS if len([t for t in told.values() if item.field in t]) > 1]
    for item in list(alike):
        values = {place: known[item.field] for place, known in told.items() if item.field in known}
        if _differing(values.values()):
            alike.remove(item)
            yield from _differ(scene, item, values)
    if alike:
        values = next(iter(told.values()))
        same = ", ".join(f"{item.plural} {values[item.field]}" for item in alike
                         if item.field in values)  # fmt: skip
        yield passed(None, f"the same on {len(told)} nodes: {same}")


def _differing(values: Iterable[str]) -> bool:
    """Whether two versions contradict each other: 580.173 is a shorter 580.173.02, as NVML says."""
    distinct = set(values)
    whole = {one for one in distinct if not any(o.startswith(f"{one}.") for o in distinct)}
    return len(whole) > 1


def _differ(scene: Scene, item: _Item, values: Mapping[str, str]) -> Iterator[Judgement]:
    guilty = _odd_ones(scene, item, values)
    told = ", ".join(f"{place} {value}" for place, value in values.items())
    distinct = " / ".join(dict.fromkeys(v.removesuffix("-nvidia") for v in values.values()))
    places: list[str | None] = [*guilty] or [None]
    for place in places:
        yield Judgement(
            place, "fail", f"{item.plural} differ ({distinct}): {told}",
            f"one of them on all {len(values)} nodes", severity=item.severity,
            fix=_hold_fix(item, place, values),
            evidence=tuple(line for p in values for line in shown(scene, p, HostVersions)),
        )  # fmt: skip


def _hold_fix(item: _Item, place: str | None, values: Mapping[str, str]) -> str:
    others = [value for other, value in values.items() if other != place]
    wanted = Counter(others).most_common(1)[0][0] if others else ""
    if item.field == "kernel":
        return (
            f"on {place or 'the odd node'}: boot {wanted}, then on every node: sudo apt-mark hold"
            " linux-image-nvidia linux-headers-nvidia"
        )
    if item.field.startswith("driver"):
        return f"install driver {wanted} on {place or 'the odd node'}, then hold its packages"
    return f"bring {place or 'the odd node'} to {wanted}"


def _odd_ones(scene: Scene, item: _Item, values: Mapping[str, str]) -> list[str]:
    """Nodes that deviate: from the majority; else those known to be bad; else not the head."""
    counts = Counter(values.values()).most_common()
    if len(counts) == 1 or counts[0][1] > counts[1][1]:
        return [place for place, value in values.items() if value != counts[0][0]]
    if item.field == "kernel":
        bad = [place for place, value in values.items() if in_range(value, ">=7.0, <7.1")]
        if bad and len(bad) < len(values):
            return bad
    ranked = sorted(
        values, key=lambda place: (scene.rank_of(place) or 0, list(values).index(place))
    )
    return [place for place in values if values[place] != values[ranked[0]]]


def _changed(scene: Scene) -> Iterator[Judgement]:
    for place, baseline in scene.each(NodeBaseline):
        versions = scene.of(place, HostVersions)
        if versions is None or not baseline.served_with:
            continue
        now = versions_of(versions)
        moved = [
            f"{name} {was} -> {now[name]}"
            for name, was in baseline.served_with.items()
            if name in now and now[name] != was
        ]
        if moved:
            yield Judgement(
                place, "fail", ", ".join(moved), "as at the last launch that became ready",
                evidence=shown(scene, place, HostVersions, NodeBaseline),
            )  # fmt: skip
        else:
            yield passed(place, f"{len(now)} versions as at the last good launch")


def _loaded(scene: Scene) -> Iterator[Judgement]:
    mismatched = {p: d.mismatch for p, d in scene.each(GpuDriver) if d.mismatch is not None}
    for place, told in mismatched.items():
        versions = scene.of(place, HostVersions)
        module = versions.driver_module if versions else None
        with_module = f" (loaded module {module})" if module else ""
        yield _reload(scene, place, f"{told}{with_module}")
    for place, versions in scene.each(HostVersions):
        module, userland = versions.driver_module, versions.driver_userland
        if place in mismatched or module is None or userland is None:
            continue
        if module == userland:
            yield passed(place, f"module and libraries {module}")
        else:
            yield _reload(scene, place, f"loaded module {module}, libraries {userland}")


def _reload(scene: Scene, place: str | None, told: str) -> Judgement:
    return Judgement(
        place, "fail", told, "one version of module and libraries",
        evidence=shown(scene, place, HostVersions, GpuDriver),
    )  # fmt: skip


_NCCL = re.compile(r"(?:nccl==|NCCL version )(\d+\.\d+\.\d+)")


def setup_of(scene: Scene, place: str | None, versions: HostVersions) -> Setup:
    """Everything known of one place that the table of known-bad versions may ask for."""
    environment, packages = scene.of(place, Environment), scene.of(place, Packages)
    log, listed = scene.of(place, EngineLog), scene.of(place, Containers)
    nccl = (
        next((m[1] for line in log.lines if (m := _NCCL.search(line.text))), None) if log else None
    )
    image = next((c.image for c in listed.containers if c.image and c.status == "running"), None) \
        if listed else None  # fmt: skip
    keys = scene.wanted.keys or {}
    firmware = sorted((versions.nic_firmware or {}).values())
    nodes = len(scene.fleet.nodes) if scene.fleet else scene.wanted.nodes
    return Setup(
        kernel=versions.kernel,
        cmdline=versions.cmdline,
        driver=versions.driver_module or versions.driver_userland,
        nccl=nccl,
        nic_firmware=firmware[0] if firmware else None,
        bios=versions.bios,
        image=image,
        nodes=nodes,
        environment=dict(environment.variables) if environment else None,
        settings={key: str(value) for key, value in keys.items()},
        packages=dict(packages.versions) if packages else None,
    )


def _known_bad(scene: Scene) -> Iterator[Judgement]:
    kinds = (HostVersions, Environment, Packages, Containers)
    places = dict.fromkeys(place for kind in kinds for place, _ in scene.each(kind))
    for place in places:
        versions = scene.of(place, HostVersions)
        found = matches(setup_of(scene, place, versions or HostVersions()))
        bad = [m for m in found if m.row.state == "bad" and not _is_measured(scene, place, m)]
        for match in bad:
            row = match.row
            yield Judgement(
                place, "fail", f"{', '.join(match.because)}: {row.symptom}", "not this combination",
                why=f"{row.cause} ({row.source})", fix=row.fix, code=row.code,
                severity=row.severity, evidence=shown(scene, place, *kinds),
            )  # fmt: skip
        if versions is not None and versions.kernel is not None and not bad:
            good = [", ".join(m.because) for m in found if m.row.state == "reference"]
            told = f"{'; '.join(good)}: seen to work" if good else f"kernel {versions.kernel}"
            yield passed(place, f"{told}; no known-bad combination")


def _is_measured(scene: Scene, place: str | None, match: Match) -> bool:
    """Whether another check measures the fault here and so decides."""
    if not match.row.judged_by:
        return False
    if match.row.judged_by != "MEM.CMA":
        return True
    memory = scene.near(place, Meminfo)
    return memory is not None and None not in (memory.cma_free_bytes, memory.cma_total_bytes)


def _architecture(scene: Scene) -> Iterator[Judgement]:
    for place, versions in scene.each(HostVersions):
        told = versions.architecture
        if told is None or not rules_apply(scene, place):
            continue
        if told in ("aarch64", "arm64"):
            yield passed(place, told)
        else:
            yield Judgement(
                place, "fail", told, "aarch64", evidence=shown(scene, place, HostVersions)
            )


CHECKS: tuple[Check, ...] = (
    Check(
        "HOST.ARCH", "HOST_NOT_ARM64", "the node is a 64-bit ARM machine",
        ("doctor", "launch"), "error", "hardware", (HostVersions,), _architecture,
        why="images and kernels are built for aarch64 and sm_121",
        fix="take a Spark, or a profile that runs on this machine",
        symptom="`exec format error`, or wheels that cannot be installed.",
    ),
    Check(
        "HOST.KERNEL", "HOST_KERNEL_SKEW", "kernel, driver and firmware are the same everywhere",
        ("doctor", "launch"), "error", "hardware", (HostVersions,), _skew,
        why="a routine update moved one node: ranks then fail or hang in ways that no recipe shows",
        fix="bring all nodes to one version, then hold the packages of kernel and driver",
        symptom="It worked for weeks and does not since two nights ago; nobody changed anything.",
    ),
    Check(
        "HOST.CHANGED", "HOST_KERNEL_SKEW", "versions are those of the last good launch",
        ("doctor", "launch"), "warning", "hardware", (HostVersions,), _changed,
        why="what changed since it last worked is the first suspect",
        fix="go back to the versions of the last good launch, or look for the cause there first",
        symptom="It worked for weeks and does not since two nights ago; nobody changed anything.",
    ),
    Check(
        "HOST.DRIVER", "HOST_KERNEL_SKEW", "the loaded driver is the installed one",
        ("doctor", "launch"), "error", "hardware", (HostVersions,), _loaded,
        why="the libraries were updated under a running kernel module; they refuse each other",
        fix="reboot the node, then hold the driver's packages",
        symptom="`Failed to initialize NVML: Driver/library version mismatch`.",
    ),
    Check(
        "HOST.KNOWN_BAD", "HOST_KNOWN_BAD", "no combination that is known to fail",
        ("doctor", "launch"), "warning", "hardware", (HostVersions,), _known_bad,
        why="others lost days to this combination",
        fix="see the row in sparkserve/checks/known_bad.toml",
        symptom="As the row of the table says.",
        also=("MEM_KHO_CMA", "NET_NCCL_KNOWN_BAD", "ENG_NONDETERMINISTIC", "ENG_IMAGE_MOVES",
              "ENG_LIB_SKEW", "NET_NCCL_TWICE"),
    ),
)  # fmt: skip
