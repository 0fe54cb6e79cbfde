"""Rank parity: everything that must be equal on all ranks is, and what differs is named."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.machine import is_serving, shown
from sparkserve.checks.scene import Scene
from sparkserve.facts.container_kinds import Containers
from sparkserve.facts.environment import Environment
from sparkserve.facts.parity import ParityItems

_SHOWN = 16
"""Digits of a digest that are printed: enough to tell two apart."""
_PER_RANK = re.compile(
    r"(?:.*_)?(?:RANK|LOCAL_RANK|NODE_RANK|NODE_IP|HOST_IP|HOST_?NAME|SOCKET_IFNAME|IFNAME|HCA"
    r"|GID_INDEX|NET_DEVICES|NET_DEVS)|HOSTNAME|NODE_NAME|HOME|USER|LOGNAME|PWD|OLDPWD|SHLVL|_"
    r"|SSH_\w+|SPARKSERVE_ENGINE_SPEC|INVOCATION_ID|JOURNAL_STREAM|XDG_\w+|DBUS_\w+|TERM|LS_COLORS"
    r"|NCCL_IB_ADDR_\w+|MASTER_BIND\w*|container|HOST_\w*ADDR\w*|\w*_NODE_ID"
)
"""Variables that differ from rank to rank by design: rank, addresses, interfaces, HCA, session."""


def _parity(scene: Scene) -> Iterator[Judgement]:
    nodes = _by_spark(scene)
    if len(nodes) < 2:
        return
    names = dict.fromkeys(
        name for parity in nodes.values() for name in (*parity.items, *parity.unknown)
    )
    equal = 0
    for name in names:
        values = {place: parity.items[name] for place, parity in nodes.items()
                  if name in parity.items}  # fmt: skip
        blind = [place for place, parity in nodes.items() if name in parity.unknown]
        absent = [p for p in nodes if p not in values and p not in blind and _tells(nodes[p])]
        if name.startswith("container image"):
            # A rank without a container is another question, and another check's.
            absent = []
        if len(set(values.values())) > 1 or (values and absent):
            yield from _differs(scene, name, values, absent)
        else:
            equal += not blind
        for place in blind:
            yield Judgement(place, "unknown", f"{name} could not be read")
    if equal and equal == len(names):
        yield passed(None, f"{equal} items equal on {len(nodes)} nodes")


def _items(scene: Scene) -> Iterator[tuple[str | None, ParityItems]]:
    """What nodes told of themselves, and the image of each rank's container."""
    yield from scene.each(ParityItems)
    for place, listed in scene.each(Containers):
        serving = [
            one for one in listed.containers
            if one.status in (None, "running") and is_serving(one) and (one.image_id or one.image)
        ]  # fmt: skip
        if len(serving) == 1:
            one = serving[0]
            name = "container image id" if one.image_id else "container image"
            yield place, ParityItems(items={name: one.image_id or one.image or ""})


def _by_spark(scene: Scene) -> dict[str, ParityItems]:
    found: dict[str, ParityItems] = {}
    for place, items in _items(scene):
        if place is None:
            continue
        known = next((other for other in found if scene.same_place(place, other)), None)
        if known is None:
            found[place] = items
        else:
            found[known] = found[known].merged(items)
    return found


def _tells(parity: ParityItems) -> bool:
    """Whether a node listed its items, so that one it did not list is one that it has not."""
    return any(not name.startswith("container image") for name in parity.items)


def _differs(
    scene: Scene, name: str, values: Mapping[str, str], absent: list[str]
) -> Iterator[Judgement]:
    common, count = Counter(values.values()).most_common(1)[0]
    odd = [place for place, value in values.items() if value != common] + absent
    if count * 2 <= len(values) + len(absent):
        # No majority: no node is more guilty than another.
        odd = odd if len(values) + len(absent) == 2 else []
    told = ", ".join(f"{place} {_short(value)}" for place, value in values.items())
    told += "".join(f", {place} has none" for place in absent)
    places: list[str | None] = [*odd] or [None]
    for place in places:
        yield Judgement(
            place, "fail", f"{name}: {told}", "equal on every rank",
            fix=f"bring {name} of {place or 'all nodes'} to what the other ranks have",
            evidence=tuple(
                line for other in (*values, *absent)
                for line in shown(scene, other, ParityItems, Containers)
            ),
        )  # fmt: skip


def _short(value: str) -> str:
    return value[:_SHOWN] if re.fullmatch(r"(?:sha256:)?[0-9a-f]{40,}", value) else value


def _environment(scene: Scene) -> Iterator[Judgement]:
    ranks = _rank_environments(scene)
    if len(ranks) < 2:
        return
    head, first = next(iter(ranks.items()))
    differ = False
    for place, variables in list(ranks.items())[1:]:
        missing = [n for n in first if n not in variables and not _PER_RANK.fullmatch(n)]
        more = [n for n in variables if n not in first and not _PER_RANK.fullmatch(n)]
        other = [
            n for n in first
            if n in variables and variables[n] != first[n] and not _PER_RANK.fullmatch(n)
        ]  # fmt: skip
        told = [f"{', '.join(missing)} missing on {place}"] if missing else []
        told += [f"{', '.join(more)} only on {place}"] if more else []
        told += [_values(n, {head: first[n], place: variables[n]}) for n in other]
        if told:
            differ = True
            yield Judgement(
                place, "fail", "; ".join(told), f"the variables of {head}",
                fix=_environment_fix(place, [*missing, *other], more, first),
                evidence=(*shown(scene, head, Environment), *shown(scene, place, Environment)),
            )  # fmt: skip
    if not differ:
        yield passed(None, f"{len(first)} variables, equal on {len(ranks)} ranks but for their own")


def _environment_fix(
    place: str, wanted: list[str], more: list[str], first: Mapping[str, str]
) -> str:
    parts = [f"start the rank on {place} with " + " ".join(
        "-e " + _plain(name, first[name]) for name in wanted
    )] if wanted else []  # fmt: skip
    parts += [f"without {', '.join(more)}"] if more else []
    return " and ".join(parts)


_SECRET = re.compile(r"(?i)token|secret|passw|credential|(?:^|_)key")


def _plain(name: str, value: str) -> str:
    return name if _SECRET.search(name) else shlex.quote(f"{name}={value}")


def _values(name: str, values: Mapping[str, str]) -> str:
    if _SECRET.search(name):
        return f"{name} differs between {' and '.join(values)}"
    return f"{name}: " + ", ".join(f"{place} {value!r}" for place, value in values.items())


def _rank_environments(scene: Scene) -> dict[str, dict[str, str]]:
    """Variables by rank, the head first: of containers and rendered runs, never of an image."""
    found: dict[str, dict[str, str]] = {}
    origins: dict[str, str] = {}
    for place, known in scene.each(Environment):
        if place is None or known.origin == "image":
            continue
        if any(scene.same_place(place, other) for other in found):
            continue
        found[place] = dict(known.variables)
        origins[place] = known.origin
    # Only like is compared with like: a container's variables hold those of its image, too.
    kinds = Counter(origins.values()).most_common(1)
    alike = [place for place in found if kinds and origins[place] == kinds[0][0]]
    alike.sort(key=lambda place: scene.rank_of(place) or 0)
    return {place: found[place] for place in alike}


CHECKS: tuple[Check, ...] = (
    Check(
        "RANK.PARITY", "ENG_RANKS_DIFFER", "what must be equal on all ranks is equal",
        ("doctor", "launch"), "error", "hardware", (ParityItems,), _parity,
        why="ranks that differ hang in the first collective, or answer garbage that no error tells",
        fix="bring the odd node to what the others have",
        symptom="Garbled text, or a hang at the first collective, with every rank healthy alone.",
    ),
    Check(
        "RANK.ENVIRONMENT", "ENG_ENV_NOT_ON_WORKER", "every rank has the head's variables",
        ("launch", "doctor"), "error", "config", (Environment,), _environment,
        why="a launcher set variables on the head alone; a worker then downloads, or computes"
        " otherwise",
        fix="start every rank with one set of variables",
        symptom="The head loads from its cache while a worker asks the Hub, or ranks differ in"
        " their settings.",
        text_only="launch itself renders one set of variables for all ranks",
    ),
)  # fmt: skip
