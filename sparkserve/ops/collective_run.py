"""Carrying out the all-reduce over all nodes: every rank at once, what rank 0 prints is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkserve.checks.gids import planned
from sparkserve.checks.scene import Scene
from sparkserve.errors import SparkserveError
from sparkserve.facts import runtime
from sparkserve.model.diagnosis import Bundle, Unread
from sparkserve.model.facts import Unobserved
from sparkserve.model.reading import Reading
from sparkserve.ops.bundle import plain_text
from sparkserve.ops.launch_gids import with_index
from sparkserve.planning.all_reduce import LIMIT_S, RankTest, all_reduce
from sparkserve.planning.places import locate
from sparkserve.transport.host import Host, map_hosts

WHAT = "all_reduce_perf by torch"
_SLACK_S = 15.0


def measure_all_reduce(scene: Scene, hosts: Mapping[str, Host]) -> Bundle:
    """Run the all-reduce on all nodes of a scene; the answers are readings.

    Returns:
        Nothing but the reason where it cannot be run: no profile, one node only, a node that was
        not reached or whose Python is not known, a node that serves.

    Raises:
        KeyboardInterrupt: at once; whoever closes the hosts ends what still runs on them.
    """
    reason = _obstacle(scene, hosts)
    if reason is not None:
        return _not_run(reason)
    try:
        places = [
            with_index(locate(node, scene.facts[node.name], scene.profile), planned(scene))
            for node in scene.cluster.nodes
        ]
    except SparkserveError as error:
        return _not_run(error.message)
    tests = {test.node: test for test in all_reduce(scene.profile, tuple(places))}
    group = map_hosts(
        [hosts[place.name] for place in places], lambda host: _run(host, tests[host.name])
    )
    lost = [f"{name}: {error.message}" for name, error in group.errors_by_node.items()]
    bundle = Bundle(readings=_readings([group[p.name] for p in places if p.name in group]))
    return bundle if not lost else bundle.model_copy(update={"unread": _not_run(lost[0]).unread})


def _obstacle(scene: Scene, hosts: Mapping[str, Host]) -> str | None:
    if scene.wish is None or scene.fleet is None:
        return "no profile says which Python and which network the ranks use: name one"
    nodes = scene.fleet.nodes
    if len(nodes) < 2:
        return "one node has nobody to exchange with"
    for node in nodes:
        if node.name not in hosts or node.name not in scene.facts:
            return f"{node.name} was not reached"
        holder = runtime.HOLDER.read(scene.facts[node.name])
        if isinstance(holder, Unobserved):
            return f"{node.name}: nobody can tell whether it serves: {holder.reason}"
        if holder.run_id is not None:
            return f"{node.name} serves run {holder.run_id}, which the test would slow down"
    return None


def _not_run(reason: str) -> Bundle:
    return Bundle(readings=(), unread=(Unread(label="all-reduce", what=WHAT, reason=reason),))


def _run(host: Host, test: RankTest) -> Reading:
    result = host.run(["sh", "-c", test.command], timeout_s=LIMIT_S + _SLACK_S)
    text = plain_text(result.stdout + result.stderr)
    if result.status != "exited":
        text += f"no answer within {LIMIT_S:.0f} s\n"
    return Reading(
        text=text, label=f"{test.node}: all-reduce", node=test.node, what=WHAT, rc=result.exit_code
    )


def _readings(answers: Sequence[Reading]) -> tuple[Reading, ...]:
    """What rank 0 printed; where a rank failed, that of the failed ranks instead."""
    failed = tuple(answer for answer in answers if answer.rc != 0)
    return failed or tuple(answers[:1])
