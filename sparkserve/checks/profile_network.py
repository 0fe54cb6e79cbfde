"""Settings of the network that cannot work: blanks, a ring without its patch, addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.scene import Scene, evidence
from sparkserve.checks.wish import every, is_on, is_v41, is_written, wish, wishes
from sparkserve.facts.environment import Environment
from sparkserve.facts.wanted import Wanted, normal, setting

_STRICT = re.compile(r"(?:NCCL|GLOO|SGLANG|TP_SOCKET)_\w+")
_GID = ("nccl_ib_gid_index", "ib_gid_index", "gid_index", "roce_gid_index")


def _blank(scene: Scene) -> Iterator[Judgement]:
    for place, known, reading in scene.seen(Environment):
        names = [name for name in known.variables if _STRICT.fullmatch(name)]
        blank = [name for name in names if not known.variables[name].strip()]
        if blank:
            yield _is_blank(place, blank, evidence([reading]))
        elif names:
            yield passed(place, f"{len(names)} NCCL, GLOO and SGLANG variables, none of them blank")
    for place, wanted, proof in wishes(scene):
        keys = wanted.keys or {}
        blank = [
            key for key, value in keys.items()
            if isinstance(value, str) and not value.strip() and _must_not_be_blank(key)
        ]  # fmt: skip
        if blank:
            yield _is_blank(place, blank, proof)


def _must_not_be_blank(key: str) -> bool:
    last = normal(key).rpartition(".")[2]
    return last in _GID or _STRICT.fullmatch(last.upper()) is not None


def _is_blank(place: str | None, names: list[str], proof: tuple[str, ...]) -> Judgement:
    gid = any(normal(name).rpartition(".")[2] in _GID for name in names)
    reads = "; NCCL reads a blank NCCL_IB_GID_INDEX as index 0, a RoCE v1 GID" if gid else ""
    return Judgement(
        place, "fail",
        observed=f"blank: {', '.join(f'{name}=' for name in names)}",
        expected="a value, or no such variable at all",
        why=f"a variable that is set to nothing is not unset{reads}",
        fix=f"leave {', '.join(names)} out of the environment, or give a value",
        evidence=proof,
    )  # fmt: skip


BLANK = Check(
    id="PROFILE.BLANK_VARIABLE", code="NET_GID_EMPTY_STRING",
    title="No network variable is set to nothing",
    stages=("profile", "launch", "doctor"), severity="error", fault_class="config",
    needs=(Environment, Wanted), judge=_blank,
    why="a variable that is set to nothing is not unset: NCCL parses the blank as 0",
    fix="leave the variable out of the environment, or give it a value",
    symptom="`unhandled system error` or `invalid usage` in ncclCommInitRank although no GID index "
    "seems to be chosen",
)  # fmt: skip


def _ring(scene: Scene) -> Iterator[Judgement]:
    for place, wanted, proof in wishes(scene):
        nodes = wanted.nodes or wanted.tp
        if "ring" not in (wanted.topology or "").lower() or nodes is None or nodes < 4:
            continue
        patch = setting(wanted, "switchless_patch", "nccl_switchless_patch",
                        "nccl_switchless_ring_only")  # fmt: skip
        hashes = [value for key, value in (wanted.keys or {}).items() if _is_library_hash(key)]
        on = patch is not None and is_on(patch.value)
        if on and any(is_written(value) for value in hashes):
            yield passed(place, f"ring of {nodes} with a patched NCCL whose hash is given")
            continue
        told = f"{patch.key}: {str(patch.value).lower()}" if patch else "no switchless_patch"
        yield Judgement(
            place, "fail",
            observed=f"topology ring over {nodes} nodes, {told}"
            + (", no hash of the patched library" if on else ""),
            expected="nccl.switchless_patch: true and the patched library's sha256, or a switch",
            why="stock NCCL also connects trees, whose far peers no cable of a ring reaches",
            fix="mount a patched NCCL with NCCL_SWITCHLESS_RING_ONLY=1 on every rank and pin its "
            "sha256, or wire the nodes through a switch, or use at most 3 nodes",
            severity="warning" if on and _by_variable(patch) else None,
            evidence=proof,
        )  # fmt: skip


def _by_variable(patch: object) -> bool:
    return normal(getattr(patch, "key", "")).endswith("nccl_switchless_ring_only")


def _is_library_hash(key: str) -> bool:
    plain = normal(key)
    names = re.search(r"nccl|lib|patch", plain) is not None
    return names and re.search(r"sha256|hash|digest", plain) is not None


RING = Check(
    id="PROFILE.RING_PATCH", code="NET_RING_TREE",
    title="A ring of four or more has an NCCL that can do without trees",
    stages=("profile", "launch", "doctor"), severity="error", fault_class="config",
    needs=(Wanted,), judge=_ring,
    why="stock NCCL sets up tree transports between nodes that a ring does not connect",
    fix="a patched NCCL with NCCL_SWITCHLESS_RING_ONLY=1 on every rank, or a switch",
    symptom="`NCCL error: unhandled system error` in ncclTransportTreeConnect after "
    "`Connected all rings`",
)  # fmt: skip


def _host_ip(scene: Scene) -> Iterator[Judgement]:
    known = [(place, env, reading) for place, env, reading in scene.seen(Environment)
             if env.origin in ("container", "rendered")]  # fmt: skip
    wanted = wish(scene)
    subnet = _fabric_subnet(scene, wanted)
    with_ip = {place for place, env, _ in known if env.variables.get("SGLANG_HOST_IP")}
    several = (wanted.nodes or wanted.tp or 1) > 1
    for place, env, reading in known:
        address = env.variables.get("SGLANG_HOST_IP", "")
        sglang = any(name.startswith("SGLANG_") for name in env.variables)
        if address:
            problem = _unfit(address, subnet, several=several or len(with_ip) > 1)
        elif with_ip or (several and sglang):
            problem = "SGLANG_HOST_IP is not set"
        else:
            continue
        if problem is None:
            yield passed(place, f"SGLANG_HOST_IP={address}")
            continue
        yield Judgement(
            place, "fail", observed=problem,
            expected=f"an address of this node in {subnet or 'the fabric network'}",
            fix="set SGLANG_HOST_IP to this node's fabric address: sparkserve does that where the "
            "cluster file gives fabric_address",
            evidence=evidence([reading]),
        )  # fmt: skip


def _fabric_subnet(scene: Scene, wanted: Wanted) -> ipaddress.IPv4Network | None:
    texts = [wanted.fabric_subnet] if wanted.fabric_subnet else []
    if scene.fleet is not None and not texts:
        own = [node.fabric_address for node in scene.fleet.nodes if node.fabric_address]
        texts = [f"{own[0]}/24"] if own else []
    for text in texts:
        try:
            return ipaddress.IPv4Network(text, strict=False)
        except ValueError:
            continue
    return None


def _unfit(address: str, subnet: ipaddress.IPv4Network | None, *, several: bool) -> str | None:
    try:
        told = ipaddress.ip_address(address)
    except ValueError:
        return f"SGLANG_HOST_IP={address} is no address"
    if several and (told.is_loopback or told.is_unspecified or told.is_link_local):
        return f"SGLANG_HOST_IP={address} is reachable from this node alone"
    if subnet is not None and isinstance(told, ipaddress.IPv4Address) and told not in subnet:
        return f"SGLANG_HOST_IP={address} is outside {subnet}"
    return None


HOST_IP = Check(
    id="PROFILE.HOST_IP", code="NET_SGLANG_HOST_IP",
    title="Every rank advertises an address of the fabric",
    stages=("profile", "launch", "doctor"), severity="error", fault_class="config",
    needs=(Environment,), judge=_host_ip,
    why="without it SGLang advertises the address of the default route, perhaps the Wi-Fi's, and "
    "the other ranks wait for it",
    fix="set SGLANG_HOST_IP of every rank to its fabric address",
    symptom="the start stands still after `CustomAllreduce is disabled`, no error for minutes",
)  # fmt: skip

_EXPANDABLE = ("pytorch_cuda_alloc_conf", "pytorch_alloc_conf", "pytorch_hip_alloc_conf")


def _expandable(scene: Scene) -> Iterator[Judgement]:
    v41 = _serves_v41(scene)
    for place, wanted, proof in wishes(scene):
        for key, value in every(wanted, *_EXPANDABLE):
            yield from _allocator(place, key, str(value), proof, v41=v41)
    for place, env, reading in scene.seen(Environment):
        for key, value in env.variables.items():
            if normal(key) in _EXPANDABLE and env.origin != "image":
                yield from _allocator(place, key, value, evidence([reading]), v41=v41)


def _serves_v41(scene: Scene) -> bool:
    return any(is_v41(wanted) for _, wanted, _ in wishes(scene))


def _allocator(
    place: str | None, key: str, value: str, proof: tuple[str, ...], *, v41: bool
) -> Iterator[Judgement]:
    if not v41:
        return
    if re.search(r"expandable_segments\s*[:=]\s*true", value, re.IGNORECASE):
        yield Judgement(
            place, "fail", observed=f"{key}={value}", expected="expandable_segments:False",
            fix=f"{key}=expandable_segments:False", evidence=proof,
        )  # fmt: skip
    elif "expandable_segments" in value:
        yield passed(place, f"{key}={value}")


EXPANDABLE = Check(
    id="PROFILE.EXPANDABLE_SEGMENTS", code="ENG_EXPANDABLE_SEGMENTS",
    title="DeepSeek-V4.1 runs without expandable segments",
    stages=("profile", "launch", "doctor"), severity="error", fault_class="config",
    needs=(Wanted, Environment), judge=_expandable,
    why="with expandable segments prefills of more than 64 tokens give NaN logits "
    "(bisected on three Sparks over five boots; not tested at four)",
    fix="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False on every rank",
    symptom="garbage text, or `probability tensor contains either inf, nan` at longer prompts",
)  # fmt: skip

CHECKS: tuple[Check, ...] = (BLANK, RING, HOST_IP, EXPANDABLE)
