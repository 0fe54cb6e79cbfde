"""The earliest fault over all ranks is the cause; what follows from it is never blamed."""

from __future__ import annotations

import pytest

from sparkserve.engine.readiness import RankProgress
from sparkserve.engine.watcher import PATTERNS, Watcher


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
