"""``sparkserve status``: what every rank of a run does now, asked from the nodes themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sparkserve import __version__
from sparkserve.checks import balance, guarded
from sparkserve.endpoint import Endpoint
from sparkserve.errors import ConfigError, EndpointError, NodeError
from sparkserve.model.node_state import Progress, RankState, RankStatus, RunStatus
from sparkserve.model.record import RunRecord
from sparkserve.ops.doors import Doors
from sparkserve.ops.keyfile import read_api_key
from sparkserve.ops.node_command import node_command
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
        findings=guarded.judge(record.profile, ranks) + balance.judge(record.profile, ranks),
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
    if recorded == "serving" and (healthy is False or any(rank.notice for rank in ranks)):
        return "unhealthy"
    return recorded


@dataclass(frozen=True)
class _Answer:
    """What a node says of its rank; state None = it knows nothing of the run."""

    state: RankState | None
    progress: Progress | None
    last_line: str


def _ask(host: Host, record: RunRecord) -> _Answer:
    run_dir = record.run_dirs[host.name]
    argv = node_command(record.pythons[host.name], "status", "--run-dir", run_dir)
    result = require(host.run(argv, timeout_s=_ASK_LIMIT_S), "status failed")
    try:
        answer = json.loads(result.stdout.strip().splitlines()[-1])
        state, counters = answer["state"], answer["progress"]
        return _Answer(
            None if state is None else RankState.model_validate(state),
            None if counters is None else Progress.model_validate(counters),
            str(answer["last_line"]),
        )
    except (ValueError, IndexError, KeyError, TypeError) as error:
        # pydantic's ValidationError ends here too: the node may have another sparkserve.
        raise NodeError(
            host.name,
            f"status of {record.pythons[host.name]} is not understood, expected sparkserve "
            f"{__version__} there: {result.tail(2)[:300]!r}",
        ) from error


def _rank_status(
    rank: int, node: str, answers: Mapping[str, _Answer], errors: Mapping[str, NodeError]
) -> RankStatus:
    if node in errors:
        return RankStatus(node=node, rank=rank, state="unreachable", reason=errors[node].message)
    state, counters = answers[node].state, answers[node].progress
    if state is None:
        return RankStatus(node=node, rank=rank, state="absent")
    return RankStatus(
        node=node,
        rank=rank,
        state=state.state,
        reason=state.reason,
        origin_rank=state.origin_rank,
        notice=state.notice,
        pid=state.engine_pid,
        # Both by the node's own clock: ours may differ from it.
        uptime_s=round(max(0.0, counters.at_s - state.at_s), 1) if counters else None,
        progress=counters,
        last_line=answers[node].last_line,
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
