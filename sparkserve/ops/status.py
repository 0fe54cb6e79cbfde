"""``sparkserve status``: what every rank of a run does now, asked from the nodes themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkserve.endpoint import Endpoint
from sparkserve.errors import ConfigError, EndpointError, NodeError
from sparkserve.model.node_state import Progress, RankState, RankStatus, RunStatus
from sparkserve.model.record import RunRecord
from sparkserve.ops.doors import Doors
from sparkserve.ops.keyfile import read_api_key
from sparkserve.ops.run_choice import NEWEST, RunChoice, choose
from sparkserve.transport.host import Host, map_hosts, require

_ASK_LIMIT_S = 20.0
_HEALTH_LIMIT_S = 10.0
_THROUGHPUT = "sglang:gen_throughput"


@dataclass(frozen=True)
class StatusRequest:
    """Which run to look at."""

    choice: RunChoice = NEWEST


@dataclass(frozen=True)
class EndpointState:
    """What rank 0's endpoint says."""

    healthy: bool | None
    decode_tokens_per_s: float | None


def run(request: StatusRequest, doors: Doors) -> RunStatus:
    """The state of a run as it stands now; unreachable nodes are shown as such.

    Raises:
        ConfigError: no such run.
    """
    record = choose(request.choice).record()
    group = doors.connect(record.cluster)
    hosts = group.values_by_node
    try:
        asked = map_hosts(list(hosts.values()), lambda host: _ask(host, record))
        head = hosts.get(record.cluster.nodes[0].name)
        endpoint = _endpoint_state(head, record) if head else EndpointState(None, None)
    finally:
        for host in hosts.values():
            host.close()
    errors = {**group.errors_by_node, **asked.errors_by_node}
    ranks = tuple(
        _rank_status(rank, node.name, asked.values_by_node, errors)
        for rank, node in enumerate(record.cluster.nodes)
    )
    return RunStatus(
        run_id=record.run_id,
        profile=record.profile.name,
        outcome=outcome_now(record.outcome, ranks, endpoint.healthy),
        endpoint_url=record.endpoint.url if record.endpoint else None,
        healthy=endpoint.healthy,
        ready_s=record.timings_s.get("ready"),
        decode_tokens_per_s=endpoint.decode_tokens_per_s or record.answer_tokens_per_s,
        ranks=ranks,
    )


def outcome_now(recorded: str, ranks: tuple[RankStatus, ...], healthy: bool | None) -> str:
    """The record's outcome, corrected by what the nodes say: a record cannot know of a crash."""
    states = {rank.state for rank in ranks}
    if recorded not in ("serving", "launching"):
        return recorded
    if states & {"failed", "refused"}:
        return "failed"
    if "unreachable" in states:
        return "unreachable"
    if states <= {"stopped", "absent"}:
        return "stopped"
    if recorded == "serving" and healthy is False:
        return "unhealthy"
    return recorded


def _ask(host: Host, record: RunRecord) -> dict[str, Any]:
    argv = [
        *(record.pythons[host.name], "-m", "sparkserve.node", "status"),
        *("--run-dir", record.run_dirs[host.name]),
    ]
    result = require(host.run(argv, timeout_s=_ASK_LIMIT_S), "status failed")
    try:
        answer = json.loads(result.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise NodeError(host.name, f"status answered {result.tail(2)!r}") from error
    if not isinstance(answer, dict):
        raise NodeError(host.name, f"status answered {result.tail(2)!r}")
    return answer


def _rank_status(
    rank: int, node: str, answers: Mapping[str, dict[str, Any]], errors: Mapping[str, NodeError]
) -> RankStatus:
    if node in errors:
        return RankStatus(node=node, rank=rank, state="unreachable", reason=errors[node].message)
    answer = answers[node]
    if answer.get("state") is None:
        return RankStatus(node=node, rank=rank, state="absent")
    state = RankState.model_validate(answer["state"])
    counters = answer.get("progress")
    alive = counters is not None
    return RankStatus(
        node=node,
        rank=rank,
        state=state.state,
        reason=state.reason,
        pid=state.engine_pid,
        uptime_s=round(time.time() - state.at_s, 1) if alive else None,
        progress=Progress.model_validate(counters) if alive else None,
        last_line=str(answer.get("last_line", "")),
    )


def _endpoint_state(head: Host, record: RunRecord) -> EndpointState:
    try:
        key = read_api_key(record.profile.serving.api_key_file)
        forward = head.forward(record.profile.serving.port)
    except (ConfigError, NodeError):
        return EndpointState(None, None)
    try:
        endpoint = Endpoint(f"http://127.0.0.1:{forward.port}/v1", api_key=key)
        healthy = endpoint.health(timeout_s=_HEALTH_LIMIT_S)
        return EndpointState(healthy, _throughput(endpoint) if healthy else None)
    except EndpointError:
        return EndpointState(healthy=False, decode_tokens_per_s=None)
    finally:
        forward.close()


def _throughput(endpoint: Endpoint) -> float | None:
    try:
        samples = endpoint.metrics()
    except EndpointError:
        return None
    values = [sample.value for sample in samples if sample.name == _THROUGHPUT]
    return max(values) if values and max(values) > 0 else None
