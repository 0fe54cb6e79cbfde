"""Command lines: golden for a four-Spark container profile, known to SGLang's own parser."""

from __future__ import annotations

from pathlib import Path

from sparkserve.engine import sglang, spec
from sparkserve.model.engine_spec import EngineSpec
from sparkserve.model.profile import Profile
from tests.scenes import place, profile

DIGEST = "lmsysorg/sglang@sha256:" + "3d" * 32
# The published four-Spark argv (launch.md section 10), less what our own files decide.
FOUR_SPARKS = {
    "model": {"path": "DeepSeek-V4.1-Flash", "served_name": "deepseek-v4.1-flash"},
    "engine": {
        "runtime": "container",
        "image": DIGEST,
        "trust_remote_code": True,
        "extra_args": [
            "--load-format", "safetensors", "--attention-backend", "dsv4",
            "--moe-runner-backend", "flashinfer_mxfp4", "--random-seed", "0",
            "--enable-decoder-swa-bounded-replay", "--sleep-on-idle",
        ],
    },
    "parallel": {"tp": 4, "ep": 2},
    "context": {
        "length_tokens": 1_048_576, "chunked_prefill_tokens": 4096, "kv_tokens": 8_000_000,
        "max_running_requests": 16, "mem_fraction_static": 0.80,
    },
    "speculation": {"algorithm": "DSPARK", "block_tokens": 5},
    "serving": {"tool_parser": "deepseekv41", "reasoning_parser": "deepseek-v41"},
}  # fmt: skip


def specs(wish: Profile) -> tuple[EngineSpec, ...]:
    places = tuple(place(n + 1) for n in range(wish.parallel.tp))
    return spec.build(spec.Wanted(wish, places, (), "run-1", {}))


def test_four_spark_engine_arguments_are_the_published_ones() -> None:
    wish = profile(**FOUR_SPARKS)
    arguments = sglang.arguments(wish, model_path="/m", config_path=None)
    assert " ".join(arguments) == (
        "--model-path /m --served-model-name deepseek-v4.1-flash --trust-remote-code "
        "--tp-size 4 --ep-size 2 --context-length 1048576 --chunked-prefill-size 4096 "
        "--max-running-requests 16 --max-total-tokens 8000000 --mem-fraction-static 0.8 "
        "--tool-call-parser deepseekv41 --reasoning-parser deepseek-v41 "
        "--speculative-algorithm DSPARK --speculative-dspark-block-size 5 "
        "--host 127.0.0.1 --port 8888 --enable-metrics "
        "--uvicorn-access-log-exclude-prefixes /metrics "
        "--load-format safetensors --attention-backend dsv4 "
        "--moe-runner-backend flashinfer_mxfp4 --random-seed 0 "
        "--enable-decoder-swa-bounded-replay --sleep-on-idle"
    )


def test_ranks_differ_in_the_node_rank_and_nothing_else() -> None:
    rendered = [s.argv for s in specs(profile(parallel={"tp": 4}))]
    assert sglang.differing(rendered) == [("0", "1", "2", "3")]
    assert rendered[2][rendered[2].index("--dist-init-addr") + 1] == "192.168.0.11:20000"


def test_single_rank_has_no_rendezvous() -> None:
    (only,) = specs(profile())
    assert not {"--nnodes", "--node-rank", "--dist-init-addr"} & set(only.argv)


def test_key_reaches_the_engine_by_file_never_by_argument() -> None:
    wish = profile(serving={"api_key_file": "~/key"})
    (only,) = specs(wish)
    assert only.argv[-2:] == ("--config", "/srv/sparkserve/state/runs/run-1/engine.yaml")
    assert "--api-key" not in only.argv


def test_key_with_quotes_and_newlines_stays_one_yaml_value() -> None:
    assert sglang.config_file('a"b: c\n#d') == 'api-key: "a\\"b: c\\n#d"\n'


def test_ipv6_rendezvous_address_is_bracketed() -> None:
    argv = sglang.rank_arguments(world_size=2, rank=1, head_address="fd00::1", dist_port=20000)
    assert argv[-1] == "[fd00::1]:20000"


def test_container_command_line_is_golden() -> None:
    made = specs(profile(**FOUR_SPARKS))[1].argv
    golden = (Path(__file__).parent / "golden" / "docker-run-rank1.txt").read_text()
    assert "\n".join(made) + "\n" == golden


def test_container_asks_for_no_more_privilege_than_it_names() -> None:
    made = specs(profile(**FOUR_SPARKS))[0].argv
    assert "--privileged" not in made
    assert "--restart" not in " ".join(made)
    assert DIGEST in made
