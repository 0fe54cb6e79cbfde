"""Rules of a profile: each names its numbers and what fits, and is silent where all is well."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkserve.checks import profile as theme
from sparkserve.checks.check import judge
from sparkserve.checks.diagnose import diagnose
from sparkserve.checks.memory_plan import PLAN
from sparkserve.checks.profile_split import V41_SIZES, divisors, expert_width
from sparkserve.checks.scene import Scene
from sparkserve.facts.memory import MemoryFacts
from sparkserve.facts.runtime import HolderFacts
from sparkserve.model.finding import Finding
from sparkserve.model.reading import Reading
from tests import scenes
from tests.casefiles import CASES, variants

GIB = 1 << 30


def judged(*texts: tuple[str, str], node: str | None = None) -> list[Finding]:
    """Findings of this theme about (what, text) readings that are not well."""
    readings = [Reading(what=what, text=text, node=node) for what, text in texts]
    result = diagnose(readings, theme.CHECKS)
    assert result.unread == ()
    return [finding for finding in result.findings if finding.outcome != "pass"]


def profile(text: str) -> list[Finding]:
    return judged(("profile", text))


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def one(findings: list[Finding], code: str) -> Finding:
    (found,) = [finding for finding in findings if finding.code == code]
    return found


def case(number: str) -> list[Finding]:
    (folder,) = CASES.glob(f"{number}-*")
    faulty = next(variant for variant in variants(folder) if variant.kind == "faulty")
    found = diagnose(faulty.readings, theme.CHECKS).findings
    return [finding for finding in found if finding.outcome != "pass"]


# What the public cases expect.


def test_blank_variables_are_named_with_their_rank() -> None:
    found = one(case("B03"), "NET_GID_EMPTY_STRING")
    assert found.node == "rank1"
    assert found.verdict == "FAIL"
    assert "blank: NCCL_IB_GID_INDEX=" in found.observed


def test_a_ring_of_four_without_its_patch_fails() -> None:
    found = one(case("B11"), "NET_RING_TREE")
    assert found.verdict == "FAIL"
    assert "ring over 4 nodes" in found.observed
    assert "switchless_patch: false" in found.observed


def test_huge_shared_memory_is_a_hypothesis() -> None:
    found = one(case("B30"), "MEM_SHM_HUGE")
    assert found.verdict == "WARN"
    assert "hypothesis" in found.why
    assert "64.0 GiB" in found.observed


def test_a_memory_limit_and_fixed_kv_bytes_are_warned_of_each() -> None:
    found = [f for f in case("B31") if f.code == "MEM_CGROUP_NO_CAP"]
    assert [finding.verdict for finding in found] == ["WARN", "WARN"]
    assert "mem_limit does not cap the GPU" in found[0].observed
    assert "fixed KV bytes with the guard off" in found[1].observed


def test_a_token_budget_below_the_workspace_fails() -> None:
    found = one(case("B61"), "ENG_LOCKED_WORKSPACE")
    assert "2048" in found.observed
    assert found.expected == "at least 8224"


def test_indivisible_heads_experts_and_widths_are_listed() -> None:
    found = one(case("B69"), "ENG_TP_DIVISIBILITY")
    for remainder in ("64 % 3", "256 % 3", "2048 % 3"):
        assert remainder in found.observed
    assert "--tp 2 or --tp 4" in found.fix


def test_no_output_cap_fails_and_names_one_that_passes() -> None:
    found = one(case("B75"), "SRV_NO_OUTPUT_CAP")
    assert "262144" in found.expected
    assert profile(f"context_length: 1048576\n{found.fix}\n") == []


def test_a_truth_value_in_quotes_is_rejected() -> None:
    found = one(case("B78"), "SRV_STRING_FALSE")
    assert found.verdict == "REJECT"
    assert 'chat_template_kwargs.thinking: "false"' in found.observed
    assert "thinking: false" in found.fix


# Other texts of the same faults, and healthy ones beside them.


@pytest.mark.parametrize(
    "text", ["NCCL_IB_HCA=\nSGLANG_HOST_IP=10.0.0.1", "GLOO_SOCKET_IFNAME=   ", 'SGLANG_X=""']
)
def test_every_kind_of_blank_variable(text: str) -> None:
    assert "NET_GID_EMPTY_STRING" in codes(judged(("rendered env", text), node="spark2"))


@pytest.mark.parametrize("text", ["NCCL_DEBUG=WARN\nLESSOPEN=", "HF_TOKEN=\nPATH=/bin"])
def test_blanks_that_mean_nothing_to_the_network_are_silent(text: str) -> None:
    assert judged(("container env", text)) == []


@pytest.mark.parametrize(
    ("text", "faulty"),
    [
        ('nccl_ib_gid_index: ""', True),
        ("env:\n  NCCL_IB_GID_INDEX: ''", True),
        ("environment: ['SGLANG_HOST_IP=']", True),
        ("NCCL_IB_GID_INDEX=", True),
        ("nccl_ib_gid_index:", False),
        ("nccl_ib_gid_index: null", False),
        ("nccl_ib_gid_index: 0", False),
    ],
)
def test_blank_settings_of_a_profile(text: str, faulty: bool) -> None:
    assert (codes(profile(text)) == ["NET_GID_EMPTY_STRING"]) is faulty


RING = "topology: ring\nnnodes: {}\n"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (RING.format(4), "FAIL"),
        (RING.format(5) + "nccl: {switchless_patch: true}", "FAIL"),
        (RING.format(4) + "nccl: {switchless_patch: true, library_sha256: 1f2e}", None),
        (RING.format(4) + "nccl: {switchless_patch: true}\nlibrary_sha256: 1f2e", None),
        (RING.format(4) + "NCCL_SWITCHLESS_RING_ONLY: 1", "WARN"),
        (RING.format(3), None),
        ("topology: switch\nnnodes: 4", None),
        ("nnodes: 4", None),
        ("topology: ring", None),
    ],
)
def test_rings(text: str, verdict: str | None) -> None:
    assert [finding.verdict for finding in profile(text)] == ([verdict] if verdict else [])


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("restart: unless-stopped", "FAIL"),
        ("restart: always", "FAIL"),
        ("restart: on-failure", "FAIL"),
        ("restart: on-failure:5", "WARN"),
        ("restart: on-failure:1", None),
        ('restart: "no"', None),
        ("restart: no", None),
        ("services: {sglang-head: {image: x, restart: always}}", "FAIL"),
        ("services: {portainer: {image: portainer/ce, restart: always}}", None),
        ("services: {app: {image: ghcr.io/a/vllm, restart: always}}", "FAIL"),
        ("restart_policy: {name: always}", "FAIL"),
        ("services: {vllm: {deploy: {restart_policy: {condition: any}}}}", "FAIL"),
    ],
)
def test_restart_policies(text: str, verdict: str | None) -> None:
    found = profile(text)
    assert [finding.verdict for finding in found] == ([verdict] if verdict else [])
    assert all(finding.code == "MEM_RESTART_LOOP" for finding in found)


@pytest.mark.parametrize(
    ("text", "faulty"),
    [
        ("context_length: 262144\nmax_total_tokens: 200000", True),
        ("CONTEXT_LENGTH=262144\nMAX_TOTAL_TOKENS=200000", True),
        ("context_length: 262144\nmax_total_tokens: 262144", False),
        ("context_length: 262144", False),
    ],
)
def test_pools_below_one_context(text: str, faulty: bool) -> None:
    found = profile(text)
    assert (codes(found) == ["MEM_KV_POOL_SMALL"]) is faulty
    if faulty:
        assert "pool 200000 < context 262144" in found[0].observed


def test_requests_that_queue_at_full_context_are_told_without_alarm() -> None:
    text = "context_length: 1048576\nmax_total_tokens: 8000000\nmax_running_requests: 8"
    found = one(profile(text), "MEM_KV_QUEUE")
    # The specification's own example: 8 x 1 Mi = 8,388,608 > 8,000,000.
    assert "8388608 > 8000000" in found.observed
    assert (found.verdict, found.severity) == ("INFO", "info")
    assert "max_running_requests=7" in found.fix


@pytest.mark.parametrize(
    ("size", "faulty"),
    [("64gb", True), ("17179869185", True), ("32G", True), ("16gb", False), ("8GiB", False),
     ("17179869184", False), ("lots", False)],
)  # fmt: skip
def test_sizes_of_shared_memory(size: str, faulty: bool) -> None:
    expected = ["MEM_SHM_HUGE"] if faulty else []
    assert codes(profile(f"services:\n  x:\n    shm_size: {size}\n")) == expected
    assert codes(judged(("rendered argv", f"docker run --shm-size={size} image"))) == expected


@pytest.mark.parametrize(
    ("text", "faulty"),
    [
        (
            "Filesystem 1K-blocks Used Avail Use% Mounted on\nshm 67108864 9437184 1 15% /dev/shm",
            True,
        ),
        ("shm              64G  5.0G   59G   8% /dev/shm", True),
        ("shm              64G  2.0M   64G   1% /dev/shm", False),
    ],
)
def test_what_lies_in_shared_memory_of_a_container(text: str, faulty: bool) -> None:
    command = "docker exec rank0 df -h /dev/shm" if "G" in text else "docker exec rank0 df /dev/shm"
    found = diagnose([Reading(command=command, text=text, node="spark1")], theme.CHECKS).findings
    assert [(f.code, f.verdict) for f in found] == [("MEM_SHM_HUGE", "WARN" if faulty else "PASS")]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("mem_limit: 100g", 1),
        ("command: docker run -m 100g --name x image", 1),
        ("mem_limit: 100g\nMEMGUARD=1", 0),
        ("mem_limit: 100g\nmemguard: 1", 0),
        ("deploy: {resources: {limits: {memory: 100G}}}", 1),
        ("kv_cache_memory_bytes: 24000000000", 1),
        ("mem_limit: 100g\nmemory_guard: {enabled: true}", 0),
        ("mem_limit: 100g\nmemory_guard: true", 0),
        ("mem_limit: 100g\nlimits: {memory_floor_gib: 2}", 0),
        ("mem_limit: 100g\nlimits: {memory_floor_gib: 0.0}", 1),
        ("memory_guard: {enabled: false}", 0),
        ("mem_limit: null", 0),
    ],
)
def test_caps_that_cap_nothing(text: str, count: int) -> None:
    assert codes(profile(text)) == ["MEM_CGROUP_NO_CAP"] * count


@pytest.mark.parametrize(
    ("text", "faulty"),
    [
        ("ATTENTION_BACKEND=B12X_MLA_SPARSE\nMAX_NUM_BATCHED_TOKENS=4096", True),
        ("command: [--attention-backend, b12x, --max-num-batched-tokens, '2048']", True),
        ("attention_backend: b12x\nmax_num_batched_tokens: 8224", False),
        ("attention_backend: flashinfer\nmax_num_batched_tokens: 2048", False),
        ("attention_backend: b12x", False),
        ("max_num_batched_tokens: 2048", False),
    ],
)
def test_token_budgets_of_the_b12x_backend(text: str, faulty: bool) -> None:
    assert (codes(profile(text)) == ["ENG_LOCKED_WORKSPACE"]) is faulty


@pytest.mark.parametrize(
    ("text", "faulty"),
    [
        ("context_length: 1048576\ndefault_max_tokens: 300000", True),
        ("default_max_tokens: 0", True),
        ("default_max_tokens: none", True),
        ("DSV41_MAX_NEW_TOKENS=0", True),
        ("context_length: 1048576\ndefault_max_tokens: 262144", False),
        ("default_max_tokens: 32768", False),
        ("context_length: 1048576", False),
    ],
)
def test_caps_on_answers(text: str, faulty: bool) -> None:
    assert (codes(profile(text)) == ["SRV_NO_OUTPUT_CAP"]) is faulty


@pytest.mark.parametrize(
    ("body", "faulty"),
    [
        ({"chat_template_kwargs": {"enable_thinking": "False"}}, True),
        ({"chat_template_kwargs": {"anything": "0"}}, True),
        ({"stream": "true"}, True),
        ({"anything_new": "false"}, True),
        ({"model": "true", "messages": [{"content": "false"}], "stop": "false"}, False),
        ({"extra_body": {"chat_template_kwargs": {"thinking": "no"}}}, True),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({"chat_template_kwargs": {"reasoning_effort": "max"}}, False),
        ({"messages": [{"role": "user", "content": "false"}], "stream": True}, False),
    ],
)
def test_truth_values_of_requests(body: dict[str, Any], faulty: bool) -> None:
    found = judged(("request body", json.dumps(body)))
    assert ([finding.verdict for finding in found] == ["REJECT"]) is faulty


@pytest.mark.parametrize(
    ("text", "faulty"),
    [
        ("chat_template_kwargs:\n  thinking: 'false'", True),
        ('default_chat_template_kwargs: \'{"thinking": "false"}\'', True),
        ("chat_template_kwargs:\n  thinking: false", False),
        ("thinking: off", False),
    ],
)
def test_truth_values_of_profiles(text: str, faulty: bool) -> None:
    assert (codes(profile(text)) == ["SRV_STRING_FALSE"]) is faulty


@pytest.mark.parametrize(
    ("env", "wish", "faulty"),
    [
        ("SGLANG_HOST_IP=192.168.50.37", "fabric_subnet: 10.100.0.0/24", True),
        ("SGLANG_HOST_IP=127.0.0.1", "nnodes: 4", True),
        ("SGLANG_HOST_IP=spark1", "nnodes: 4", True),
        ("SGLANG_PLUGINS=sparkserve", "nnodes: 4", True),
        ("SGLANG_HOST_IP=10.100.0.1", "fabric_subnet: 10.100.0.0/24\nnnodes: 4", False),
        ("SGLANG_HOST_IP=127.0.0.1", "nnodes: 1", False),
        ("NCCL_SOCKET_IFNAME=enp1s0f0np0", "nnodes: 4", False),
    ],
)
def test_addresses_that_ranks_advertise(env: str, wish: str, faulty: bool) -> None:
    found = judged(("container env", env), ("profile", wish), node="spark1")
    assert (codes(found) == ["NET_SGLANG_HOST_IP"]) is faulty


def test_a_rank_without_the_address_that_others_have_is_named() -> None:
    readings = [
        Reading(what="container env", node="rank0", text="SGLANG_HOST_IP=10.100.0.1"),
        Reading(what="container env", node="rank1", text="NCCL_DEBUG=WARN"),
    ]
    found = diagnose(readings, theme.CHECKS).findings
    assert [(f.node, f.outcome) for f in found if f.code == "NET_SGLANG_HOST_IP"] == [
        ("rank0", "pass"), ("rank1", "fail"),
    ]  # fmt: skip


V41 = "model: deepseek-ai/DeepSeek-V4.1-Flash\n"


@pytest.mark.parametrize(
    ("text", "faulty"),
    [
        (V41 + "PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True", True),
        (
            "DSV41_CACHE_GIB=4\nPYTORCH_ALLOC_CONF=expandable_segments:True",
            True,
        ),
        (V41 + "PYTORCH_CUDA_ALLOC_CONF: expandable_segments:False", False),
        ("model: other\nPYTORCH_CUDA_ALLOC_CONF: expandable_segments:True", False),
    ],
)
def test_expandable_segments(text: str, faulty: bool) -> None:
    assert (codes(profile(text)) == ["ENG_EXPANDABLE_SEGMENTS"]) is faulty


@pytest.mark.parametrize(
    ("text", "faulty"),
    [
        ("nnodes: 3\ntp: 4", True),
        ("nnodes: 4\ntp: 2\npp_size: 2", False),
        ("nnodes: 4\ntp: 4", False),
        ("workers: [a, b, c]\ntp: 4", False),
        ("workers: [a, b, c]\ntp: 3", True),
        ("tp: 4", False),
    ],
)
def test_one_rank_per_node(text: str, faulty: bool) -> None:
    assert (codes(profile(text)) == ["ENG_RANKS_NODES"]) is faulty


@pytest.mark.parametrize(
    ("tp", "ep", "width"),
    [(3, 1, 768), (3, 3, 2304), (4, 1, 576), (4, 2, 1152), (4, 4, 2304), (8, 1, 288),
     (8, 2, 576), (8, 4, 1152)],
)  # fmt: skip
def test_expert_widths_follow_the_published_table(tp: int, ep: int, width: int) -> None:
    assert expert_width(2304, tp, ep) == width


@pytest.mark.parametrize(
    ("tp", "ep", "b12x", "flashinfer"),
    [(3, 1, True, True), (4, 1, True, False), (4, 2, True, True), (8, 1, False, False),
     (8, 2, True, False), (8, 4, True, True)],
)  # fmt: skip
def test_expert_kernels_take_the_widths_of_the_published_table(
    tp: int, ep: int, b12x: bool, flashinfer: bool
) -> None:
    text = V41 + f"tp: {tp}\nep: {ep}\nDSV41_TP_PAD: 1\n"
    for extra, good in (("DSV41_MOE_B12X_NEXT: 1", b12x),
                        ("moe_runner_backend: flashinfer_mxfp4", flashinfer)):  # fmt: skip
        found = profile(text + extra)
        assert codes(found) == ([] if good else ["ENG_EXPERT_WIDTH"])
        for finding in found:
            best = int(finding.fix.rpartition("=")[2])
            assert codes(profile(text.replace(f"ep: {ep}", f"ep: {best}") + extra)) == []


def test_ep_divides_tp() -> None:
    found = one(profile("tp: 4\nep: 3"), "ENG_TP_DIVISIBILITY")
    assert found.observed == "tp % ep = 4 % 3 = 1"
    assert found.expected.endswith("1, 2, 4")


def test_three_ranks_of_v41_need_padding_that_is_declared() -> None:
    found = one(profile(V41 + "tp: 3"), "ENG_TP_DIVISIBILITY")
    for remainder in ("64 % 3", "8 % 3", "129280 % 3"):
        assert remainder in found.observed
    assert profile(V41 + "tp: 3\nDSV41_TP_PAD: 1") == []
    assert codes(profile(V41 + "tp: 3\nDSV41_TP_PAD: 0")) == ["ENG_TP_DIVISIBILITY"]
    assert divisors(V41_SIZES, 4, 1) == divisors(V41_SIZES, 8, 2) == []


# Switches, ranges and numerics of the published recipes.


@pytest.mark.parametrize(
    ("text", "observed", "expected"),
    [
        ("DSV41_WO_A_W8_DROP=1\nDSV41_WO_A_W8=0", "DSV41_WO_A_W8=0", "DSV41_WO_A_W8=1"),
        ("DSV41_WO_A_W8_MID=1", "no DSV41_WO_A_W8", "DSV41_WO_A_W8=1"),
        ("DSV41_WO_A_W8=1\nTP_SIZE=3\nDSV41_TP_PAD=1", "688 MiB", "DSV41_WO_A_W8_DROP=1"),
        ("DSV41_ROUTER_LIVE=1", "no DSV41_VERIFY_CAP", "conf:0.1"),
        ("DSV41_DRAFT_TAU=0.7", "DSV41_DRAFT_TAU=0.7", "SGLANG_DSPARK_FOLDED_SAMPLING=2"),
        ("DSV41_SHARED_PAD_K=1\nDSV41_MXFP8_BACKEND=cutlass", "=cutlass", "=b12x"),
        ("DSV41_FAST_LOAD_EP_SIZE=2\nEP_SIZE=1", "ep 1", "DSV41_FAST_LOAD_EP_SIZE=1"),
        ("topology=ring\nSGLANG_ROCE_MAX_SIZE=2097152", "on a ring", "262144"),
    ],
)
def test_switches_without_what_they_need(text: str, observed: str, expected: str) -> None:
    found = one(profile(text), "ENG_SWITCH_NEEDS")
    assert observed in found.observed
    assert expected in found.expected


@pytest.mark.parametrize(
    "text",
    [
        "DSV41_WO_A_W8=1\nDSV41_WO_A_W8_DROP=1\nDSV41_WO_A_W8_MID=1",
        "DSV41_ROUTER_LIVE=1\nDSV41_VERIFY_CAP=conf:0.1",
        "DSV41_DRAFT_TAU=1\nDSV41_SHARED_PAD_K=1",
        "DSV41_DRAFT_TAU=0.7\nSGLANG_DSPARK_FOLDED_SAMPLING=2",
        "DSV41_FAST_LOAD_EP_SIZE=2\nEP_SIZE=2\nTP_SIZE=4",
        "SGLANG_ROCE_MAX_SIZE=2097152\ntopology=switch",
        "OFFLOAD_MODE=nvme\nSGLANG_FLASHINFER_MOE_FUSED_FINALIZE=0",
        "CONTEXT_LENGTH=2048",
        "MTP_NUM_TOKENS=5\nVLLM_PREFIX_CACHE_RETENTION_INTERVAL=4096",
        "MODE=dspark\nDCP_SIZE=1\nKV_OFFLOAD_GB=0",
        "MAX_NUM_SEQS=1\nMAX_CUDAGRAPH_CAPTURE_SIZE=24\nnum_speculative_tokens=5",
    ],
)
def test_published_combinations_are_silent(text: str) -> None:
    assert profile(text) == []


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("DSV41_TP_PAD=0\nCONTEXT_LENGTH=2048", "4096"),
        ("DSV41_TP_PAD=0\nCONTEXT_LENGTH=2000000", "1048576"),
        ("MTP_NUM_TOKENS=3", "5"),
        ("VLLM_PREFIX_CACHE_RETENTION_INTERVAL=1000", "1024"),
        ("MODE=dspark\nDCP_SIZE=2", "1"),
        ("KV_OFFLOAD_GB=8\nPYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
         "expandable_segments:False"),
        ("MAX_NUM_SEQS=6\nMAX_CUDAGRAPH_CAPTURE_SIZE=24\nnum_speculative_tokens=5", "36"),
        ("max_running_requests=16\ncuda_graph_max_bs=8", "16"),
    ],
)  # fmt: skip
def test_numbers_out_of_range_name_the_nearest_that_passes(text: str, fix: str) -> None:
    found = one(profile(text), "ENG_SETTING_RANGE")
    assert found.fix.endswith(f"={fix}")


def test_what_changes_results_or_fills_memory_is_named() -> None:
    assert codes(profile("SGLANG_FLASHINFER_MOE_FUSED_FINALIZE=1")) == ["ENG_NONDETERMINISTIC"]
    assert codes(profile("OFFLOAD_MODE=ram")) == ["MEM_ENGRAM_IN_RAM"]


@pytest.mark.parametrize(("requests", "free"), [(8, 2), (16, 3), (32, 4)])
def test_admission_waits_for_the_published_number_of_slots(requests: int, free: int) -> None:
    text = f"SPEC_ALGO=DSPARK\nMAX_RUNNING_REQUESTS={requests}"
    found = one(profile(text), "ENG_ADMISSION_DELAY")
    assert f"waits for {free} free slots" in found.observed
    assert found.severity == "info"
    assert profile(f"{text}\nmin_free_slots_delay=1") == []
    assert profile(text.replace(f"={requests}", "=7")) == []


# The memory plan of a launch.


def launch(available_gib: float, *, serving: bool = False, **context: Any) -> list[Finding]:
    own = scenes.profile(
        model={"path": "DeepSeek-V4.1-Flash", "served_name": "v41"},
        parallel={"tp": 4},
        context={
            "length_tokens": 1048576, "kv_tokens": 8_000_000, "mem_fraction_static": 0.8,
            "chunked_prefill_tokens": 256, "max_running_requests": 8,
        } | context,
        speculation={"algorithm": "DSPARK"},
        engram={"directory": "v41"},
        fabric={"nccl": {"NCCL_BUFFSIZE": "1048576"}},
        adapters={"engram_rows": {}},
    )  # fmt: skip
    cluster = scenes.cluster(4)
    read = MemoryFacts(
        total_bytes=round(121.7 * GIB), available_bytes=round(available_gib * GIB), free_bytes=GIB
    )
    held = HolderFacts(run_id="run" if serving else None, guard_pid=7 if serving else None)
    facts = {
        node.name: scenes.facts(n, memory_meminfo=read, runtime_holder=held)
        for n, node in enumerate(cluster.nodes, 1)
    }
    return list(judge([PLAN], Scene(own, cluster, facts)))


def test_a_launch_that_fits_passes_on_every_node() -> None:
    found = launch(118.0)
    assert [(f.node, f.verdict) for f in found] == [(f"spark{n}", "PASS") for n in range(1, 5)]


def test_a_launch_whose_pin_does_not_fit_is_stopped_with_exit_5() -> None:
    found = [f for f in launch(110.0) if f.outcome == "fail"]
    assert [(f.code, f.verdict, f.exit_code) for f in found] == [("MEM_KV_POOL_SMALL", "FAIL", 5)]
    assert "12.45 GiB" in found[0].observed
    tokens = int(found[0].fix.rpartition("=")[2])
    assert not [f for f in launch(110.0, kv_tokens=tokens) if f.blocks]


def test_nodes_that_serve_already_are_not_judged_by_what_is_left() -> None:
    assert launch(5.0, serving=True) == []


def test_other_models_and_engines_are_not_judged_by_these_figures() -> None:
    scene = Scene(scenes.profile(), scenes.cluster(), {"spark1": scenes.facts(1)})
    assert judge([PLAN], scene) == ()


def test_every_rule_tells_why_what_mends_it_and_what_users_see() -> None:
    for check in theme.CHECKS:
        assert check.why
        assert check.fix
        assert check.symptom
    assert len({check.id for check in theme.CHECKS}) == len(theme.CHECKS)


NONSENSE = ["9" * 3000, 10**400, -1, 0, 1e308, 1.5, "", None, True, [], {}, [1], {"a": 10**400}]


@pytest.mark.parametrize("key", [
    "context_length", "tp", "ep", "nnodes", "max_total_tokens", "shm_size", "mem_limit", "restart",
    "default_max_tokens", "max_num_batched_tokens", "DSV41_FAST_LOAD_EP_SIZE", "workers", "rank_of",
    "max_running_requests", "dcp_size", "kv_offload_gb", "topology", "pp_size",
])  # fmt: skip
def test_nonsense_in_a_setting_never_breaks_a_rule(key: str) -> None:
    sound = {
        "model": "deepseek-v4.1", "tp": 3, "topology": "ring", "nnodes": 4,
        "attention_backend": "b12x", "speculative_algorithm": "DSPARK", "context_length": 8192,
    }  # fmt: skip
    for value in NONSENSE:
        config = json.dumps({"num_attention_heads": value, "moe_intermediate_size": 5})
        judged(("profile", json.dumps(sound | {key: value})), ("config.json", config))
