"""``sparkserve chat``: talk to the endpoint of a run, wherever it listens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparkserve.endpoint import ChatDelta, Endpoint
from sparkserve.errors import ConfigError
from sparkserve.model.cluster import Cluster
from sparkserve.ops.doors import Doors, worst
from sparkserve.ops.keyfile import read_api_key
from sparkserve.ops.run_choice import NEWEST, RunChoice, choose


@dataclass(frozen=True)
class ChatRequest:
    """What to ask."""

    messages: Sequence[dict[str, str]]
    choice: RunChoice = NEWEST
    max_tokens: int = 512
    temperature: float | None = None
    timeout_s: float = 600.0


def run(request: ChatRequest, doors: Doors) -> Iterator[ChatDelta]:
    """The pieces of the answer as they come; the last one carries the usage.

    Raises:
        ConfigError: no such run, or it does not serve.
        NodeError: the head node cannot be reached.
        EndpointError: no answer, or an error in place of one.
    """
    record = choose(request.choice).record()
    if record.outcome not in ("serving", "launching"):
        raise ConfigError(
            f"run {record.run_id} is {record.outcome}, expected one that serves",
            hint="sparkserve launch",
        )
    key = read_api_key(record.profile.serving.api_key_file)
    head = record.cluster.nodes[0]
    group = doors.connect(
        Cluster(
            name=record.cluster.name,
            nodes=(head,),
            root=record.cluster.root,
            identity_file=record.cluster.identity_file,
        )
    )
    if group.errors_by_node:
        raise worst(list(group.errors_by_node.values()))
    host = group[head.name]
    try:
        forward = host.forward(record.profile.serving.port)
        try:
            yield from Endpoint(f"http://127.0.0.1:{forward.port}/v1", api_key=key).chat_stream(
                request.messages,
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                timeout_s=request.timeout_s,
            )
        finally:
            forward.close()
    finally:
        host.close()
