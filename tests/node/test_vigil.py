"""When an engine is wedged and when memory ends a start, by samples alone."""

from __future__ import annotations

import pytest

from sparkserve.model.vigil import (
    EngineLook,
    GpuLook,
    MemoryRule,
    Wedge,
    WedgeRule,
    first_stop,
    frozen,
    wedge,
)
from sparkserve.node.wedge_watch import WedgeVigil, read_gpu, read_page

SGLANG = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 3.0
sglang:generation_tokens_total{is_streaming="true"} 40.0
sglang:generation_tokens_total{is_streaming="false"} 2.0
sglang:realtime_tokens_total{mode="decode"} 50.0
sglang:prompt_tokens_total{is_streaming="false"} 7.0
"""


def looks(*rows: tuple[float, float, float]) -> list[EngineLook]:
    return [EngineLook(at_s=at, running=running, generated=g) for at, running, g in rows]


def gpu(at_s: float, use: float | None = 96, power: float | None = 19.8) -> GpuLook:
    return GpuLook(at_s=at_s, utilization_percent=use, power_w=power)


class TestFrozen:
    def test_lasts_from_the_first_look_at_the_same_counters(self) -> None:
        still = frozen(looks((0, 2, 5), (10, 2, 9), (20, 2, 9), (30, 1, 9)))
        assert still is not None
        assert (still.since_s, still.for_s, still.running) == (10, 20, 1)

    @pytest.mark.parametrize(
        "rows",
        [[], [(0, 2, 5)], [(0, 2, 5), (10, 2, 6)], [(0, 2, 5), (10, 0, 5)],
         [(0, 0, 5), (10, 2, 5)]],
    )  # fmt: skip
    def test_is_nothing_while_tokens_come_or_nobody_asks(
        self, rows: list[tuple[float, float, float]]
    ) -> None:
        assert frozen(looks(*rows)) is None

    def test_ends_with_any_other_counter_that_moves(self) -> None:
        one = EngineLook(at_s=0, running=1, generated=5, others=(1.0,))
        assert frozen([one, one.model_copy(update={"at_s": 9.0, "others": (2.0,)})]) is None
        assert frozen([one, one.model_copy(update={"at_s": 9.0})]) is not None


class TestWedge:
    STILL = frozen(looks((0, 2, 9), (60, 2, 9)))

    def test_is_frozen_long_enough_at_the_power_of_an_idle_gpu(self) -> None:
        found = wedge(self.STILL, [gpu(0), gpu(30, 97, 20.4)])
        assert found == Wedge(
            frozen_s=60, running=2, generated=9, power_w=20.4, utilization_percent=96
        )
        assert str(found) == (
            "2 requests run, no token came for 60 s (counter 9), "
            "and the GPU is 96 % busy at 20.40 W"
        )

    @pytest.mark.parametrize(
        "seen",
        [[], [gpu(0, 96, 30.0)], [gpu(0, 80, 19.0)], [gpu(0, 96, None)], [gpu(0, None, 19.0)],
         [gpu(0), gpu(30, 96, 46.1)]],
    )  # fmt: skip
    def test_is_none_at_honest_or_unknown_power(self, seen: list[GpuLook]) -> None:
        assert wedge(self.STILL, seen) is None

    def test_is_none_a_second_too_early(self) -> None:
        assert wedge(frozen(looks((0, 2, 9), (59, 2, 9))), [gpu(0)]) is None


class TestVigil:
    def test_tells_once_engine_and_gpu_both_stood_long_enough(self) -> None:
        vigil = WedgeVigil(WedgeRule(after_s=60))
        told = []
        for at in range(0, 100, 10):
            still = vigil.engine(EngineLook(at_s=at, running=1, generated=3))
            told.append(still is not None and vigil.gpu(gpu(at), still) is not None)
        # Frozen is known from the second look on, so the GPU's minute ends at the eighth.
        assert told == [False] * 7 + [True] * 3

    def test_begins_anew_after_a_look_at_a_gpu_that_works(self) -> None:
        vigil = WedgeVigil(WedgeRule(after_s=60))
        told = []
        for at in range(0, 140, 10):
            still = vigil.engine(EngineLook(at_s=at, running=1, generated=3))
            power = 45.0 if at <= 60 else 19.0
            told.append(still is not None and vigil.gpu(gpu(at, 96, power), still) is not None)
        assert told.index(True) * 10 == 130

    def test_begins_anew_after_a_token(self) -> None:
        vigil = WedgeVigil(WedgeRule(after_s=20))
        for at in range(0, 60, 10):
            still = vigil.engine(EngineLook(at_s=at, running=1, generated=float(at // 20)))
            assert still is None or vigil.gpu(gpu(at), still) is None


class TestReading:
    def test_page_of_sglang(self) -> None:
        look = read_page(SGLANG, 1.0)
        assert (look.running, look.generated, look.others) == (3.0, 42.0, (50.0, 7.0))

    def test_page_of_vllm(self) -> None:
        page = 'vllm:num_requests_running{a="b"} 1.0\nvllm:generation_tokens_total 8e2\n'
        look = read_page(page, 1.0)
        assert (look.running, look.generated) == (1.0, 800.0)

    def test_page_that_counts_nothing_is_unknown(self) -> None:
        look = read_page("process_cpu_seconds_total 3\nnonsense --- \n", 1.0)
        assert (look.running, look.generated, look.others) == (None, None, ())

    @pytest.mark.parametrize(
        ("text", "values"),
        [
            ("96, 19.84\n", (96.0, 19.84)), ("96, [N/A]\n", (96.0, None)),
            ("[N/A], 19.84\n", (None, 19.84)), ("", (None, None)),
            ("NVIDIA-SMI has failed\n", (None, None)), ("96, 19.84\n5, 7.0\n", (96.0, 19.84)),
        ],
    )  # fmt: skip
    def test_gpu_is_known_or_unknown_never_zero(
        self, text: str, values: tuple[float | None, float | None]
    ) -> None:
        look = read_gpu(text, 1.0)
        assert (look.utilization_percent, look.power_w) == values


class TestMemory:
    def test_rule_of_the_reports_stops_at_the_first_sample_below(self) -> None:
        stop = first_stop([28.97, 28.96, 27.31, 23.79, 10.61, 6.27], 2.0)
        assert stop is not None
        assert stop[0] == 4
        assert "10.61 GiB is below the floor of 16 GiB" in stop[1]

    def test_fast_fall_stops_only_when_little_is_left(self) -> None:
        rule = MemoryRule(fall_gib_per_s=2, fall_below_gib=20)
        assert first_stop([40, 30, 24], 2.0, rule) is None
        stop = first_stop([24, 19], 2.0, rule)
        assert stop is not None
        assert "falls by 2.5 GiB/s" in stop[1]
        assert first_stop([24, 20], 2.0, rule) is None
        assert first_stop([19, 16, 13], 2.0, rule) is None

    def test_rule_of_a_plain_profile_never_stops(self) -> None:
        assert not MemoryRule().is_on
        assert first_stop([9, 1, 0], 2.0, MemoryRule()) is None
        assert first_stop([], 2.0) is None
