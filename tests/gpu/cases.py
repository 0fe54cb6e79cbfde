"""The servers of each comparison, as data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.gpu.obstacles import VARIABLE as OBSTACLES
from tests.gpu.place import Place
from tests.gpu.servers import Case, Layout

_COMMON = (
    "--disable-flashinfer-autotune",
    "--sampling-backend",
    "pytorch",
    "--mem-fraction-static",
    "0.2",
    "--max-total-tokens",
    "8192",
    "--watchdog-timeout",
    "3000",
    "--decode-log-interval",
    "8",
)
_NO_PREFILL_GRAPHS = ("--cuda-graph-backend-prefill", "disabled", "--cuda-graph-bs-decode")
ENGRAM_ARGUMENTS = (*_COMMON, "--attention-backend", "triton", "--max-running-requests", "8")
ENGRAM_EAGER = (*ENGRAM_ARGUMENTS, "--disable-cuda-graph")
ENGRAM_GRAPHS = (*ENGRAM_ARGUMENTS, *_NO_PREFILL_GRAPHS, "1", "2", "4", "8")
ENGRAM_ENVIRONMENT = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "sparkserve.sim.demo_model"}
V41_GRAPHS = (
    *_COMMON,
    "--fp8-gemm-backend",
    "triton",
    "--context-length",
    "8192",
    "--max-running-requests",
    "4",
    "--chunked-prefill-size",
    "2048",
    "--disable-shared-experts-fusion",
    *_NO_PREFILL_GRAPHS,
    "1",
    "2",
    "4",
)
# Each rank sees one GPU only, which SGLang's own all-reduce does not expect.
_TWO_RANKS = ("--disable-custom-all-reduce",)
V41_ENVIRONMENT = {
    OBSTACLES: "1",
    "SGLANG_DSV4_FP4_DEQUANT": "1",
    "SGLANG_OPT_USE_TILELANG_MHC_PRE": "0",
    "SGLANG_OPT_USE_TILELANG_MHC_POST": "0",
}
Adapters = Mapping[str, Mapping[str, Any]]
PREFETCH: Adapters = {"engram_rows": {}, "engram_prefetch": {}}


def rows(**settings: Any) -> Adapters:
    """Rows from files, looked up when a layer needs them."""
    return {"engram_rows": settings}


def checked(**settings: Any) -> Adapters:
    """Rows fetched ahead, and every one looked up a second time."""
    return {"engram_rows": settings, "engram_prefetch": {"check": True}}


def engram_checkpoint(place: Place) -> Path:
    return place.models / "checkpoints" / "tiny-engram-cuda"


def engram_rows(place: Place) -> Path:
    return place.models / "engram" / "tiny-engram-cuda"


def v41_checkpoint(place: Place) -> Path:
    return place.models / "checkpoints" / "tiny-v41"


def v41_rows(place: Place) -> Path:
    return place.models / "engram" / "tiny-v41"


def tiny_engram(place: Place) -> tuple[Case, ...]:
    """The small Llama; the first case is the reference of all others."""
    model, shards, env = engram_checkpoint(place), engram_rows(place), ENGRAM_ENVIRONMENT
    cached = rows(cache_gib=0.001)

    def graphs(name: str, adapters: Adapters) -> Case:
        return Case(f"engram-{name}", model, ENGRAM_GRAPHS, env, shards, adapters)

    return (
        Case("engram-memory-graphs", model, ENGRAM_GRAPHS, env),
        Case("engram-memory-eager", model, ENGRAM_EAGER, env),
        Case("engram-rows-eager-cached", model, ENGRAM_EAGER, env, shards, cached),
        graphs("rows-graphs-pread", rows(engine="pread")),
        graphs("rows-graphs-pinned", rows(gather_from="pinned")),
        graphs("prefetch-graphs", PREFETCH),
        graphs("prefetch-checked", checked()),
    )


def tiny_v41(place: Place) -> tuple[Case, ...]:
    """DeepSeek-V4.1; the first case is the reference, the second shows that it repeats."""
    model, shards, env = v41_checkpoint(place), v41_rows(place), V41_ENVIRONMENT
    return (
        Case("v41-memory-graphs", model, V41_GRAPHS, env),
        Case("v41-memory-again", model, V41_GRAPHS, env),
        Case("v41-rows-graphs", model, V41_GRAPHS, env, shards, rows()),
        Case("v41-prefetch-checked", model, V41_GRAPHS, env, shards, checked()),
    )


def engram_shards(place: Place, layout: Layout) -> Path:
    """Where ``tiny_engram.reshard`` puts the small Llama's rows for two ranks."""
    return place.models / "engram" / f"tiny-engram-cuda-{layout}-2"


def two_ranks_engram(place: Place) -> tuple[Case, ...]:
    """The small Llama over two GPUs, in every layout."""
    model, env = engram_checkpoint(place), ENGRAM_ENVIRONMENT
    arguments = (*ENGRAM_GRAPHS, *_TWO_RANKS)

    def graphs(layout: Layout, adapters: Adapters) -> Case:
        name = f"engram-tp2-{layout}-graphs"
        return Case(name, model, arguments, env, engram_shards(place, layout), adapters, layout, 2)

    return (
        Case("engram-tp2-memory-graphs", model, arguments, env, ranks=2),
        graphs("columns", PREFETCH),
        graphs("equal", rows()),
        graphs("strided", checked()),
    )


def two_ranks_v41(place: Place) -> tuple[Case, ...]:
    """DeepSeek-V4.1 over two GPUs."""
    model, shards, env = v41_checkpoint(place), v41_rows(place), V41_ENVIRONMENT
    arguments = (*V41_GRAPHS, *_TWO_RANKS)

    def graphs(layout: Layout) -> Case:
        name = f"v41-tp2-{layout}-graphs"
        return Case(name, model, arguments, env, shards, checked(), layout, 2)

    return (
        Case("v41-tp2-memory-graphs", model, arguments, env, ranks=2),
        graphs("columns"),
        graphs("strided"),
    )


def with_rows(case: Case, name: str, engram_dir: Path) -> Case:
    """The same server over other shards."""
    return Case(name, case.checkpoint, case.arguments, case.environment, engram_dir, PREFETCH)


def in_memory(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Those that need no adapter."""
    return tuple(case for case in cases if not case.adapters)


def checks(case: Case) -> bool:
    """Whether a server compares what it fetched ahead with a second lookup."""
    return bool(case.adapters.get("engram_prefetch", {}).get("check"))
