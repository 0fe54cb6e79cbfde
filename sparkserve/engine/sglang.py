"""SGLang's command line, rendered from the profile; the same on all ranks but for the rank.

Flags were compared with the argument parser of 0.5.23 (see tests/engine).
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkserve.model.profile import Profile

_MODULES = {"sglang": "sglang.launch_server", "light": "sparkserve.sim.light_engine"}


def module_of(kind: str) -> str:
    """Python module that serves this kind of engine.

    Raises:
        KeyError: the kind is not started as a Python module.
    """
    return _MODULES[kind]


def arguments(profile: Profile, *, model_path: str, config_path: str | None) -> list[str]:
    """Arguments that every rank gets alike.

    config_path: YAML file of mode 0600 with the API key, which so never shows in a process list.
    """
    argv = ["--model-path", model_path, "--served-model-name", profile.model.served_name]
    if profile.engine.trust_remote_code:
        argv.append("--trust-remote-code")
    if profile.engine.device == "cpu":
        argv += ["--device", "cpu"]
    argv += _pairs(
        ("--tp-size", profile.parallel.tp),
        ("--ep-size", profile.parallel.ep if profile.parallel.ep > 1 else None),
        ("--context-length", profile.context.length_tokens),
        ("--chunked-prefill-size", profile.context.chunked_prefill_tokens),
        ("--max-running-requests", profile.context.max_running_requests),
        ("--max-total-tokens", profile.context.kv_tokens),
        ("--mem-fraction-static", profile.context.mem_fraction_static),
        ("--tool-call-parser", profile.serving.tool_parser),
        ("--reasoning-parser", profile.serving.reasoning_parser),
    )
    argv += _speculation(profile)
    argv += ["--host", profile.serving.host, "--port", str(profile.serving.port)]
    if profile.serving.metrics:
        # Guards ask every few seconds: each question would be a line of the engine's log.
        argv += ["--enable-metrics", "--uvicorn-access-log-exclude-prefixes", "/metrics"]
    argv += profile.engine.extra_args
    if config_path is not None:
        argv += ["--config", config_path]
    return argv


def rank_arguments(*, world_size: int, rank: int, head_address: str, dist_port: int) -> list[str]:
    """Arguments in which the ranks differ; none for a single rank."""
    if world_size == 1:
        return []
    return [
        *("--nnodes", str(world_size)),
        *("--node-rank", str(rank)),
        *("--dist-init-addr", f"{_bracketed(head_address)}:{dist_port}"),
    ]


def config_file(api_key: str) -> str:
    """Content of the YAML file that hands the API key over."""
    # JSON strings are YAML strings, so no key can break out of its quotes.
    import json

    return f"api-key: {json.dumps(api_key)}\n"


def _speculation(profile: Profile) -> list[str]:
    speculation = profile.speculation
    if speculation.algorithm is None:
        return []
    return _pairs(
        ("--speculative-algorithm", speculation.algorithm),
        ("--speculative-dspark-block-size", speculation.block_tokens),
        ("--speculative-dspark-sps-table-path", speculation.sps_table),
        ("--speculative-dspark-confidence-sts-path", speculation.sts_table),
    )


def _pairs(*options: tuple[str, object | None]) -> list[str]:
    argv: list[str] = []
    for name, value in options:
        if value is not None:
            argv += [name, str(value)]
    return argv


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def differing(argvs: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Positions at which the ranks' command lines differ, one tuple of values per position."""
    longest = max((len(argv) for argv in argvs), default=0)
    columns = (tuple(argv[i] if i < len(argv) else "" for argv in argvs) for i in range(longest))
    return [column for column in columns if len(set(column)) > 1]
