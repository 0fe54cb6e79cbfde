"""What must be true of every node before an engine is started there."""

from __future__ import annotations

from collections.abc import Iterator

from sparkserve import __version__
from sparkserve.checks.check import Check, Judgement, passed, unknown
from sparkserve.checks.scene import Scene
from sparkserve.checks.shards import ENGRAM
from sparkserve.facts import checkpoint, host, memory, network, runtime, storage
from sparkserve.facts.checkpoint import CheckpointFacts, CheckpointFile
from sparkserve.facts.runtime import RuntimeFacts
from sparkserve.model.facts import Unobserved
from sparkserve.model.profile import EngineSettings
from sparkserve.units import GIB, MIB, format_bytes

_RUN_BYTES = 64 * MIB
"""Logs, specs and reports of one run; a full disk stops the engine's log, not only ours."""
_SKEW_LIMIT_S = 1.0


def _idle(scene: Scene) -> Iterator[Judgement]:
    for _, node, facts in scene.nodes():
        holder = runtime.HOLDER.read(facts)
        if isinstance(holder, Unobserved):
            yield unknown(node, holder)
        elif holder.run_id is not None:
            yield Judgement(
                node,
                "fail",
                observed=f"serves run {holder.run_id} (guard pid {holder.guard_pid})",
                expected="no run on this node",
                why="two engines on one Spark share one pool of memory and the same ports",
                fix=f"sparkserve stop {holder.run_id}",
            )
        else:
            yield passed(node, "idle")


def _runtime(scene: Scene) -> Iterator[Judgement]:
    found: dict[str, str] = {}
    for _, node, facts in scene.nodes():
        python = runtime.PYTHON.read(facts)
        if isinstance(python, Unobserved):
            yield Judgement(
                node,
                "fail",
                observed=python.reason,
                expected=f"a Python with sparkserve at {scene.profile.engine.python}",
                why="the guard and the engine run with the node's own interpreter",
                fix="set engine.python in the profile, or install sparkserve on the node",
            )
        else:
            found[node] = python.sglang or "none"
            yield _judge_runtime(scene.profile.engine, node, python)
    if len(set(found.values())) > 1:
        yield Judgement(
            None,
            "fail",
            observed=", ".join(f"{node} {version}" for node, version in found.items()),
            expected="the same sglang on every node",
            why="ranks of different builds hang in the first collective or answer garbage",
        )


def _judge_runtime(engine: EngineSettings, node: str, python: RuntimeFacts) -> Judgement:
    packages = {"sparkserve": python.sparkserve, "sglang": python.sglang}
    if engine.kind == "light":
        del packages["sglang"]
    missing = [name for name, version in packages.items() if version is None]
    if missing:
        return Judgement(
            node,
            "fail",
            observed=f"{python.python} has no {' and no '.join(missing)}",
            expected=f"{', '.join(missing)} installed there",
            fix=f"{python.python} -m pip install {' '.join(missing)}",
        )
    if python.sparkserve != __version__:
        return Judgement(
            node,
            "fail",
            observed=f"sparkserve {python.sparkserve}",
            expected=f"sparkserve {__version__}, as here",
            why="the node would not understand what it is told",
            fix=f"{python.python} -m pip install sparkserve=={__version__}",
        )
    if engine.kind == "sglang" and engine.version not in (None, python.sglang):
        return Judgement(
            node,
            "fail",
            observed=f"sglang {python.sglang}",
            expected=f"sglang {engine.version}",
            why="the profile was qualified with this version",
            fix=f"{python.python} -m pip install sglang=={engine.version}",
        )
    return passed(node, f"sglang {python.sglang}, Python {python.python_version}")


def _weights(scene: Scene) -> Iterator[Judgement]:
    if scene.profile.engine.kind == "light":
        # The simulated engine has no model to load.
        return
    for _, node, facts in scene.nodes():
        files = checkpoint.FILES.read(facts)
        if isinstance(files, Unobserved):
            yield unknown(node, files)
            continue
        problems = list(_weight_problems(files))
        if problems:
            yield Judgement(
                node,
                "fail",
                observed="; ".join(problems[:5]),
                expected=f"a complete checkpoint in {files.path}",
                why="a missing or short shard fails late in the load, or wipes the model cache",
                fix=_model_fix(scene),
            )
        else:
            size_bytes = sum(file.size_bytes for file in files.files or ())
            yield passed(node, f"{files.path}: {format_bytes(size_bytes)}")


def _weight_problems(facts: CheckpointFacts) -> Iterator[str]:
    if facts.files is None:
        yield f"no directory {facts.path}"
        return
    by_name = {file.name: file for file in facts.files}
    if by_name.get("config.json") is None or by_name["config.json"].size_bytes == 0:
        yield f"{facts.path}/config.json is missing or empty"
    for name in facts.indexed:
        if name not in by_name:
            yield f"{facts.path}/{name} is missing"
    shards = [file for file in facts.files if file.name.endswith(".safetensors")]
    if not shards:
        yield f"no *.safetensors in {facts.path}"
    yield from (problem for file in shards if (problem := _shard_problem(facts.path, file)))


def _shard_problem(path: str, file: CheckpointFile) -> str | None:
    if file.declares_bytes is None:
        return f"{path}/{file.name} has no readable safetensors header"
    if file.declares_bytes != file.size_bytes:
        return (
            f"{path}/{file.name} has {file.size_bytes} bytes, "
            f"its header declares {file.declares_bytes}"
        )
    return None


def _model_fix(scene: Scene) -> str:
    if scene.profile.model.obtain:
        return scene.profile.model.obtain
    if scene.profile.model.repo:
        return f"download {scene.profile.model.repo}@{scene.profile.model.revision} on the node"
    return "copy the checkpoint to every node, or set model.path"


def _ports(scene: Scene) -> Iterator[Judgement]:
    profile = scene.profile
    for rank, node, facts in scene.nodes():
        ports = network.PORTS.read(facts)
        if isinstance(ports, Unobserved):
            yield unknown(node, ports)
            continue
        holder = runtime.HOLDER.read(facts)
        if not isinstance(holder, Unobserved) and holder.run_id is not None:
            # Its ports are taken because it serves; NODE.IDLE says so once.
            yield Judgement(node, "skipped", observed=f"run {holder.run_id} holds the node")
            continue
        wanted = {"serving.port": profile.serving.port}
        if rank == 0 and len(scene.cluster.nodes) > 1:
            wanted["fabric.dist_port"] = profile.fabric.dist_port
            wanted["fabric.guard_port"] = profile.fabric.guard_port
        taken = {key: port for key, port in wanted.items() if port in ports.listening}
        if taken:
            yield Judgement(
                node,
                "fail",
                observed=", ".join(f"port {port} ({key}) is in use" for key, port in taken.items()),
                expected="free ports",
                why="the engine would load for minutes and then fail to bind",
                fix=f"on {node}: "
                + "; ".join(f"sudo ss -ltnp 'sport = :{port}'" for port in taken.values()),
            )
        else:
            yield passed(node, f"free: {', '.join(str(port) for port in wanted.values())}")


def _memory(scene: Scene) -> Iterator[Judgement]:
    need_bytes = round(scene.profile.limits.start_memory_gib * GIB)
    for _, node, facts in scene.nodes():
        observed = memory.MEMINFO.read(facts)
        if isinstance(observed, Unobserved):
            yield unknown(node, observed)
        elif observed.available_bytes < need_bytes:
            yield Judgement(
                node,
                "fail",
                observed=f"MemAvailable {format_bytes(observed.available_bytes)}",
                expected=f"at least {format_bytes(need_bytes)}",
                why="GPU memory is MemAvailable; a start below the need locks the node up",
                fix="stop what else runs there, then look again",
            )
        else:
            yield passed(node, f"{format_bytes(observed.available_bytes)} available")


def _space(scene: Scene) -> Iterator[Judgement]:
    for _, node, facts in scene.nodes():
        space = storage.ROOT_SPACE.read(facts)
        if isinstance(space, Unobserved):
            yield unknown(node, space)
        elif not space.writable:
            yield Judgement(
                node,
                "fail",
                observed=f"{space.path} is not writable",
                expected="a root that the SSH user may write",
                fix="set root in the cluster file",
            )
        elif space.free_bytes < _RUN_BYTES:
            yield Judgement(
                node,
                "fail",
                observed=f"{format_bytes(space.free_bytes)} free on {space.path}",
                expected=f"at least {format_bytes(_RUN_BYTES)}",
                why="specs and logs of the run are written there",
                fix=f"df -h {space.path}",
            )
        else:
            yield passed(node, f"{format_bytes(space.free_bytes)} free")


def _clock(scene: Scene) -> Iterator[Judgement]:
    # Facts of all nodes are asked at the same moment; the round trip bounds what we can know.
    times = {}
    for _, node, facts in scene.nodes():
        identity = host.IDENTITY.read(facts)
        if isinstance(identity, Unobserved):
            yield unknown(node, identity)
        else:
            times[node] = identity.time_s - facts.collected_at.timestamp(), facts.elapsed_s
    if not times:
        return
    # With three clocks or more the odd one is known; two can only be held against each other.
    usual = sorted(times.values())[len(times) // 2] if len(times) > 2 else None
    reference, its_round_trip_s = usual or next(iter(times.values()))
    whose = "most nodes'" if usual else "the head's"
    for node, (offset_s, round_trip_s) in times.items():
        skew_s = abs(offset_s - reference)
        if skew_s > _SKEW_LIMIT_S + max(round_trip_s, its_round_trip_s):
            yield Judgement(
                node,
                "fail",
                observed=f"clock differs by {skew_s:.1f} s from {whose}",
                expected=f"at most {_SKEW_LIMIT_S:.0f} s",
            )
        else:
            yield passed(node)


LAUNCH: tuple[Check, ...] = (
    Check(
        "NODE.IDLE", "ENG_ALREADY_SERVING", "node serves no other run", ("launch",),
        "error", "config", (runtime.HOLDER,), _idle, profile_free=True,
        why="two engines on one Spark share one pool of memory and the same ports",
        fix="sparkserve stop, or take the run up: sparkserve launch --ensure",
        symptom="A launch is refused because the nodes serve already.",
    ),
    Check(
        "RUNTIME.VERSION", "ENG_LIB_SKEW", "engine runtime is there and the same", ("launch",),
        "error", "hardware", (runtime.PYTHON,), _runtime,
        why="ranks with different engines disagree about shapes, or hang in the first collective",
        fix="install the same sparkserve and SGLang on every node, at the path of engine.python",
        symptom="One rank fails at import or at the first collective, or answers with nonsense.",
    ),
    Check(
        "WEIGHTS.COMPLETE", "STO_MISSING_SHARD", "checkpoint is complete", ("launch",),
        "error", "hardware", (checkpoint.FILES,), _weights,
        why="an engine notices a missing or cut file only after minutes of loading",
        fix="copy or download the named files again",
        symptom="A rank dies while it loads weights, or rank 0 waits for it for ever.",
    ),
    *ENGRAM,
    Check(
        "PORT.FREE", "ENG_PORT_BUSY", "ports are free", ("launch",),
        "error", "config", (network.PORTS,), _ports,
        why="the engine binds its ports after minutes of loading and dies then",
        fix="sudo ss -ltnp shows who listens; end it, or --set another port",
        symptom="`Address already in use` at the end of a long start.",
    ),
    Check(
        "MEM.NEED", "MEM_NOT_RECLAIMED_YET", "memory is free", ("launch",),
        "error", "memory", (memory.MEMINFO,), _memory,
        why="the weights and the cache must fit into what is available now",
        fix="end what holds memory, then wait some seconds: the driver gives it back late",
        symptom="The engine dies in its first CUDA call or while it makes the KV cache.",
    ),
    Check(
        "DISK.FREE", "STO_NO_SPACE", "root has space", ("launch",),
        "error", "hardware", (storage.ROOT_SPACE,), _space, profile_free=True,
        why="specs and logs of the run are written there; a full disk stops the engine's log",
        fix="df -h shows what is full; or set another root in the cluster file",
        symptom="`No space left on device` in the middle of a run.",
    ),
    Check(
        "HOST.TIME", "HOST_CLOCK_SKEW", "clocks agree", ("doctor", "launch"),
        "warning", "hardware", (host.IDENTITY,), _clock, profile_free=True,
        why="logs of the ranks cannot be put in order",
        fix="timedatectl set-ntp true",
        symptom="A worker's log shows the error before the cause on the head.",
    ),
)  # fmt: skip
"""In the order in which they are shown."""
