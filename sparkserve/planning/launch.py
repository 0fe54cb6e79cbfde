"""The plan of a launch: write specs, start the workers, then the head, then prove the endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkserve.engine import sglang
from sparkserve.model import run_files
from sparkserve.model.engine_spec import EngineSpec
from sparkserve.model.plan import (
    AwaitAnswer,
    AwaitHealth,
    AwaitReports,
    Plan,
    PutFile,
    Stage,
    StartGuard,
    Step,
)
from sparkserve.model.profile import Profile


@dataclass(frozen=True)
class Secrets:
    """What must never be shown or recorded."""

    guard_key: str
    """64 hex digits, shared by the guards of this run."""
    api_key: str | None


def build(
    profile: Profile, specs: Sequence[EngineSpec], pythons: Sequence[str], secrets: Secrets
) -> Plan:
    """The ordered steps of a launch; ``specs`` and ``pythons`` rank 0 first."""
    run_id = specs[0].run_id
    head = specs[0]
    starts = [_start(spec, python, run_id) for spec, python in zip(specs, pythons, strict=True)]
    stages = [
        Stage(
            title="write specs",
            steps=tuple(step for spec in specs for step in _files(spec, secrets)),
        ),
        *([Stage(title="start workers", steps=tuple(starts[1:]))] if starts[1:] else []),
        Stage(title="start head", steps=(starts[0],)),
        Stage(title="wait for the engine", steps=tuple(_waits(profile, head, len(specs)))),
        Stage(title="ask a question", steps=(_question(profile, head),)),
    ]
    return Plan(verb="launch", run_id=run_id, stages=tuple(stages))


def stage_count(ranks: int) -> int:
    """How many stages ``build`` makes for so many ranks."""
    return 5 if ranks > 1 else 4


def _files(spec: EngineSpec, secrets: Secrets) -> list[Step]:
    files = [(run_files.SPEC, spec.model_dump_json(indent=1), 0o600, False)]
    if spec.world_size > 1:
        files.append((run_files.GUARD_KEY, secrets.guard_key, 0o600, True))
    if secrets.api_key is not None:
        files.append((run_files.ENGINE_CONFIG, sglang.config_file(secrets.api_key), 0o600, True))
    return [
        Step(
            id=f"put-{name}-r{spec.rank}",
            node=spec.node,
            title=f"write {name}",
            effect="writes-node",
            action=PutFile(
                path=f"{spec.run_dir}/{name}", content=content, mode=mode, secret=secret
            ),
            done_when="the file's hash on the node equals ours",
            undo=f"rm {spec.run_dir}/{name}",
        )
        for name, content, mode, secret in files
    ]


def _start(spec: EngineSpec, python: str, run_id: str) -> Step:
    return Step(
        id=f"start-r{spec.rank}",
        node=spec.node,
        title=f"start rank {spec.rank} of {spec.world_size} under its guard",
        effect="writes-node",
        action=StartGuard(
            python=python,
            spec_path=f"{spec.run_dir}/{run_files.SPEC}",
            unit=f"sparkserve-{run_id}-r{spec.rank}",
        ),
        done_when="the guard reports the state running",
        undo=f"sparkserve stop {run_id}",
    )


def _waits(profile: Profile, head: EngineSpec, ranks: int) -> list[Step]:
    reports = Step(
        id="await-reports",
        node=head.node,
        title=f"equal install reports of {ranks} rank{'s' if ranks > 1 else ''}",
        effect="reads",
        action=AwaitReports(ranks=ranks),
        done_when="every rank's scheduler reported, and all agreement hashes are equal",
    )
    health = Step(
        id="await-health",
        node=head.node,
        title=f"/health on port {profile.serving.port}",
        effect="reads",
        action=AwaitHealth(port=profile.serving.port),
        done_when="status 200",
    )
    return [reports, health]


def _question(profile: Profile, head: EngineSpec) -> Step:
    gate = profile.gate
    return Step(
        id="await-answer",
        node=head.node,
        title=f"a generated answer to {gate.prompt!r}",
        effect="reads",
        action=AwaitAnswer(
            port=profile.serving.port,
            prompt=gate.prompt,
            expect=gate.expect,
            plausible=gate.plausible,
            max_tokens=gate.max_tokens,
            warmup_requests=gate.warmup_requests,
        ),
        done_when=" and ".join(
            [
                "an answer was generated",
                *(["it is plausible text"] if gate.plausible else []),
                *([f"it holds {gate.expect!r}"] if gate.expect else []),
            ]
        ),
    )
