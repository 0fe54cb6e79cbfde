"""The earliest fault over all ranks is the cause; what follows from it is never blamed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sparkserve.engine.readiness import RankProgress
from sparkserve.engine.watcher import PATTERNS, Watcher, match


def fed(*lines: tuple[int, str]) -> Watcher:
    watcher = Watcher()
    for rank, line in lines:
        watcher.feed(rank, f"spark{rank + 1}", line)
    return watcher


class TestCause:
    def test_is_the_fault_even_when_its_consequence_arrived_first(self) -> None:
        watcher = fed(
            (0, "[rank0]: TCPStore: connection reset by peer"),
            (2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        )
        cause = watcher.cause()
        assert cause is not None
        assert (cause.rank, cause.pattern.name) == (2, "out-of-memory")

    def test_is_the_earliest_of_several_faults(self) -> None:
        watcher = fed((1, "ModuleNotFoundError: No module named 'x'"), (0, "MemoryError"))
        cause = watcher.cause()
        assert cause is not None
        assert cause.meaning == "the runtime is incomplete: No module named 'x'"

    def test_is_the_exception_not_the_word_traceback(self) -> None:
        watcher = fed(
            (0, "Traceback (most recent call last):"),
            (0, '  File "x.py", line 1, in <module>'),
            (0, "ValueError: bad value {braces}"),
        )
        cause = watcher.cause()
        assert cause is not None
        assert cause.meaning == "the engine raised ValueError: bad value {braces}"

    def test_is_a_consequence_only_where_nothing_else_is_known(self) -> None:
        cause = fed((0, "NCCL WARN Net : Connection closed by remote peer")).cause()
        assert cause is not None
        assert cause.meaning == "this rank lost another rank"

    def test_is_none_in_a_healthy_log(self) -> None:
        assert fed((0, "Load weight begin. avail mem=110.00 GB"), (0, "INFO ok")).cause() is None

    def test_can_be_asked_of_one_rank(self) -> None:
        watcher = fed((0, "MemoryError"), (1, "Unable to find address for: enp9"))
        cause = watcher.cause(1)
        assert cause is not None
        assert cause.meaning == "this node has no interface enp9 with an address"


def test_refusal_of_ours_keeps_its_reason() -> None:
    cause = fed((0, "sparkserve: FATAL engram_rows target moved in 0.5.24")).cause()
    assert cause is not None
    assert cause.meaning == "sparkserve refused to serve: engram_rows target moved in 0.5.24"


def test_only_the_newest_lines_are_kept() -> None:
    watcher = fed(*((0, f"line {n}") for n in range(500)))
    assert watcher.last_lines(0)[-1] == "line 499"
    assert len(watcher.last_lines(0)) == 20
    assert watcher.last_lines(3) == ()


def test_pattern_names_are_unique_and_meanings_complete() -> None:
    assert len({pattern.name for pattern in PATTERNS}) == len(PATTERNS)


class TestProgress:
    def test_moves_through_the_phases_of_a_real_start(self) -> None:
        lines = [
            ("[2026-11-30 12:00:01] server_args=ServerArgs(model_path='m')", "starting"),
            ("[2026-11-30 12:00:02 TP0] Init torch distributed begin.", "rendezvous"),
            ("[2026-11-30 12:00:03 TP0] Load weight begin. avail mem=20.00 GB", "weights"),
            (
                "Loading safetensors checkpoint shards:  50% Completed | 24/48 [00:01<00:01]",
                "weights 24/48",
            ),
            ("[2026-11-30 12:00:09 TP0] Load weight end. elapsed=6.00 s", "memory pool"),
            ("[2026-11-30 12:00:11 TP0] Capture decode CUDA graph begin. bs", "graphs"),
            ("INFO:     Uvicorn running on http://127.0.0.1:8888", "warm-up"),
            ("[2026-11-30 12:00:20] The server is fired up and ready to roll!", "serving"),
        ]
        progress = RankProgress()
        for line, described in lines:
            progress = progress.after(line)
            assert progress.describe() == described

    def test_knows_the_rendezvous_of_both_engine_versions(self) -> None:
        for line in ("Init torch distributed begin.", "[2026-11-30 18:20:08] Init parallel begin."):
            assert RankProgress().after(line).phase == "rendezvous"

    def test_never_goes_back(self) -> None:
        progress = RankProgress(phase="serving").after("Load weight begin.")
        assert progress.phase == "serving"

    def test_counts_the_shards_of_both_loaders(self) -> None:
        for loader in ("Loading safetensors checkpoint shards", "Multi-thread loading shards"):
            after = RankProgress(phase="weights").after(f"{loader}:  25% Completed | 12/48 [0:01]")
            assert after.describe() == "weights 12/48"

    def test_reads_the_size_of_the_kv_pool(self) -> None:
        line = "max_total_num_tokens=4096, chunked_prefill_size=2048, max_running_requests=16"
        assert RankProgress().after(line).kv_tokens == 4096

    @pytest.mark.parametrize("line", ["", "nothing to see", "Load weights maybe"])
    def test_says_nothing_about_other_lines(self, line: str) -> None:
        assert RankProgress().after(line) == RankProgress()


READY = "[2026-11-30 12:00:20] The server is fired up and ready to roll!"
DECODED = "[2026-11-30 12:01:00 TP0] Decode batch, #running-req: 1, #token: 12, token usage: 0.00"


def named(watcher: Watcher, rank: int | None = None) -> tuple[int, str] | None:
    cause = watcher.cause(rank)
    return (cause.rank, cause.pattern.name) if cause else None


class TestWeight:
    @pytest.mark.parametrize(
        "later", [READY, DECODED, "[x TP0] Load weight begin. avail mem=20.00 GB"]
    )
    def test_fault_after_which_the_rank_got_on_is_no_cause(self, later: str) -> None:
        early = "ModuleNotFoundError: No module named 'deep_ep'"
        assert named(fed((0, early), (0, later))) is None
        assert named(fed((0, early), (0, later), (0, "MemoryError"))) == (0, "out-of-memory")

    def test_another_ranks_progress_settles_nothing(self) -> None:
        assert named(fed((1, "MemoryError"), (0, READY))) == (1, "out-of-memory")

    def test_line_that_calls_itself_a_warning_gives_way_to_an_error_after_it(self) -> None:
        early = "WARNING: ImportError: cannot import flash_attn, falling back to triton"
        assert named(fed((0, early), (1, "MemoryError"))) == (1, "out-of-memory")
        assert named(fed((0, early))) == (0, "missing-module")

    def test_word_warn_of_nccl_is_a_level_not_a_weight(self) -> None:
        line = "spark2:5:7 [0] NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate"
        assert named(fed((0, "Broken pipe"), (1, line))) == (1, "rdma-registration")

    def test_error_far_before_the_last_one_gives_way(self) -> None:
        work = [(0, f"[12:00:{n} TP0] tuning kernel {n}") for n in range(150)]
        watcher = fed((0, "ValueError: no such tuning file"), *work, (0, "MemoryError"))
        assert named(watcher) == (0, "out-of-memory")

    def test_root_of_a_long_report_of_vllm_is_the_cause(self) -> None:
        head = "(EngineCore_DP0 pid=276) ERROR 09-14 10:21:10 [core.py:710] "
        frames = [(0, f'{head}  File "/x/{n}.py", line {n}, in f') for n in range(150)]
        watcher = fed(
            (0, f"{head}Traceback (most recent call last):"), *frames,
            (0, f"{head}ValueError: bad block size"), *frames,
            (0, "RuntimeError: Engine core initialization failed. See root cause above."),
        )  # fmt: skip
        cause = watcher.cause()
        assert cause is not None
        assert cause.meaning == "the engine raised ValueError: bad block size"

    def test_first_of_two_known_errors_close_together_is_the_cause(self) -> None:
        watcher = fed((0, "Unable to find address for: enp9"), (0, "a line"), (0, "MemoryError"))
        assert named(watcher) == (0, "no-interface")

    def test_exception_is_explained_by_the_known_line_after_it(self) -> None:
        watcher = fed(
            (0, "triton.runtime.errors.PTXASError: PTXAS error: internal error"),
            (0, "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'"),
        )
        assert named(watcher) == (0, "ptxas-unknown-gpu")

    def test_rank_that_waited_in_vain_is_explained_by_another_ranks_error(self) -> None:
        waited = (
            "DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."
        )
        assert named(fed((0, waited), (1, "ModuleNotFoundError: x"))) == (1, "missing-module")
        assert named(fed((0, waited))) == (0, "clients-missing")

    def test_collective_that_timed_out_is_explained_by_a_compilation_while_serving(self) -> None:
        watcher = fed(
            (1, "WARNING CuTeDSL JIT compilation during inference: FusedMoe. This causes a spike"),
            (0, "WorkNCCL(SeqNum=8, OpType=ALLGATHER, NumelIn=1, Timeout(ms)=600000) ran for"),
        )
        assert named(watcher) == (1, "jit-while-serving")

    def test_compilation_alone_ends_nothing(self) -> None:
        assert named(fed((0, "JIT compilation during inference: FusedMoe."))) is None


class TestTime:
    def at(self, second: int) -> datetime:
        return datetime(2026, 9, 14, 10, 21, second, tzinfo=UTC)

    def test_earliest_counts_whatever_arrived_first(self) -> None:
        watcher = Watcher()
        watcher.feed(0, "spark1", "MemoryError", self.at(30))
        watcher.feed(1, "spark2", "Unable to find address for: enp9", self.at(12))
        assert named(watcher) == (1, "no-interface")

    def test_arrival_counts_where_one_line_has_no_time(self) -> None:
        watcher = Watcher()
        watcher.feed(0, "spark1", "MemoryError", self.at(30))
        watcher.feed(1, "spark2", "Unable to find address for: enp9")
        assert named(watcher) == (0, "out-of-memory")

    def test_arrival_counts_within_the_slack_of_coarse_clocks(self) -> None:
        watcher = Watcher()
        watcher.feed(0, "spark1", "MemoryError", self.at(13))
        watcher.feed(1, "spark2", "Unable to find address for: enp9", self.at(12))
        assert named(watcher) == (1, "no-interface")
        cause = watcher.cause(slack_s=1.0)
        assert cause is not None
        assert cause.rank == 0


class TestStall:
    STOOD = "CustomAllreduce is disabled because this process group spans across nodes."

    def test_is_the_newest_line_that_stood_long_enough(self) -> None:
        watcher = fed((0, self.STOOD))
        assert watcher.stall(0, 119.0) is None
        stall = watcher.stall(0, 120.0)
        assert stall is not None
        assert "SGLANG_HOST_IP" in stall.meaning

    def test_ends_with_the_next_line(self) -> None:
        assert fed((0, self.STOOD), (0, "Init torch distributed ends.")).stall(0, 500.0) is None

    def test_of_a_rank_without_lines_is_none(self) -> None:
        assert Watcher().stall(3, 500.0) is None


def test_endless_line_of_a_live_log_is_weighed_by_its_beginning() -> None:
    line = "Capture graph " * 20_000
    found = match(f"sparkserve: FATAL no checkpoint {line}")
    assert found is not None
    assert found.name == "refused"
    assert match(f"{line} Corrupted safetensors file detected: a.safetensors") is None
