"""Settings of memory that harm a Spark: restart loops, caps that cap nothing, pools too small."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sparkserve.checks.check import Check, Judgement, Stage, passed
from sparkserve.checks.containers import engines
from sparkserve.checks.scene import Scene, evidence
from sparkserve.checks.wish import every, is_on, is_written, said, size_bytes, wishes
from sparkserve.facts.rendered import SharedMemory
from sparkserve.facts.wanted import Wanted, normal, setting, whole_number
from sparkserve.units import GIB, format_bytes

_SHM_LIMIT_BYTES = 16 * GIB
_SHM_USED_BYTES = 4 * GIB
"""Source of both: public case MEM_SHM_HUGE."""
_LEAST_BATCHED_TOKENS = 8224
"""Below it the compressed-MLA workspace is locked too small; case ENG_LOCKED_WORKSPACE."""
_KV_BYTES = ("kv_cache_memory_bytes", "kv_cache_memory", "kv_cache_bytes", "kv_cache_size_bytes")
_STAGES: tuple[Stage, ...] = ("profile", "launch", "doctor")
_ENGINE_WORDS = re.compile(
    r"sglang|vllm|dsv4|deepseek|engine|llm|rank|worker|serve|trtllm|spark", re.IGNORECASE
)


def _restart(scene: Scene) -> Iterator[Judgement]:
    for place, wanted, proof in wishes(scene):
        for key, value in (wanted.keys or {}).items():
            owner = _restart_owner(key)
            if owner is None or not _is_engine(owner, wanted):
                continue
            name, retries = _policy(value, key, wanted)
            wrong = name in ("always", "unless-stopped", "any") or (
                name == "on-failure" and (retries is None or retries > 1)
            )
            if not wrong:
                yield passed(place, f"{key}: {value}")
                continue
            yield Judgement(
                place, "fail", observed=f"{key}: {value}",
                expected="no restart, or on-failure:1",
                fix=f'{key}: "no"',
                severity="warning" if retries is not None else None,
                evidence=proof,
            )  # fmt: skip


def _restart_owner(key: str) -> str | None:
    """Service that a restart policy belongs to, empty for the only one; None = another key."""
    found = re.fullmatch(
        r"(?:services\.(?P<name>.+?)\.)?(?:.*\.)?restart(?:_policy)?(?:\.(?:name|condition))?",
        normal(key),
    )
    return None if found is None else found["name"] or ""


def _is_engine(owner: str, wanted: Wanted) -> bool:
    if not owner:
        return True
    prefix = f"services.{owner}."
    own = {k: v for k, v in (wanted.keys or {}).items() if normal(k).startswith(prefix)}
    about = [owner, *(str(v) for k, v in own.items() if re.search(r"image|command|name", k))]
    return any(_ENGINE_WORDS.search(text) for text in about)


def _policy(value: Any, key: str, wanted: Wanted) -> tuple[str, int | None]:
    name, _, count = str(value).strip().lower().partition(":")
    retries = whole_number(count) if count else None
    if retries is None:
        parent = normal(key).rpartition(".")[0]
        told = setting(wanted, f"{parent}.max_attempts", f"{parent}.maximumretrycount")
        retries = whole_number(told.value) if told else None
    return name, retries if name == "on-failure" else None


RESTART = Check(
    id="PROFILE.RESTART_POLICY", code="MEM_RESTART_LOOP",
    title="The engine's container is not restarted for ever",
    stages=_STAGES, severity="error", fault_class="config", needs=(Wanted,), judge=_restart,
    why="a start that fails for memory is tried again before the memory is back, fills the swap "
    "and takes the whole node down",
    fix='restart: "no"; sparkserve starts an engine once and says why it ended',
    symptom="the node stops answering SSH some minutes after a failed start; dozens of restarts in "
    "docker ps",
    text_only="a setting of neighbours' recipes; sparkserve's own profile has no such key",
)  # fmt: skip


def _pool(scene: Scene) -> Iterator[Judgement]:
    for place, wanted, proof in wishes(scene):
        context, pool = wanted.context_tokens, wanted.kv_tokens
        if not context or not pool or pool < 0:
            continue
        if pool < context:
            yield Judgement(
                place, "fail",
                observed=f"pool {pool} < context {context}: no whole context fits",
                expected=f"at least {context} tokens, or a context of at most {pool}",
                fix=f"sparkserve launch --set context.kv_tokens={context}",
                evidence=proof,
            )  # fmt: skip
        else:
            yield passed(place, f"pool {pool} tokens, context {context}")


POOL = Check(
    id="PROFILE.KV_POOL", code="MEM_KV_POOL_SMALL",
    title="The KV pool holds one whole context",
    stages=_STAGES, severity="error", fault_class="config", needs=(Wanted,), judge=_pool,
    why="a request longer than the pool can never be served, whatever the context length says",
    fix="raise the pool (context.kv_tokens) or shorten the context (context.length_tokens)",
    symptom="long prompts are refused or abort with `prompt is too long` although the context "
    "length allows them",
)  # fmt: skip


def _queue(scene: Scene) -> Iterator[Judgement]:
    for place, wanted, proof in wishes(scene):
        context, pool, requests = (
            wanted.context_tokens, wanted.kv_tokens, wanted.max_running_requests
        )  # fmt: skip
        if not context or not pool or not requests or pool < context:
            continue
        need = requests * context
        if need <= pool:
            yield passed(place, f"{requests} x {context} = {need} <= {pool} tokens")
            continue
        yield Judgement(
            place, "fail", observed=f"{requests} x {context} = {need} > {pool} tokens",
            expected=f"at most {pool // context} requests of full length at once, or {need} tokens",
            fix=f"sparkserve launch --set context.max_running_requests={pool // context}",
            evidence=proof,
        )  # fmt: skip


QUEUE = Check(
    id="PROFILE.KV_QUEUE", code="MEM_KV_QUEUE",
    title="All requests fit at full context without queueing",
    stages=("profile",), severity="info", fault_class="config", needs=(Wanted,), judge=_queue,
    why="requests of full length wait for one another; short ones are not touched",
    fix="fewer requests at once, a shorter context, or a larger pool",
    symptom="some long requests wait long for their first token while others run",
)  # fmt: skip


def _shm(scene: Scene) -> Iterator[Judgement]:
    for told in said(scene, "shm_size", "shm_size_bytes", "shm", "shmsize"):
        size = size_bytes(told.value)
        if size is None:
            continue
        if size > _SHM_LIMIT_BYTES:
            yield Judgement(
                told.node, "fail",
                observed=f"{told.key}: {told.value} = {format_bytes(size)}",
                expected=f"at most {format_bytes(_SHM_LIMIT_BYTES)}",
                evidence=told.evidence,
            )  # fmt: skip
        else:
            yield passed(told.node, f"{told.key} {format_bytes(size)}")
    for place, name, container in engines(scene):
        if container.shm_bytes is None:
            continue
        if container.shm_bytes > _SHM_LIMIT_BYTES:
            yield Judgement(
                place, "fail",
                observed=f"{name}: /dev/shm of {format_bytes(container.shm_bytes)}",
                expected=f"at most {format_bytes(_SHM_LIMIT_BYTES)}",
                fix=f"start {name} with --shm-size 16g",
            )  # fmt: skip
        else:
            yield passed(place, f"{name}: /dev/shm of {format_bytes(container.shm_bytes)}")
    for place, shared, reading in scene.seen(SharedMemory):
        if shared.used_bytes > _SHM_USED_BYTES:
            yield Judgement(
                place, "fail", observed=f"/dev/shm holds {format_bytes(shared.used_bytes)}",
                expected=f"at most {format_bytes(_SHM_USED_BYTES)}",
                fix="look at what it holds: ls -lS /dev/shm in the container",
                evidence=evidence([reading]),
            )  # fmt: skip
        else:
            yield passed(place, f"/dev/shm holds {format_bytes(shared.used_bytes)}")


SHM = Check(
    id="PROFILE.SHM_SIZE", code="MEM_SHM_HUGE",
    title="Shared memory is not sized for a data centre",
    stages=("profile", "doctor"), severity="warning", fault_class="memory",
    needs=(Wanted, SharedMemory), judge=_shm,
    why="hypothesis, from a single report: what is written to /dev/shm is RAM, and on a Spark RAM "
    "is GPU memory; a large limit lets it grow unseen",
    fix="shm_size: 16g",
    symptom="memory shrinks while serving although the engine's own figures stand still",
    text_only="a setting of neighbours' recipes; sparkserve's own profile has no such key",
)  # fmt: skip


def _no_cap(scene: Scene) -> Iterator[Judgement]:
    for place, wanted, proof in wishes(scene):
        guarded = _has_guard(wanted)
        caps = [
            (key, value) for key, value in (wanted.keys or {}).items()
            if re.fullmatch(r"(?:.*\.)?mem_limit|(?:.*\.)?limits\.memory|memory|memory_limit",
                            normal(key)) and size_bytes(value)
        ]  # fmt: skip
        fixed = [(key, value) for key, value in every(wanted, *_KV_BYTES) if size_bytes(value)]
        if guarded and (caps or fixed):
            yield passed(place, "a memory guard is on")
            continue
        for key, value in caps:
            yield Judgement(
                place, "fail",
                observed=f"{key}: {value} and no memory guard: {key} does not cap the GPU",
                expected="a guard on MemAvailable, and the cap in the engine itself",
                fix="limits.memory_floor_gib = 2 in the profile; cap the engine by "
                "context.kv_tokens or context.mem_fraction_static",
                evidence=proof,
            )  # fmt: skip
        for key, value in fixed:
            yield Judgement(
                place, "fail",
                observed=f"{key}: {value} = {format_bytes(size_bytes(value) or 0)} fixed KV bytes "
                "with the guard off",
                expected="KV bytes within the memory plan, and a guard on MemAvailable",
                why="a fixed size of the KV cache makes the engine skip its own check of free "
                "memory, so nothing stops it",
                fix="sparkserve plan; limits.memory_floor_gib = 2 in the profile",
                evidence=proof,
            )  # fmt: skip


def _has_guard(wanted: Wanted) -> bool:
    for key, value in (wanted.keys or {}).items():
        plain = normal(key)
        if re.fullmatch(r"(?:.*\.)?(?:(?:mem(?:ory)?|oom)_?)?(?:guard|watchdog)(?:\.\w+)?", plain):
            if is_on(value):
                return True
        elif plain.rpartition(".")[2] == "memory_floor_gib" and is_on(value):
            return whole_number(value) != 0
    return False


NO_CAP = Check(
    id="PROFILE.MEMORY_CAP", code="MEM_CGROUP_NO_CAP",
    title="What is meant to cap memory does cap it",
    stages=("profile", "doctor"), severity="warning", fault_class="memory",
    needs=(Wanted,), judge=_no_cap,
    why="memory that the GPU takes is not charged to the container's cgroup on a GB10",
    fix="cap the engine itself and keep a guard on MemAvailable (limits.memory_floor_gib)",
    symptom="a container with a memory limit still takes the whole node",
    text_only="a setting of neighbours' recipes; sparkserve's own profile has no such key",
)  # fmt: skip


def _workspace(scene: Scene) -> Iterator[Judgement]:
    for place, wanted, proof in wishes(scene):
        batched = setting(wanted, "max_num_batched_tokens", "max_batched_tokens")
        tokens = whole_number(batched.value) if batched else None
        backends = every(
            wanted,
            "attention_backend",
            "mla_backend",
            "backend",
            "decode_backend",
            "vllm_attention_backend",
            "decode_attention_backend",
        )
        b12x = next((f"{k}: {v}" for k, v in backends if "b12x" in str(v).lower()), None)
        if batched is None or tokens is None or b12x is None:
            continue
        if tokens >= _LEAST_BATCHED_TOKENS:
            yield passed(place, f"{batched.key} {tokens}")
            continue
        fixed = next((key for key, value in every(wanted, *_KV_BYTES) if is_written(value)), None)
        also = f", and {fixed} is fixed (a report of the whole host out of memory)" if fixed else ""
        yield Judgement(
            place, "fail", observed=f"{batched.key}: {tokens} with {b12x}{also}",
            expected=f"at least {_LEAST_BATCHED_TOKENS}",
            fix=f"{batched.key}: {_LEAST_BATCHED_TOKENS}",
            evidence=proof,
        )  # fmt: skip


WORKSPACE = Check(
    id="PROFILE.LOCKED_WORKSPACE", code="ENG_LOCKED_WORKSPACE",
    title="The MLA workspace is locked large enough",
    stages=_STAGES, severity="error", fault_class="config", needs=(Wanted,), judge=_workspace,
    why="the token budget of one step sizes the compressed-MLA workspace, which is locked after "
    "the warm-up: a smaller one saves memory at the start and ends the engine at a long prompt",
    fix="max_num_batched_tokens: 8224",
    symptom="`Workspace is locked but allocation ... requires` ends the engine at the first long "
    "prompt",
)  # fmt: skip

CHECKS: tuple[Check, ...] = (RESTART, POOL, QUEUE, SHM, NO_CAP, WORKSPACE)
