"""From readings to findings: the one judgement of live nodes, of bundles and of pasted texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from sparkserve.checks import registry
from sparkserve.checks.check import Check, judge
from sparkserve.checks.scene import Scene
from sparkserve.facts.reader import Observation, probe_facts, understand
from sparkserve.facts.registry import ALL as PROBES
from sparkserve.facts.registry import READERS
from sparkserve.model.cluster import Cluster
from sparkserve.model.facts import NodeFacts
from sparkserve.model.finding import Finding
from sparkserve.model.profile import Profile
from sparkserve.model.reading import Reading

PROFILE = "sparkserve profile"
"""``what`` of a reading that holds a whole resolved profile as JSON."""
CLUSTER = "sparkserve cluster"
COLLECTION = "sparkserve collection"
"""``what`` of the reading that says when and how fast a node's probes were read."""
NAMED = "sparkserve options"
"""``what`` of the reading that says how the user named profile and nodes, for the fixes."""
_OWN = (PROFILE, CLUSTER, COLLECTION, NAMED)


class Diagnosis(NamedTuple):
    """What was found, what nobody could read, and what the checks looked at."""

    findings: tuple[Finding, ...]
    unread: tuple[Reading, ...]
    scene: Scene


def diagnose(readings: Sequence[Reading], checks: Sequence[Check] = registry.ALL) -> Diagnosis:
    """Judge a set of readings.

    Raises:
        ValueError: the readings' own profile or cluster is not what this version writes.
    """
    probes = {f"probe {probe.id}": probe for probe in PROBES}
    foreign = [r for r in readings if r.what not in _OWN and r.what not in probes]
    understood = understand(foreign, READERS)
    scene = scene_of(readings, understood.observations)
    return Diagnosis(judge(checks, scene), understood.unread, scene)


def scene_of(readings: Sequence[Reading], observations: Sequence[Observation]) -> Scene:
    """What checks look at; with cluster and profile where the readings hold them.

    Raises:
        ValueError: the readings' own profile or cluster is not what this version writes.
    """
    texts = {r.what: r.text for r in readings if r.what in _OWN}
    if CLUSTER not in texts:
        return Scene(None, None, observations=tuple(observations))
    cluster = Cluster.model_validate_json(texts[CLUSTER])
    told = texts.get(PROFILE)
    profile = Profile.model_validate_json(told) if told else None
    facts = {node.name: node_facts(node.name, readings) for node in cluster.nodes}
    return Scene(profile, cluster, facts, texts.get(NAMED) or None, tuple(observations))


def node_facts(node: str, readings: Sequence[Reading]) -> NodeFacts:
    """What the probes of a launch say of one node."""
    own = [reading for reading in readings if reading.node == node]
    told = next((r.text for r in own if r.what == COLLECTION), None)
    when = json.loads(told) if told else {"collected_at": "1970-01-01T00:00:00Z", "elapsed_s": 0}
    values = probe_facts(own, {probe.id: probe for probe in PROBES})
    return NodeFacts.model_validate({"node": node, **when, "values": values})
