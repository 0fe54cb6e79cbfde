"""What a check is, and how a stage's checks are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sparkserve.checks.scene import Scene, evidence
from sparkserve.facts.probe import Probe
from sparkserve.facts.reader import Fact
from sparkserve.model.facts import Unobserved
from sparkserve.model.finding import FaultClass, Finding, Outcome, Severity

Stage = Literal[
    "doctor", "profile", "prepare", "pack", "launch", "watch", "verify", "eval", "bench"
]
"""Who should notice: a command, or the part of one that goes on while a model is served."""


@dataclass(frozen=True)
class Judgement:
    """What a check says about one node; the check's data completes it to a Finding."""

    node: str | None
    outcome: Outcome
    observed: str = ""
    expected: str = ""
    why: str = ""
    """Empty: the check's own."""
    fix: str = ""
    """Empty: the check's own, where the check failed."""
    evidence: tuple[str, ...] = ()
    code: str | None = None
    """None: the check's own; else one of its ``also``."""
    severity: Severity | None = None
    """None: the check's own."""
    verdict: str | None = None
    """None: by outcome and severity; else the decision of the stage, such as GO or REFUSE."""


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
    needs: tuple[Probe[Any] | type[Fact], ...]
    """Probes of a launch (the check then needs a profile, too), or kinds of fact of a reader."""
    judge: Callable[[Scene], Iterable[Judgement]]
    why: str = ""
    """Why it matters, in one sentence."""
    fix: str = ""
    """What mends it: a command where there is one."""
    symptom: str = ""
    """What a user sees who has this fault."""
    also: tuple[str, ...] = ()
    """Further codes that its judgements may carry."""
    text_only: str = ""
    """Why nothing on a node is read for it, where only texts can tell; empty = live too."""
    profile_free: bool = False
    """Whether it looks at a launch's probes alone, so that a cluster without a profile will do."""

    @property
    def needs_profile(self) -> bool:
        """Whether it looks at a launch's probes, which only a profile or cluster gives."""
        return any(isinstance(need, Probe) for need in self.needs)

    def can_judge(self, scene: Scene) -> bool:
        """Whether the scene holds the wish that its probes are compared with."""
        if not self.needs_profile:
            return True
        return scene.fleet is not None and (self.profile_free or scene.wish is not None)


def passed(node: str | None, observed: str = "") -> Judgement:
    """All well."""
    return Judgement(node=node, outcome="pass", observed=observed)


def unknown(node: str | None, fact: Unobserved) -> Judgement:
    """Not observed, so not judged."""
    evidence = tuple(fact.raw.splitlines()[-3:])
    return Judgement(node=node, outcome="unknown", observed=fact.reason, evidence=evidence)


_MOST_EVIDENCE = 8
_VERDICTS: dict[tuple[Outcome, Severity], str] = {
    ("fail", "error"): "FAIL",
    ("fail", "warning"): "WARN",
    ("fail", "info"): "INFO",
}


def judge(checks: Sequence[Check], scene: Scene) -> tuple[Finding, ...]:
    """Findings of all checks, in the order of the checks.

    What a check needs and nobody could observe becomes ``unknown`` for that place, unless the
    check spoke about it.
    """
    found: list[Finding] = []
    for check in checks:
        if not check.can_judge(scene):
            continue
        judgements = list(check.judge(scene))
        spoken = {judgement.node for judgement in judgements}
        kinds = [need for need in check.needs if not isinstance(need, Probe)]
        blind = {place: fact for kind in kinds for place, fact in scene.blind(kind)}
        judgements += [unknown(place, fact) for place, fact in blind.items() if place not in spoken]
        found += [_finding(check, _shown(scene, kinds, judgement)) for judgement in judgements]
    return tuple(found)


def _shown(scene: Scene, kinds: Sequence[type[Fact]], judgement: Judgement) -> Judgement:
    """The judgement with the readings that it rests on, where it fails and names none itself."""
    if judgement.outcome != "fail" or judgement.evidence:
        return judgement
    seen = [(o.place, o.reading) for o in scene.observations if o.kind in kinds]
    near = [reading for place, reading in seen if scene.same_place(place, judgement.node)]
    told = evidence(near or [reading for _, reading in seen])
    return replace(judgement, evidence=tuple(dict.fromkeys(told))[:_MOST_EVIDENCE])


def _finding(check: Check, judgement: Judgement) -> Finding:
    severity = judgement.severity or check.severity
    outcome = judgement.outcome
    failed = outcome == "fail"
    return Finding(
        code=judgement.code or check.code,
        check_id=check.id,
        title=check.title,
        node=judgement.node,
        outcome=outcome,
        severity=severity,
        fault_class=check.fault_class,
        verdict=judgement.verdict or _VERDICTS.get((outcome, severity), outcome.upper()),
        observed=judgement.observed,
        expected=judgement.expected,
        why=judgement.why or (check.why if failed else ""),
        fix=judgement.fix or (check.fix if failed else ""),
        evidence=judgement.evidence,
    )
