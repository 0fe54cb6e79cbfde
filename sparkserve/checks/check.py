"""What a check is, and how a stage's checks are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkserve.facts.probe import Probe
from sparkserve.model.cluster import Cluster
from sparkserve.model.facts import NodeFacts, Unobserved
from sparkserve.model.finding import FaultClass, Finding, Outcome, Severity
from sparkserve.model.profile import Profile

Stage = Literal["launch"]


@dataclass(frozen=True)
class Scene:
    """What a check may look at."""

    profile: Profile
    cluster: Cluster
    facts: Mapping[str, NodeFacts]
    """By node name; every node of the cluster is there."""
    named: str | None = None
    """How the user named profile and nodes, as options of a command; None = by the profile's name.
    """

    def nodes(self) -> Iterator[tuple[int, str, NodeFacts]]:
        """(rank, name, facts) of every node in rank order."""
        for rank, node in enumerate(self.cluster.nodes):
            yield rank, node.name, self.facts[node.name]


@dataclass(frozen=True)
class Judgement:
    """What a check says about one node; the check's data completes it to a Finding."""

    node: str | None
    outcome: Outcome
    observed: str = ""
    expected: str = ""
    why: str = ""
    fix: str = ""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One rule."""

    id: str
    code: str
    """Vocabulary of the public failure cases."""
    title: str
    stages: tuple[Stage, ...]
    severity: Severity
    fault_class: FaultClass
    needs: tuple[Probe[Any], ...]
    judge: Callable[[Scene], Iterable[Judgement]]


def passed(node: str | None, observed: str = "") -> Judgement:
    """All well."""
    return Judgement(node=node, outcome="pass", observed=observed)


def unknown(node: str | None, fact: Unobserved) -> Judgement:
    """Not observed, so not judged."""
    evidence = tuple(fact.raw.splitlines()[-3:])
    return Judgement(node=node, outcome="unknown", observed=fact.reason, evidence=evidence)


_VERDICTS: dict[tuple[Outcome, Severity], str] = {
    ("fail", "error"): "FAIL",
    ("fail", "warning"): "WARN",
    ("fail", "info"): "INFO",
}


def judge(checks: Sequence[Check], scene: Scene) -> tuple[Finding, ...]:
    """Findings of all checks, in the order of the checks."""
    return tuple(_finding(check, judgement) for check in checks for judgement in check.judge(scene))


def _finding(check: Check, judgement: Judgement) -> Finding:
    verdict = _VERDICTS.get((judgement.outcome, check.severity), judgement.outcome.upper())
    return Finding(
        code=check.code,
        check_id=check.id,
        title=check.title,
        node=judgement.node,
        outcome=judgement.outcome,
        severity=check.severity,
        fault_class=check.fault_class,
        verdict=verdict,
        observed=judgement.observed,
        expected=judgement.expected,
        why=judgement.why,
        fix=judgement.fix,
        evidence=judgement.evidence,
    )
