"""RunRecord: what one run wanted, found, did and came to; enough to compare two runs."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from sparkserve.model.base import Model
from sparkserve.model.cluster import Cluster
from sparkserve.model.engine_spec import InstallReport
from sparkserve.model.profile import Profile

RunOutcome = Literal["launching", "serving", "failed", "interrupted", "stopped"]


class Endpoint(Model):
    """Where the served model answers."""

    url: str
    """Base URL that ends in ``/v1``; seen from the head node when it binds to loopback."""
    reachable_from: Literal["head", "network"]
    model: str


class RankFailure(Model):
    """The first rank that failed and what it said last."""

    rank: int
    node: str
    reason: str
    fix: str = ""
    """What helps against the known cause; empty where none is known."""
    last_lines: tuple[str, ...] = ()


class RunRecord(Model):
    """One run, in one file ``record.json`` that is replaced atomically as the run moves on."""

    schema_version: Literal[1] = 1
    run_id: str
    tool_version: str
    created_at: datetime
    updated_at: datetime
    outcome: RunOutcome
    profile: Profile
    origins: dict[str, str] = Field(default_factory=dict)
    """Dotted profile key -> where its value came from."""
    profile_digest: str
    cluster: Cluster
    run_dirs: dict[str, str] = Field(default_factory=dict)
    """Node name -> absolute run directory on that node."""
    pythons: dict[str, str] = Field(default_factory=dict)
    """Node name -> absolute interpreter on that node."""
    endpoint: Endpoint | None = None
    agreement: str = ""
    """What every rank's install report must say it was told."""
    reports: tuple[InstallReport, ...] = ()
    failure: RankFailure | None = None
    timings_s: dict[str, float] = Field(default_factory=dict)
    answer: str | None = None
    """The generated answer that proved readiness."""
    answer_tokens_per_s: float | None = None
    """Completion tokens of that answer over its whole time, prefill included."""
