"""How a model is split over ranks: what must divide, and what a kernel demands of the parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sparkserve.checks.check import Check, Judgement, Stage, passed
from sparkserve.checks.scene import Scene
from sparkserve.checks.wish import is_on, is_v41, is_written, wishes
from sparkserve.facts.model_config import ModelConfig
from sparkserve.facts.wanted import Wanted, normal, setting, whole_number

V41_SIZES: Mapping[str, int] = {
    "num_attention_heads": 64, "num_key_value_heads": 1, "o_groups": 8, "vocab_size": 129280,
    "n_routed_experts": 384, "moe_intermediate_size": 2304, "draft_experts": 128,
}  # fmt: skip
"""DeepSeek-V4.1-Flash as published (config.json); used where none was read."""
_STAGES: tuple[Stage, ...] = ("profile", "launch", "doctor")
_B12X_BLOCK, _FLASHINFER_BLOCK = 64, 128
"""Multiples that the two expert kernels demand of a rank's expert width; upstream recipe."""


def _ranks(scene: Scene) -> Iterator[Judgement]:
    for place, wanted, proof in wishes(scene):
        tp, nodes = wanted.tp, wanted.nodes
        if not tp or not nodes:
            continue
        others = [_factor(wanted, *names) for names in (
            ("pp_size", "pipeline_parallel_size", "pp"),
            ("dp_size", "data_parallel_size", "dp"),
            ("dcp_size", "decode_context_parallel_size"),
        )]  # fmt: skip
        # Decode context parallelism reuses the ranks of tensor parallelism.
        ranks = tp * others[0] * others[1]
        if ranks == nodes:
            yield passed(place, f"{nodes} nodes, {ranks} ranks")
            continue
        yield Judgement(
            place, "fail", observed=f"nodes = {nodes}, tp = {tp}: {ranks} ranks",
            expected=f"one rank per node: tp = {nodes}, or {ranks} nodes",
            fix=f"sparkserve launch --tp {nodes}",
            evidence=proof,
        )  # fmt: skip


def _factor(wanted: Wanted, *names: str) -> int:
    told = setting(wanted, *names)
    return max(whole_number(told.value) or 1, 1) if told else 1


RANKS = Check(
    id="PROFILE.RANKS", code="ENG_RANKS_NODES", title="One rank runs on each node",
    stages=_STAGES, severity="error", fault_class="config", needs=(Wanted,), judge=_ranks,
    why="a Spark has one GPU, so ranks and nodes must be equally many",
    fix="make parallel.tp the number of nodes",
    symptom="the start waits for ranks that nobody starts",
)  # fmt: skip


def divisors(sizes: Mapping[str, int], tp: int, ep: int | None) -> list[tuple[str, int, int]]:
    """(name, size, ranks) of every size of a model that its ranks do not divide.

    ep: None = not said; experts are then judged both as whole ones and as slices over tp.
    """
    over_experts = tp if ep is None else ep
    over_width = tp if ep is None else max(tp // ep, 1) if ep else tp
    pairs = (
        ("num_attention_heads", tp), ("o_groups", tp),
        ("n_routed_experts", over_experts), ("moe_intermediate_size", over_width),
        ("vocab_size", tp), ("draft_experts", over_experts),
    )  # fmt: skip
    wrong = [(n, sizes[n], ranks) for n, ranks in pairs if n in sizes and sizes[n] % ranks]
    heads = sizes.get("num_key_value_heads", 1)
    if heads % tp and tp % heads:
        wrong.insert(1, ("num_key_value_heads", heads, tp))
    return wrong


def sizes_of(scene: Scene, wanted: Wanted) -> Mapping[str, int]:
    """The model's sizes: of its config.json, else as published for DeepSeek-V4.1; else none."""
    names = {
        "num_attention_heads": ("num_attention_heads", "n_head"),
        "num_key_value_heads": ("num_key_value_heads",),
        "o_groups": ("o_groups",),
        "vocab_size": ("vocab_size",),
        "n_routed_experts": ("n_routed_experts", "num_experts", "num_local_experts"),
        "moe_intermediate_size": ("moe_intermediate_size",),
    }
    read = [config for _, config, _ in scene.seen(ModelConfig)]
    if read:
        found = {name: read[0].count(*keys) for name, keys in names.items()}
        return {name: size for name, size in found.items() if size is not None}
    return V41_SIZES if is_v41(wanted) else {}


def pads(wanted: Wanted) -> bool:
    """Whether the wish declares that uneven parts are padded."""
    for key, value in (wanted.keys or {}).items():
        last = normal(key).rpartition(".")[2]
        if last in ("padding", "tp_pad", "dsv41_tp_pad", "pad", "tp_padding", "pad_heads"):
            return is_on(value)
        if re.fullmatch(r"adapters\.tp_pad(\..*)?", normal(key)):
            return True
    return False


def _divisibility(scene: Scene) -> Iterator[Judgement]:
    for place, wanted, proof in wishes(scene):
        tp, ep = wanted.tp, wanted.ep
        if not tp:
            continue
        if ep and tp % ep:
            yield Judgement(
                place, "fail", observed=f"tp % ep = {tp} % {ep} = {tp % ep}",
                expected=f"an ep that divides {tp}: {_divisors_text(tp)}",
                fix=f"sparkserve launch --set parallel.ep={_nearest_divisor(tp, ep)}",
                evidence=proof,
            )  # fmt: skip
            continue
        sizes = sizes_of(scene, wanted)
        wrong = divisors(sizes, tp, ep)
        if not sizes:
            continue
        if not wrong or pads(wanted):
            padded = f", padded: {_list(wrong)}" if wrong else ""
            yield passed(place, f"tp {tp} divides heads, experts and widths{padded}")
            continue
        fits = sorted(
            {n for n in range(1, 9) if not divisors(sizes, n, None)}, key=lambda n: abs(n - tp)
        )
        near = " or ".join(f"--tp {n}" for n in sorted(fits[:2])) or "--tp 1"
        yield Judgement(
            place, "fail", observed=_list(wrong),
            expected="no remainder, or padding that the profile declares",
            fix=f"sparkserve launch {near}, or declare padding (DSV41_TP_PAD=1, an adapter that "
            "pads)",
            evidence=proof,
        )  # fmt: skip


def _list(wrong: list[tuple[str, int, int]]) -> str:
    return ", ".join(f"{name} {size} % {ranks} = {size % ranks}" for name, size, ranks in wrong)


def _divisors_text(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


def _nearest_divisor(number: int, wanted: int) -> int:
    """The divisor nearest to what was wanted; of two equally near the smaller."""
    return min((n for n in range(1, number + 1) if number % n == 0), key=lambda n: abs(n - wanted))


DIVISIBILITY = Check(
    id="PROFILE.DIVISIBILITY", code="ENG_TP_DIVISIBILITY",
    title="Heads, experts and widths divide by the ranks",
    stages=_STAGES, severity="error", fault_class="config", needs=(Wanted, ModelConfig),
    judge=_divisibility,
    why="models count in powers of two, and what does not divide must be padded before it is split",
    fix="another number of ranks, or an adapter that pads heads and experts",
    symptom="`Total number of attention heads must be divisible by tensor parallel size` after "
    "minutes of preparation",
)  # fmt: skip


def expert_width(intermediate: int, tp: int, ep: int) -> float:
    """Width of one expert's part on one rank: ``intermediate * ep / tp``."""
    return intermediate * ep / tp


def _width(scene: Scene) -> Iterator[Judgement]:
    for place, wanted, proof in wishes(scene):
        sizes = sizes_of(scene, wanted)
        if not wanted.tp or "moe_intermediate_size" not in sizes or not is_v41(wanted):
            continue
        tp, ep = wanted.tp, wanted.ep or 1
        width = expert_width(sizes["moe_intermediate_size"], tp, ep)
        backend, block = _expert_backend(wanted)
        if width % block == 0:
            yield passed(place, f"expert width {width:.0f} at tp {tp}, ep {ep}")
            continue
        fits = [e for e in range(1, tp + 1) if tp % e == 0
                and expert_width(sizes["moe_intermediate_size"], tp, e) % block == 0]  # fmt: skip
        best = min(fits, key=lambda e: abs(e - ep), default=None)
        name = f"{sizes['moe_intermediate_size']} x {ep} / {tp} = {width:g}"
        yield Judgement(
            place, "fail", observed=f"{name} is no multiple of {block} ({backend})",
            expected=f"ep = {best}" if best else f"another number of ranks than {tp}",
            fix=f"sparkserve launch --set parallel.ep={best}" if best else "",
            evidence=proof,
        )  # fmt: skip


def _expert_backend(wanted: Wanted) -> tuple[str, int]:
    """Expert kernel and its block; where none is named, the one that demands less."""
    for key, value in (wanted.keys or {}).items():
        last, told = normal(key).rpartition(".")[2], str(value).lower()
        if last in ("dsv41_moe_b12x_next", "moe_b12x_next") and is_on(value):
            return "b12x_next", _B12X_BLOCK
        if last in ("moe_backend", "moe_runner_backend") and is_written(value):
            if "flashinfer" in told:
                return "FlashInfer MXFP4", _FLASHINFER_BLOCK
            if "b12x" in told:
                return "b12x_next", _B12X_BLOCK
    return "every expert kernel", _B12X_BLOCK


WIDTH = Check(
    id="PROFILE.EXPERT_WIDTH", code="ENG_EXPERT_WIDTH",
    title="Each rank's part of an expert fits the kernel's block",
    stages=_STAGES, severity="error", fault_class="config", needs=(Wanted, ModelConfig),
    judge=_width,
    why="the expert kernels work in blocks of 64 (b12x_next) or 128 (FlashInfer MXFP4) columns",
    fix="an expert-parallel size that leaves wider parts",
    symptom="the engine ends while loading experts, or computes with a slow fallback",
)  # fmt: skip


CHECKS: tuple[Check, ...] = (RANKS, DIVISIBILITY, WIDTH)
