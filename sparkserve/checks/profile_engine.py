"""Engine settings that contradict each other, lie out of range, or change what is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sparkserve.checks.check import Check, Judgement, Stage, passed
from sparkserve.checks.scene import Scene
from sparkserve.checks.wish import is_on, is_v41, said, wishes
from sparkserve.facts.wanted import Wanted, setting, whole_number

_STAGES: tuple[Stage, ...] = ("profile", "launch", "doctor")
_LEAST_CONTEXT, _MOST_CONTEXT = 4096, 1_048_576
_RING_ROCE_BYTES = 262_144
"""Largest one-shot size on a ring, with a hairpin queue of 8192; the published profiles."""
_SLOTS_DELAY_FROM = 8


class _Needs(NamedTuple):
    """One switch that works only together with another setting."""

    switch: str
    other: str
    good: Callable[[Any], bool]
    """Whether the other's value, None where it is not written, will do."""
    expected: str
    is_used: Callable[[Any], bool] = is_on


_NEEDS = (
    _Needs("DSV41_WO_A_W8_DROP", "DSV41_WO_A_W8", is_on, "DSV41_WO_A_W8=1"),
    _Needs("DSV41_WO_A_W8_MID", "DSV41_WO_A_W8", is_on, "DSV41_WO_A_W8=1"),
    _Needs("DSV41_ROUTER_LIVE", "DSV41_VERIFY_CAP", is_on, "DSV41_VERIFY_CAP=conf:0.1"),
    _Needs(
        "DSV41_DRAFT_TAU", "SGLANG_DSPARK_FOLDED_SAMPLING", lambda v: whole_number(v) == 2,
        "SGLANG_DSPARK_FOLDED_SAMPLING=2", lambda v: str(v).strip() not in ("1", "1.0", "", "None"),
    ),
    _Needs(
        "DSV41_SHARED_PAD_K", "DSV41_MXFP8_BACKEND",
        lambda v: v is None or str(v).lower() == "b12x", "DSV41_MXFP8_BACKEND=b12x",
    ),
    _Needs(
        "SGLANG_RAGGED_VERIFY_MODE", "speculative_dspark_sps_table_path",
        lambda v: not is_on(v), "SGLANG_RAGGED_VERIFY_MODE=compact with a table",
        lambda v: str(v).lower() != "compact",
    ),
)  # fmt: skip
"""Source: validators 13 of the profiles specification."""


def _switches(scene: Scene) -> Iterator[Judgement]:
    for place, wanted, proof in wishes(scene):
        for observed, expected in (*_unmet(wanted), *_uneven(wanted), *_roce(wanted)):
            yield Judgement(
                place, "fail", observed=observed, expected=expected, fix=f"set {expected}",
                evidence=proof,
            )  # fmt: skip


def _unmet(wanted: Wanted) -> Iterator[tuple[str, str]]:
    for rule in _NEEDS:
        told = setting(wanted, rule.switch)
        if told is None or not rule.is_used(told.value):
            continue
        other = setting(wanted, rule.other)
        if not rule.good(None if other is None else other.value):
            beside = f"{other.key}={other.value}" if other else f"no {rule.other}"
            yield f"{told.key}={told.value} with {beside}", rule.expected
    if wanted.tp == 3 and _on(wanted, "DSV41_WO_A_W8") and not _on(wanted, "DSV41_WO_A_W8_DROP"):
        yield (
            "DSV41_WO_A_W8 without DSV41_WO_A_W8_DROP on three ranks: 688 MiB more on each",
            "DSV41_WO_A_W8_DROP=1",
        )


def _on(wanted: Wanted, name: str) -> bool:
    told = setting(wanted, name)
    return told is not None and is_on(told.value)


def _uneven(wanted: Wanted) -> Iterator[tuple[str, str]]:
    loads = setting(wanted, "DSV41_FAST_LOAD_EP_SIZE")
    size = whole_number(loads.value) if loads else None
    if loads is not None and size is not None and wanted.ep is not None and size != wanted.ep:
        yield f"{loads.key}={size} with ep {wanted.ep}", f"{loads.key}={wanted.ep}"


def _roce(wanted: Wanted) -> Iterator[tuple[str, str]]:
    if "ring" not in (wanted.topology or "").lower():
        return
    size = setting(wanted, "SGLANG_ROCE_MAX_SIZE")
    most = whole_number(size.value) if size else None
    if size is not None and most is not None and most > _RING_ROCE_BYTES:
        yield f"{size.key}={most} on a ring", f"{size.key}={_RING_ROCE_BYTES}"


SWITCHES = Check(
    id="PROFILE.SWITCHES", code="ENG_SWITCH_NEEDS",
    title="Switches come together with what they need",
    stages=_STAGES, severity="error", fault_class="config", needs=(Wanted,), judge=_switches,
    why="the switch does nothing, or breaks, without the other setting",
    fix="set both, or neither",
    symptom="an adapter refuses at the start, or a switch has no effect at all",
    text_only="a setting of neighbours' recipes; sparkserve's own profile has no such key",
)  # fmt: skip


def _ranges(scene: Scene) -> Iterator[Judgement]:
    for place, wanted, proof in wishes(scene):
        for observed, expected, fix in (*_context(wanted), *_numbers(wanted), *_graphs(wanted)):
            yield Judgement(
                place, "fail", observed=observed, expected=expected, fix=fix, evidence=proof
            )


def _context(wanted: Wanted) -> Iterator[tuple[str, str, str]]:
    context = wanted.context_tokens
    if context is None or not is_v41(wanted) or _LEAST_CONTEXT <= context <= _MOST_CONTEXT:
        return
    best = min(max(context, _LEAST_CONTEXT), _MOST_CONTEXT)
    yield (
        f"context {context}", f"{_LEAST_CONTEXT} to {_MOST_CONTEXT}",
        f"sparkserve launch --set context.length_tokens={best}",
    )  # fmt: skip


def _numbers(wanted: Wanted) -> Iterator[tuple[str, str, str]]:
    drafts = setting(wanted, "MTP_NUM_TOKENS")
    number = whole_number(drafts.value) if drafts else None
    if number is not None and number < 5:
        yield f"MTP_NUM_TOKENS={number}", "at least 5", "MTP_NUM_TOKENS=5"
    kept = setting(wanted, "VLLM_PREFIX_CACHE_RETENTION_INTERVAL")
    interval = whole_number(kept.value) if kept else None
    if interval is not None and interval % 256:
        near = max(round(interval / 256), 1) * 256
        yield (
            f"VLLM_PREFIX_CACHE_RETENTION_INTERVAL={interval}", "a multiple of 256",
            f"VLLM_PREFIX_CACHE_RETENTION_INTERVAL={near}",
        )  # fmt: skip
    split = setting(wanted, "dcp_size", "decode_context_parallel_size")
    ways = whole_number(split.value) if split else None
    mode = setting(wanted, "mode", "speculation.algorithm", "speculative_algorithm")
    if ways is not None and ways > 1 and mode is not None and str(mode.value).lower() == "dspark":
        yield f"{mode.key}={mode.value} with {split.key}={ways}" if split else "", "1", "DCP_SIZE=1"
    offload = setting(wanted, "kv_offload_gb", "kv_offloading_size")
    if offload is not None and (whole_number(offload.value) or 0) > 0:
        allocator = setting(wanted, "pytorch_cuda_alloc_conf", "pytorch_alloc_conf")
        if allocator and "expandable_segments:true" in str(allocator.value).lower():
            yield (
                f"{offload.key}={offload.value} with {allocator.key}={allocator.value}",
                "expandable_segments:False", f"{allocator.key}=expandable_segments:False",
            )  # fmt: skip


def _graphs(wanted: Wanted) -> Iterator[tuple[str, str, str]]:
    """Rows of a decode step that no captured graph holds run without one."""
    requests = wanted.max_running_requests
    if requests is None:
        return
    cap = setting(wanted, "max_cudagraph_capture_size")
    rows = whole_number(cap.value) if cap else None
    need = max(requests * ((wanted.draft_tokens or 0) + 1), 6)
    if cap is not None and rows is not None and 0 < rows < need:
        yield (
            f"{cap.key}={rows} < {need} rows of {requests} requests",
            f"{need}",
            f"{cap.key}={need}",
        )
    batch = setting(wanted, "cuda_graph_max_bs_decode", "cuda_graph_max_bs")
    most = whole_number(batch.value) if batch else None
    if batch is not None and most is not None and 0 < most < requests:
        yield f"{batch.key}={most} < {requests} requests", f"{requests}", f"{batch.key}={requests}"


RANGES = Check(
    id="PROFILE.RANGES", code="ENG_SETTING_RANGE", title="Numbers lie where the engine takes them",
    stages=_STAGES, severity="warning", fault_class="config", needs=(Wanted,), judge=_ranges,
    why="outside the engine refuses the value, rounds it in silence, or runs without CUDA graphs",
    fix="take the nearest value that is named",
    symptom="a start that ends at the argument parser, or decoding far slower than expected",
)  # fmt: skip


def _numerics(scene: Scene) -> Iterator[Judgement]:
    for told in said(scene, "SGLANG_FLASHINFER_MOE_FUSED_FINALIZE"):
        if is_on(told.value):
            yield Judgement(
                told.node, "fail", observed=f"{told.key}={told.value}", expected="0",
                fix=f"{told.key}=0", evidence=told.evidence,
            )  # fmt: skip
        else:
            yield passed(told.node, f"{told.key}={told.value}")


NUMERICS = Check(
    id="PROFILE.FUSED_FINALIZE", code="ENG_NONDETERMINISTIC",
    title="Greedy answers repeat", stages=_STAGES, severity="warning", fault_class="config",
    needs=(Wanted,), judge=_numerics,
    why="the fused finalize adds bf16 values atomically, in an order that changes: up to about one "
    "nat on the first token, for 0.3 ms of a step",
    fix="SGLANG_FLASHINFER_MOE_FUSED_FINALIZE=0",
    symptom="the same greedy request gets different answers",
    text_only="a setting of neighbours' recipes; sparkserve's own profile has no such key",
)  # fmt: skip


def _offload(scene: Scene) -> Iterator[Judgement]:
    for told in said(scene, "OFFLOAD_MODE", "engram_offload"):
        if str(told.value).strip().lower() == "ram":
            yield Judgement(
                told.node, "fail", observed=f"{told.key}={told.value}", expected="nvme",
                fix=f"{told.key}=nvme", evidence=told.evidence,
            )  # fmt: skip
        else:
            yield passed(told.node, f"{told.key}={told.value}")


OFFLOAD = Check(
    id="PROFILE.OFFLOAD", code="MEM_ENGRAM_IN_RAM", title="Engram rows lie on NVMe, not in memory",
    stages=_STAGES, severity="error", fault_class="memory", needs=(Wanted,), judge=_offload,
    why="the tables are 189 GiB over all ranks, and a Spark's RAM is its GPU memory",
    fix="OFFLOAD_MODE=nvme, with packed rows",
    symptom="out of memory while loading, or a node that stops answering",
    text_only="a setting of neighbours' recipes; sparkserve's own profile has no such key",
)  # fmt: skip


def _admission(scene: Scene) -> Iterator[Judgement]:
    for place, wanted, proof in wishes(scene):
        requests = wanted.max_running_requests
        algorithm = setting(wanted, "speculation.algorithm", "speculative_algorithm", "spec_algo")
        if algorithm is None or str(algorithm.value).upper() != "DSPARK" or requests is None:
            continue
        if requests < _SLOTS_DELAY_FROM or setting(wanted, "min_free_slots_delay"):
            continue
        free = min(4, max(2, (requests + 5) // 6))
        yield Judgement(
            place, "fail",
            observed=f"{requests} requests with DSPARK: admission waits for {free} free slots",
            expected="--min-free-slots-delay 1",
            fix='engine.extra_args = ["--min-free-slots-delay", "1"]',
            evidence=proof,
        )  # fmt: skip


ADMISSION = Check(
    id="PROFILE.ADMISSION", code="ENG_ADMISSION_DELAY",
    title="Waiting requests are admitted at every free slot",
    stages=("profile",), severity="info", fault_class="config", needs=(Wanted,), judge=_admission,
    why="SGLang waits for several free slots before it admits with speculation: about 7 of 8 and "
    "14 of 16 run (43 % more at 8 requests was reported with a delay of 1)",
    fix='engine.extra_args = ["--min-free-slots-delay", "1"]',
    symptom="fewer requests run than allowed while others wait",
)  # fmt: skip

CHECKS: tuple[Check, ...] = (SWITCHES, RANGES, NUMERICS, OFFLOAD, ADMISSION)
