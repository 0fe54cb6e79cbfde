"""One cause over all ranks, what follows from it, and lines whose figures decide."""

from __future__ import annotations

import pytest

from sparkserve.checks import logs
from sparkserve.checks.check import judge
from sparkserve.checks.scene import Scene
from sparkserve.facts.reader import understand
from sparkserve.facts.registry import READERS
from sparkserve.model.finding import Finding
from sparkserve.model.reading import Reading
from tests.casefiles import ALL

Findings = dict[str, list[Finding]]


def judged(*readings: Reading) -> Findings:
    """Failed findings by code."""
    scene = Scene(None, None, observations=understand(readings, READERS).observations)
    found: Findings = {}
    for one in judge(logs.CHECKS, scene):
        if one.outcome != "pass":
            found.setdefault(one.code, []).append(one)
    return found


def of_case(number: str) -> Findings:
    (variant,) = (v for v in ALL if v.id.startswith(f"{number}-") and v.kind == "faulty")
    return judged(*variant.readings)


def log(text: str, node: str | None = None, note: str = "", what: str = "engine log") -> Reading:
    return Reading(text=text, what=what, node=node, note=note)


def profile(text: str) -> Reading:
    return Reading(text=text, what="profile", format="yaml")


class TestFirstError:
    def test_names_rank_time_and_the_three_consequences(self) -> None:
        (found,) = of_case("B29")["LOG_FIRST_ERROR_WINS"]
        assert found.node == "rank0"
        assert "root cause: rank0 at 10:21:10" in found.observed
        assert "109.53 GiB are free" in found.observed
        assert "3 later lines are consequences" in found.observed
        for words in ("sendBytes failed", "heartbeat error", "rank2", "Connection reset by peer"):
            assert words in found.observed

    def test_does_not_depend_on_the_order_of_the_logs(self) -> None:
        lost = log("2026-09-14T10:21:25Z [Rank 1] sendBytes failed: Broken pipe", "gx1")
        cause = log("2026-09-14T10:21:10Z MemoryError", "gx7")
        for readings in ((lost, cause), (cause, lost)):
            (found,) = judged(*readings)["LOG_FIRST_ERROR_WINS"]
            assert found.node == "gx7"
            assert "1 later line is a consequence" in found.observed

    def test_corrects_times_by_clocks_that_are_known_to_be_wrong(self) -> None:
        lost = log("2026-09-14T10:21:10Z MemoryError", "gx1")
        cause = log("2026-09-14T10:21:30Z Unable to find address for: e1", "gx2", "clock 25 s fast")
        late = log("2026-09-14T10:21:40Z Broken pipe", "gx3")
        (found,) = judged(lost, cause, late)["LOG_FIRST_ERROR_WINS"]
        assert found.node == "gx2"

    def test_reads_the_ranks_of_one_joined_log(self) -> None:
        text = (
            "[2026-09-14 10:21:25 TP0] Connection reset by peer\n"
            "[2026-09-14 10:21:10 TP1] torch.OutOfMemoryError: CUDA out of memory.\n"
        )
        (found,) = judged(log(text, "host"))["LOG_FIRST_ERROR_WINS"]
        assert found.node == "rank1"

    def test_compares_times_with_and_without_a_year(self) -> None:
        early = log("(Engine pid=1) ERROR 09-14 10:21:10 [x.py:1] MemoryError", "rank1")
        late = log("[2026-09-14 10:21:30 TP0] ValueError: x\n[2026-09-14 10:21:31 TP0] Broken pipe")
        (found,) = judged(late, early)["LOG_FIRST_ERROR_WINS"]
        assert found.node == "rank1"

    def test_sends_the_reader_of_mere_consequences_to_the_other_logs(self) -> None:
        (found,) = judged(log("Connection reset by peer", "rank1"))["LOG_FIRST_ERROR_WINS"]
        assert (found.outcome, found.severity) == ("unknown", "warning")
        assert "other ranks" in found.fix

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[2026-09-14 10:21:03 TP0] Load weight begin. avail mem=104.31 GB\n",
            "WARNING ImportError: no flash_attn, falling back to triton\n",
            "ValueError: x\n[2026-09-14 10:21:03] The server is fired up and ready to roll!\n",
            "[W914 10:21:04.12 ProcessGroupNCCL.cpp:5023] using GPU 0; watchdog is on\n",
        ],
    )
    def test_has_nothing_to_say_of_a_log_that_ends_well(self, text: str) -> None:
        assert judged(log(text, "rank0")) == {}


class TestKnownLines:
    def test_workspace_tells_what_it_needs_and_has(self) -> None:
        (found,) = of_case("B61")["ENG_LOCKED_WORKSPACE"]
        assert "1949.52 MB" in found.observed
        assert "1157.00 MB" in found.observed

    def test_compilation_while_serving_names_the_kernel_and_only_warns(self) -> None:
        (found,) = of_case("B59")["ENG_JIT_MIDSERVE"]
        assert (found.node, found.verdict) == ("rank1", "WARN")
        assert "W4A16FusedMoeKernel" in found.observed

    def test_every_compiled_kernel_is_named_once(self) -> None:
        lines = "".join(f"JIT compilation during inference: {k}. x\n" for k in ("A", "B", "A"))
        (found,) = judged(log(lines, "rank2"))["ENG_JIT_MIDSERVE"]
        assert found.observed.count("kernel A") == found.observed.count("kernel B") == 1

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("    at ncclTransportTreeConnect -> ncclCommInitRank", "NET_RING_TREE"),
            ("Unable to find address for: enp9s0", "NET_IFNAME_ABSENT"),
            ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
             "CTR_PTXAS_SM121"),
            ("exec /entry: exec format error", "CTR_WRONG_ARCH"),
            ("exportfs: /srv/x does not support NFS export", "CTR_NFS_EXPORT_OVERLAY"),
            ("launch_server.py: error: unrecognized arguments: --nnodes", "ENG_UNKNOWN_FLAG"),
            ("OSError: [Errno 98] Address already in use", "ENG_PORT_BUSY"),
            ("Corrupted safetensors file detected: /m/a.safetensors - x",
             "STO_CORRUPT_WIPES_MODEL"),
        ],
    )  # fmt: skip
    def test_line_that_has_one_reason_only_is_enough(self, text: str, code: str) -> None:
        (found,) = judged(log(text, "spark7"))[code]
        assert (found.node, found.verdict) == ("spark7", "FAIL")
        assert found.fix

    def test_line_with_several_reasons_proves_none_of_them(self) -> None:
        line = "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
        found = judged(log(line, "rank1"))
        assert set(found) == {"LOG_FIRST_ERROR_WINS"}
        assert "ulimit -l" in found["LOG_FIRST_ERROR_WINS"][0].fix

    def test_reasoning_parser_stays_wrong_though_the_server_is_up(self) -> None:
        text = "WARNING Auto-initialization of reasoning token IDs failed.\nready to roll\n"
        text += "The server is fired up and ready to roll!\n"
        assert "SRV_REASONING_PARSER_INIT" in judged(log(text, "rank0"))


class TestRankThatNeverJoined:
    def test_cause_comes_from_the_other_ranks_log(self) -> None:
        (found,) = of_case("B63")["ENG_RANK_NEVER_JOINED"]
        assert found.node == "rank1"
        assert "ModuleNotFoundError: No module named 'sparkserve_adapter'" in found.observed
        assert "1 of 2 ranks met within 601 s" in found.observed
        assert "exit code 1" in found.observed

    def test_container_that_ended_is_the_place_where_its_log_says_nothing(self) -> None:
        text = "wait timeout after 600000ms, keys: /default_pg/0//cpu//0/1"
        ended = Reading(
            text="exited 1", node="gx2",
            command="docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' rank1",
        )  # fmt: skip
        (found,) = judged(log(text, "gx1"), ended)["ENG_RANK_NEVER_JOINED"]
        assert found.node == "gx2"
        assert "exited with exit code 1" in found.observed

    def test_without_that_log_it_says_so(self) -> None:
        text = "DistStoreError: Timed out after 30 seconds waiting for clients. 3/4 clients joined."
        (found,) = judged(log(text, "head"))["ENG_RANK_NEVER_JOINED"]
        assert found.node == "head"
        assert "log is not here" in found.why


class TestGraphs:
    def test_tell_cause_consequence_and_when_the_guard_would_have_fired(self) -> None:
        (found,) = of_case("B73")["ENG_GRAPH_CAPTURE_FAILED"]
        assert found.node == "rank0"
        assert "root cause: rank0" in found.observed
        assert "CUDA out of memory. Tried to allocate 448.00 MiB" in found.observed
        assert "rank1 is a consequence" in found.observed
        assert "would have fired at 10.61" in found.observed

    def test_lost_connection_alone_is_not_this_fault(self) -> None:
        text = "Exception: Capture cuda graph failed: pair.cc:534] Connection closed by peer"
        assert set(judged(log(text, "rank1"))) == {"LOG_FIRST_ERROR_WINS"}


class TestStall:
    LINE = "[2026-09-14 10:21:04 TP0] CustomAllreduce is disabled because this process group spans "
    LINE += "across nodes."

    def test_line_that_stays_the_newest_names_the_address(self) -> None:
        (found,) = of_case("B07")["NET_SGLANG_HOST_IP"]
        assert found.node == "head"
        assert "INIT_STALL" in found.observed
        assert "130 s" in found.observed
        assert "SGLANG_HOST_IP" in found.why + found.fix

    @pytest.mark.parametrize(
        "note", ["newest line is 3 min old", "tail, read at 10:23:40", "date there: 10:24:00"]
    )
    def test_age_is_told_in_several_ways(self, note: str) -> None:
        assert "NET_SGLANG_HOST_IP" in judged(log(self.LINE, "gx7", note))

    def test_age_is_known_by_samples_in_which_no_line_came(self) -> None:
        rows = Reading(text="t log_lines\n0 3\n60 3\n125 3\n", what="progress samples", node="gx7")
        (found,) = judged(log(self.LINE, "gx7"), rows)["NET_SGLANG_HOST_IP"]
        assert "for 125 s" in found.observed

    @pytest.mark.parametrize("note", ["", "no newer line for 60 s", "tail, read at 10:21:40"])
    def test_line_that_is_young_or_of_unknown_age_is_none(self, note: str) -> None:
        assert judged(log(self.LINE, "head", note)) == {}

    def test_line_that_was_followed_by_another_is_none(self) -> None:
        text = f"{self.LINE}\n[2026-09-14 10:21:05 TP0] Init torch distributed ends.\n"
        assert judged(log(text, "head", "no newer line for 600 s")) == {}


class TestPool:
    def test_smaller_than_context_and_pin_shows_how_it_came_about(self) -> None:
        (found,) = of_case("B27")["MEM_KV_POOL_SMALL"]
        assert found.node == "rank0"
        assert "841925" in found.observed
        assert "context 1048576" in found.observed
        # (1.98 - 0.67) * 2^30 / 1670.75, worked out by hand.
        assert "841898" in found.observed

    @pytest.mark.parametrize(
        "line",
        ["full_token=99999", "max_total_num_tokens=99999, chunked_prefill_size=4096",
         "GPU KV cache size: 99,999 tokens"],
    )  # fmt: skip
    def test_is_read_from_every_engines_line(self, line: str) -> None:
        wish = profile("context_length: 100000\n")
        assert "MEM_KV_POOL_SMALL" in judged(log(line, "rank0"), wish)
        assert judged(log(line.replace("99", "10"), "rank0"), profile("context_length: 5000")) == {}

    def test_is_compared_with_the_context_of_the_line_itself(self) -> None:
        line = "max_total_num_tokens=4096, max_running_requests=16, context_len=8192"
        assert "MEM_KV_POOL_SMALL" in judged(log(line, "rank0"))

    def test_without_a_context_nobody_can_tell(self) -> None:
        assert judged(log("full_token=5", "rank0")) == {}


class TestAcceptance:
    def test_none_of_many_drafts_is_a_fault(self) -> None:
        (found,) = of_case("B67")["ENG_GARBLED_FROM_DRIFT"]
        assert "0 of 1250" in found.observed

    def test_is_counted_over_lines_of_decode_steps(self) -> None:
        line = "Decode batch, #running-req: 1, accept len: 1.00, accept rate: 0.00, gen: 5.1\n"
        assert "ENG_GARBLED_FROM_DRIFT" in judged(log(line * 5, "rank0"))
        assert judged(log(line * 4, "rank0")) == {}
        better = line.replace("1.00", "2.40").replace("0.00", "0.28")
        assert judged(log(line * 5 + better, "rank0")) == {}

    @pytest.mark.parametrize(
        "line",
        ["Accepted: 0 tokens, Drafted: 0 tokens", "Accepted: 0 tokens, Drafted: 60 tokens",
         "Accepted: 310 tokens, Drafted: 900 tokens"],
    )  # fmt: skip
    def test_few_or_accepted_drafts_are_none(self, line: str) -> None:
        assert judged(log(line, "rank0")) == {}


def test_traceback_of_a_lost_connection_in_a_real_engines_form_is_a_consequence() -> None:
    text = (
        "[2026-11-30 21:58:03 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/sglang/srt/managers/scheduler.py", line 6368, in run_scheduler_process\n'
        "    scheduler.run_event_loop()\n"
        "    work.wait()\n"
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection "
        "closed by peer [127.0.0.1]:11423. This is caused by a remote worker crashing.\n\n"
        "[2026-11-30 21:58:03] Received sigquit from a child process. It usually means the child "
        "failed.\n"
    )
    (found,) = judged(log(text, "rank1"))["LOG_FIRST_ERROR_WINS"]
    assert found.outcome == "unknown"
    cause = log("[2026-11-30 21:58:02 TP0] torch.OutOfMemoryError: CUDA out of memory.", "rank0")
    (found,) = judged(log(text, "rank1"), cause)["LOG_FIRST_ERROR_WINS"]
    assert found.node == "rank0"
    assert "2 later lines are consequences" in found.observed


def test_error_of_a_helper_before_ready_is_no_cause_of_anything() -> None:
    text = (
        "[2026-11-30 18:58:57] INFO:     Uvicorn running on http://127.0.0.1:8888\n"
        "[2026-11-30 18:58:57] post-warmup freeze_gc failed\n"
        "Traceback (most recent call last):\n"
        '  File "/x/urllib3/connection.py", line 239, in _new_conn\n'
        "ConnectionRefusedError: [Errno 111] Connection refused\n\n"
        "[2026-11-30 18:59:02] The server is fired up and ready to roll!\n"
    )
    assert judged(log(text, "rank0")) == {}
