"""Carry out a plan: stage after stage, the steps of a stage in parallel, each step an event."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from sparkserve.errors import BusyError, NodeError, RemoteError, SparkserveError
from sparkserve.model import run_files
from sparkserve.model.plan import Plan, PutFile, RunCommand, Stage, StartGuard, Step
from sparkserve.ops.doors import Emitter, worst
from sparkserve.ops.node_command import node_command
from sparkserve.transport.host import Host, require

Waiter = Callable[[Step], None]
"""Carries out the steps that wait for the engine; raises NotReadyError."""

_GUARD_UP_POLLS = 300
_GUARD_POLL_S = 0.05


def execute(
    plan: Plan, hosts: Mapping[str, Host], emitter: Emitter, waiter: Waiter, *, command_s: float
) -> None:
    """Run all stages of a plan.

    Raises:
        SparkserveError: of the first failing stage; where several nodes failed in one stage the
            message names them all. Later stages are not begun.
    """
    for stage in plan.stages:
        emitter.emit("phase", stage.title, data={"steps": len(stage.steps)})
        run_stage(stage, hosts, emitter, waiter, command_s=command_s)


def run_stage(
    stage: Stage, hosts: Mapping[str, Host], emitter: Emitter, waiter: Waiter, *, command_s: float
) -> None:
    """Run one stage: what waits for the engine in order, everything else in parallel."""

    def carry_out(step: Step) -> SparkserveError | None:
        _tell(emitter, step, "begun")
        try:
            _do(step, hosts[step.node], waiter, command_s)
        except SparkserveError as error:
            _tell(emitter, step, "failed", error.message)
            return error
        _tell(emitter, step, "done")
        return None

    on_nodes = [s for s in stage.steps if isinstance(s.action, PutFile | RunCommand | StartGuard)]
    if on_nodes:
        by_node: dict[str, list[Step]] = {}
        for step in on_nodes:
            by_node.setdefault(step.node, []).append(step)
        with ThreadPoolExecutor(len(by_node), thread_name_prefix="step") as pool:
            outcomes = list(pool.map(lambda steps: _in_order(steps, carry_out), by_node.values()))
        _raise_first([error for error in outcomes if error is not None])
    for step in stage.steps:
        if step not in on_nodes and (error := carry_out(step)) is not None:
            raise error


def _in_order(
    steps: Sequence[Step], carry_out: Callable[[Step], SparkserveError | None]
) -> SparkserveError | None:
    for step in steps:
        error = carry_out(step)
        if error is not None:
            return error
    return None


def _raise_first(errors: Sequence[SparkserveError]) -> None:
    if not errors:
        return
    on_nodes = [error for error in errors if isinstance(error, NodeError)]
    raise worst(on_nodes) if len(on_nodes) == len(errors) else errors[0]


def _do(step: Step, host: Host, waiter: Waiter, command_s: float) -> None:
    limit_s = step.timeout_s or command_s
    match step.action:
        case PutFile(path=path, content=content, mode=mode):
            host.put(content.encode(), path, mode=mode)
        case RunCommand(argv=argv):
            require(host.run(argv, timeout_s=limit_s), step.title)
        case StartGuard() as start:
            start_guard(host, start, timeout_s=limit_s)
        case _:
            waiter(step)


def start_guard(host: Host, start: StartGuard, *, timeout_s: float) -> None:
    """Start a guard that outlives the connection, and wait for its first word.

    Raises:
        BusyError: the node serves another run.
        RemoteError: the guard did not come up; the message holds what it printed.
    """
    result = require(
        host.script(_start_script(start), timeout_s=timeout_s),
        "the guard did not start",
        hint="sparkserve logs --guard",
    )
    try:
        state = json.loads(result.stdout.strip().splitlines()[-1])
        name, reason = str(state["state"]), str(state.get("reason", ""))
    except (IndexError, ValueError, KeyError) as error:
        raise RemoteError(
            host.name, f"the guard's state is not readable: {result.tail(3)}", result=result
        ) from error
    if name == "refused":
        raise BusyError(reason, hint="sparkserve status; sparkserve stop")


def _start_script(start: StartGuard) -> str:
    """Shell that starts the guard as a systemd unit, or in a session of its own.

    A user without a lingering systemd instance gets the session: asking for root just to
    keep a process alive would be more privilege than the task needs.
    """
    guard = shlex.join(node_command(start.python, "guard", "--spec", start.spec_path))
    unit = (
        f"--quiet --collect --unit={shlex.quote(start.unit)} "
        "--property=KillMode=mixed --property=TimeoutStopSec=20 "
        '--property="StandardOutput=append:$run/guard.log" '
        '--property="StandardError=append:$run/guard.log" --working-directory="$run"'
    )
    return f"""\
run=$(dirname {shlex.quote(start.spec_path)})
cd "$run" || exit 1
umask 077
me=$(id -un)
pid=
if [ -d /run/systemd/system ] && [ "$(id -u)" = 0 ]; then
  systemd-run {unit} {guard} || exit 1
elif [ -d /run/systemd/system ] && [ -S "/run/user/$(id -u)/bus" ] &&
     [ "$(loginctl show-user "$me" --property=Linger --value 2>/dev/null)" = yes ]; then
  XDG_RUNTIME_DIR=/run/user/$(id -u) systemd-run --user {unit} {guard} || exit 1
else
  setsid {guard} </dev/null >>"$run/{run_files.GUARD_LOG}" 2>&1 &
  pid=$!
fi
i=0
while [ $i -lt {_GUARD_UP_POLLS} ]; do
  if grep -q '"state":"\\(running\\|refused\\|failed\\|stop\\)' "$run/{run_files.STATE}" 2>/dev/null
  then cat "$run/{run_files.STATE}"; exit 0; fi
  [ -z "$pid" ] || kill -0 "$pid" 2>/dev/null || break
  sleep {_GUARD_POLL_S}
  i=$((i+1))
done
[ -s "$run/{run_files.STATE}" ] && {{ cat "$run/{run_files.STATE}"; exit 0; }}
tail -n 15 "$run/{run_files.GUARD_LOG}" >&2
exit 1
"""


def _tell(emitter: Emitter, step: Step, state: str, message: str = "") -> None:
    data = {"id": step.id, "state": state, "error": message, "effect": step.effect}
    emitter.emit("step", step.title, node=step.node, data=data)
