"""How containers ended: dead while somebody waits for them, or killed without a word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sparkserve.checks.check import Check, Judgement
from sparkserve.checks.scene import Scene, evidence
from sparkserve.engine.host_lines import LINES
from sparkserve.facts.container_kinds import Container, Containers
from sparkserve.facts.kernel_log import KernelLog
from sparkserve.facts.logs import ServiceJournal
from sparkserve.facts.reader import Fact
from sparkserve.facts.samples import StateSamples

DEAD_SAMPLES = 3
"""Samples in a row that must say that the container is gone (case ENG_DEAD_WORKER_WAIT)."""
_DEAD = ("exited", "dead", "missing", "removing")
_KILLED = 137
_KILLERS = re.compile(
    r"(?i)(?<![\w-])[\w-]{0,40}(?:earlyoom|oomd|nohang|anti-oom|oom-?guard)[\w-]*"
)
"""Names of guards of memory in user space (case MEM_USERSPACE_KILLER)."""
_KILL_LINE = next(pattern for pattern in LINES if pattern.name == "userspace-kill")
_TASK = re.compile(
    r"oom-kill:(?=.*task_memcg=(?P<group>[^,\s]*))(?=.*\btask=(?P<name>[^,]+))"
    r"(?=.*\bpid=(?P<pid>\d+))"
)
_VICTIM = re.compile(r"(?i)out of memory: Killed process (?P<pid>\d+) \((?P<name>[^)]+)\)")


def shown(scene: Scene, *kinds: type[Fact]) -> tuple[str, ...]:
    """Which texts of some kinds were looked at."""
    return evidence([reading for kind in kinds for _, _, reading in scene.seen(kind)])


class Kill(NamedTuple):
    """One process that the kernel killed for memory."""

    pid: str
    name: str
    group: str | None
    """Its control group; None where the kernel's lines do not say."""
    is_global: bool
    """Whether the whole node was out of memory, not one control group."""
    line: str


def kills(lines: tuple[str, ...]) -> list[Kill]:
    """Every kill for memory in a kernel's log, in order."""
    found: dict[str, Kill] = {}
    for line in lines:
        if task := _TASK.search(line):
            everywhere = "global_oom" in line or "CONSTRAINT_NONE" in line
            found[task["pid"]] = Kill(task["pid"], task["name"], task["group"], everywhere, line)
        elif victim := _VICTIM.search(line):
            everywhere = "cgroup" not in line
            found.setdefault(
                victim["pid"], Kill(victim["pid"], victim["name"], None, everywhere, line)
            )
    return list(found.values())


def _belongs(kill: Kill, box: Container) -> bool:
    """Whether the killed process was in this container, by the control group's name."""
    return bool(box.id and kill.group and box.id[:12] in kill.group)


def _exits(scene: Scene) -> Iterator[Judgement]:
    for place, fact in scene.each(Containers):
        for box in fact.containers:
            if box.exit_code == _KILLED:
                yield _killed(scene, place, box)


def _killed(scene: Scene, place: str | None, box: Container) -> Judgement:
    log = scene.near(place, KernelLog)
    name = box.name or box.id or "the container"
    found = kills(log.lines) if log is not None else []
    own = next((kill for kill in found if _belongs(kill, box)), None)
    nameless = next((kill for kill in found if kill.group is None), None)
    kill = own or nameless
    flag = "" if box.oom_killed is None else f", although OOMKilled={str(box.oom_killed).lower()}"
    if kill is not None:
        kind = "global OOM" if kill.is_global else "OOM of a control group"
        inside = "in this container" if own else "not said in which container"
        return Judgement(
            place, "fail",
            observed=f"{name} ended with 137: kernel {kind}, victim {kill.name} (pid {kill.pid}) "
            f"{inside}{'' if box.oom_killed else flag}",
            expected="no kill",
            why="Docker sets OOMKilled only where the container's own limit was hit; when the node "
            "runs out, the kernel's log alone says so",
            evidence=(*shown(scene, Containers), kill.line.strip()[:300]),
        )  # fmt: skip
    if box.oom_killed:
        return Judgement(
            place,
            "fail",
            observed=f"{name} ended with 137: it hit its own memory limit (OOMKilled=true)",
            expected="no kill",
            fix="raise the container's memory limit, or lower what the engine takes",
            evidence=shown(scene, Containers),
        )
    killer = _killer(scene, place)
    if killer is not None:
        unit, line = killer
        return Judgement(
            place, "fail", code="MEM_USERSPACE_KILLER",
            observed=f"{name} ended with 137: killed by {unit}: {line.strip()[:200]}",
            expected="no guard of memory that cannot tell a server from a leak",
            why="a server holds most of the memory by design, and such a guard takes it for a leak",
            fix=f"sudo systemctl disable --now {unit}",
            evidence=(*shown(scene, Containers, ServiceJournal), line.strip()[:300]),
        )  # fmt: skip
    unseen = "the kernel's log was not read" if log is None else "no kill in the kernel's log"
    return Judgement(
        place, "unknown", severity="info",
        observed=f"{name} ended with 137: SIGKILL, cause unknown ({unseen})",
        fix="dmesg -T | grep -iE 'oom-kill|out of memory'; journalctl | grep -i SIGKILL",
        evidence=shown(scene, Containers, KernelLog),
    )  # fmt: skip


def _killer(scene: Scene, place: str | None) -> tuple[str, str] | None:
    """(unit, line) of a guard of memory in user space that killed something at this place."""
    journal = scene.near(place, ServiceJournal)
    for line in journal.lines if journal is not None else ():
        told = _KILLERS.search(line) or _KILLERS.search((journal and journal.unit) or "")
        if told and _KILL_LINE.regex.search(line):
            return told[0], line
    return None


def _dead(scene: Scene) -> Iterator[Judgement]:
    for place, samples in scene.each(StateSamples):
        gone = 0
        for number, state in enumerate(samples.states, 1):
            gone = gone + 1 if state in _DEAD else 0
            if gone == DEAD_SAMPLES:
                yield Judgement(
                    place, "fail", verdict="ABORT",
                    observed=f"the container is {state} in sample {number}, "
                    f"the {DEAD_SAMPLES}rd in a row",
                    expected="a running container while the launch waits",
                    evidence=shown(scene, StateSamples),
                )  # fmt: skip
                break


ENDS: tuple[Check, ...] = (
    Check(
        "PROGRESS.DEAD_WORKER", "ENG_DEAD_WORKER_WAIT", "No launch waits for a dead rank",
        ("launch",), "error", "engine", (StateSamples,), _dead,
        why="rank 0 waits for ever for a worker whose container has ended",
        fix="stop every rank and read the log of the one that ended: docker logs NAME",
        symptom="/health refuses connections for half an hour; a worker's container has exited.",
        text_only="the guards of a run notice the end of a rank at once; samples need minutes",
    ),
    Check(
        "PROGRESS.EXIT_137", "ENG_EXIT_137", "A killed container has a known cause",
        ("watch", "doctor"), "error", "memory", (Containers,), _exits,
        why="137 is SIGKILL, and only the kernel's log, a guard's journal or docker say by whom",
        fix="lower what the ranks take together: sparkserve plan",
        symptom="A container is gone with exit code 137, and nothing in its log says why.",
        also=("MEM_USERSPACE_KILLER",),
    ),
)  # fmt: skip
