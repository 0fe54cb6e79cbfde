"""What NCCL's own INFO lines say about the network it really uses (preflight section 11).

The lines come with ``NCCL_DEBUG=INFO`` for one start. Without them nothing is judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.scene import Scene
from sparkserve.facts.logs import EngineLog

_USING = re.compile(r"NET/IB : Using\b(?P<list>.{0,2000})")
_DEVICE = re.compile(r"\[\d+\](?P<name>[\w.-]+):\d+/")
_NETWORK = re.compile(r"NCCL INFO (?:\S+ )?Using network (?P<name>\w+)")
_RANKS = re.compile(r"\bnranks (?P<count>\d{1,6})\b")
_CHANNELS = re.compile(r"\b(?P<count>\d{1,6}) coll channels")
TEXT_ONLY = "the lines are in a log that was written with NCCL_DEBUG=INFO"


def _texts(log: EngineLog) -> list[str]:
    return [line.text for line in log.lines]


def _devices(scene: Scene) -> Iterator[Judgement]:
    wanted = _names(scene.wanted.hca)
    for place, log in scene.each(EngineLog):
        lists = [found["list"] for text in _texts(log) if (found := _USING.search(text))]
        if not lists:
            continue
        used = tuple(dict.fromkeys(name for text in lists for name in _DEVICE.findall(text)))
        missing = [name for name in wanted if not any(one.startswith(name) for one in used)]
        told = f"NCCL uses {', '.join(used) or 'no RDMA device'}"
        if not used or missing:
            lacks = f", not {', '.join(missing)}" if missing else ""
            yield Judgement(place, "fail", told + lacks, ", ".join(wanted) or "an RDMA device")
        else:
            yield passed(place, told)


def _names(selector: str | None) -> list[str]:
    """Names of a selector that includes; an excluding one demands nothing by name."""
    if selector is None or selector.startswith("^"):
        return []
    tokens = selector.removeprefix("=").split(",")
    return [name for token in tokens if (name := token.strip().partition(":")[0])]


def _over_nodes(scene: Scene) -> bool:
    """Whether ranks on several nodes take part: one node alone uses sockets by right."""
    wanted, logs = scene.wanted, scene.each(EngineLog)
    known = [wanted.tp, wanted.nodes, len(scene.fleet.nodes) if scene.fleet else None, len(logs)]
    told = [int(count) for _, log in logs for count in _groups(_RANKS, log, "count")]
    return max(*(number or 0 for number in known), *told, 0) > 1


def _network(scene: Scene) -> Iterator[Judgement]:
    for place, log in scene.each(EngineLog) if _over_nodes(scene) else ():
        named = _groups(_NETWORK, log, "name")
        if not named:
            continue
        if "Socket" in named:
            yield Judgement(place, "fail", "NCCL uses network Socket: TCP", "network IB")
        else:
            yield passed(place, f"NCCL uses network {', '.join(dict.fromkeys(named))}")


def _channels(scene: Scene) -> Iterator[Judgement]:
    for place, log in scene.each(EngineLog):
        counts = [int(count) for count in _groups(_CHANNELS, log, "count")]
        if not counts:
            continue
        if min(counts) == 0:
            yield Judgement(place, "fail", "0 coll channels", "1 or more")
        else:
            yield passed(place, f"{min(counts)} coll channels")


def _groups(pattern: re.Pattern[str], log: EngineLog, group: str) -> list[str]:
    found: Iterable[re.Match[str] | None] = (pattern.search(text) for text in _texts(log))
    return [match[group] for match in found if match is not None]


CHECKS: tuple[Check, ...] = (
    Check(
        "NCCL.LOG_HCAS", "NET_HCA_NOT_USED", "NCCL uses the RDMA devices it was given",
        ("watch",), "error", "hardware", (EngineLog,), _devices,
        why="a device that NCCL leaves out halves the link, or sends everything over TCP",
        fix="sparkserve doctor --only fabric,gids  # then compare the list with NCCL_IB_HCA",
        symptom="`NET/IB : Using` names fewer devices than the profile.",
        text_only=TEXT_ONLY,
    ),
    Check(
        "NCCL.LOG_NETWORK", "NET_NCCL_OVER_TCP", "NCCL uses RDMA",
        ("watch",), "error", "hardware", (EngineLog,), _network,
        why="over TCP a decode step waits several times longer for every collective",
        fix="set NCCL_NET=IB, so that NCCL ends instead; then sparkserve doctor --only fabric",
        symptom="`Using network Socket` in NCCL's lines, and decode is slow on several nodes.",
        text_only=TEXT_ONLY,
    ),
    Check(
        "NCCL.LOG_CHANNELS", "NET_NCCL_NO_CHANNELS", "NCCL has channels for collectives",
        ("watch",), "error", "hardware", (EngineLog,), _channels,
        why="without a channel no collective can run",
        fix="drop NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS, or set them as the profile does",
        symptom="`0 coll channels` in NCCL's lines.",
        text_only=TEXT_ONLY,
    ),
)  # fmt: skip
"""tp1 and CPU runs print none of these lines, so nothing is said there."""
