"""Runs as records and as the nodes tell them, for the views and the commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sparkserve.model.node_state import Progress, RankStatus, RunStatus
from sparkserve.model.record import Endpoint, RunRecord
from tests import scenes

RUN_ID = "20261130-120000-pair-4f2a"
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
GIB = 1 << 30


def record(count: int = 2, **changes: Any) -> RunRecord:
    """A run that serves."""
    profile = changes.pop("profile", None) or scenes.profile(
        parallel={"tp": count}, gate={"prompt": "What is the capital of France?"}
    )
    values: dict[str, Any] = {
        "run_id": RUN_ID,
        "tool_version": "0.1.0",
        "created_at": NOW,
        "updated_at": NOW,
        "outcome": "serving",
        "profile": profile,
        "profile_digest": "d" * 64,
        "cluster": scenes.cluster(count),
        "run_dirs": {f"spark{n}": f"/srv/runs/{RUN_ID}" for n in range(1, count + 1)},
        "endpoint": Endpoint(
            url="http://127.0.0.1:8888/v1", reachable_from="head", model=profile.model.served_name
        ),
        "timings_s": {"ready": 84.2},
        "answer": " The capital of France is Paris.\n",
        "answer_tokens_per_s": 13.37,
    }
    return RunRecord.model_validate(values | changes)


def rank(number: int = 0, **changes: Any) -> RankStatus:
    """A rank that runs well."""
    values: dict[str, Any] = {
        "node": f"spark{number + 1}",
        "rank": number,
        "state": "running",
        "pid": 4000 + number,
        "uptime_s": 3725.0,
        "progress": Progress(
            at_s=0.0,
            log_bytes=10_000,
            read_bytes=50 * GIB,
            cpu_s=100.0,
            rss_bytes=3 * GIB,
            memory_available_bytes=21 * GIB,
            processes=5,
            engram_rows=1_234_567 + number,
        ),
        "last_line": "[2026-11-30 12:00:05 TP0] Decode batch, #running-req: 1, #token: 512, "
        "token usage: 0.01, gen throughput (token/s): 23.41, #queue-req: 0",
    }
    return RankStatus.model_validate(values | changes)


def dead_rank(number: int, state: str, reason: str, **changes: Any) -> RankStatus:
    """A rank without an engine."""
    none: dict[str, Any] = {"progress": None, "uptime_s": None, "last_line": ""}
    return rank(number, state=state, reason=reason, **none, **changes)


def status(*ranks: RankStatus, **changes: Any) -> RunStatus:
    """A run that serves, on the given ranks or two good ones."""
    values: dict[str, Any] = {
        "run_id": RUN_ID,
        "profile": "tiny",
        "outcome": "serving",
        "endpoint_url": "http://127.0.0.1:8888/v1",
        "healthy": True,
        "ready_s": 84.2,
        "decode_tokens_per_s": 23.41,
        "ranks": ranks or (rank(0), rank(1)),
    }
    return RunStatus.model_validate(values | changes)
