"""Clocks under load, heat, and a steady piece of work."""

from __future__ import annotations

import pytest

from sparkserve.facts.baseline import NodeBaseline
from sparkserve.model.reading import Reading
from tests.checks.texts import about, command, failing, loud, what

STUCK, SLOW = "PWR_CLOCK_STUCK", "PWR_HIDDEN_SLOW_STATE"
QUERY = (
    "nvidia-smi --query-gpu=utilization.gpu,clocks.sm,temperature.gpu,clocks_event_reasons.active"
    " --format=csv,noheader,nounits"
)


def smi(*rows: str, node: str = "spark2") -> Reading:
    return command(QUERY, "\n".join(rows), node)


class TestClock:
    def test_low_clock_under_load_without_a_reason_fails(self) -> None:
        (found,) = failing(STUCK, smi("97, 799, 44, 0x0", "96, 820, 44, 0x0", "96, 810, 45, 0x0"))
        assert (found.node, found.verdict) == ("spark2", "FAIL")
        assert "810 MHz at 96 %" in found.observed
        assert "240 W" in found.fix

    def test_the_same_is_seen_in_other_forms(self) -> None:
        dmon = "# gpu pwr gtemp sm pclk\n 0 14 46 96 507\n 0 14 46 96 513\n"
        assert failing(STUCK, command("nvidia-smi dmon -c 2", dmon, "a"))
        units = "clocks.current.sm [MHz], utilization.gpu [%]\n721 MHz, 95 %\n718 MHz, 96 %\n"
        query = "nvidia-smi --format=csv --query-gpu=clocks.sm,utilization.gpu -l 5"
        (found,) = failing(STUCK, command(query, units, "a"))
        assert "reasons unknown" in found.observed

    @pytest.mark.parametrize(
        "rows",
        [
            ("0, 208, 39, 0x1", "0, 208, 39, 0x1"),
            ("79, 507, 46, 0x0", "79, 507, 46, 0x0"),
            ("96, 1209, 60, 0x0", "96, 1300, 60, 0x0"),
            ("96, 900, 60, 0x2", "96, 900, 60, 0x2"),
            ("96, 507, 46, 0x0", "96, 2400, 60, 0x0", "96, 2410, 61, 0x0"),
            ("[N/A], [N/A], 46, [N/A]",),
        ],
    )
    def test_idle_capped_and_usual_clocks_are_quiet(self, rows: tuple[str, ...]) -> None:
        assert loud(smi(*rows)) == []

    def test_one_look_is_not_enough(self) -> None:
        (found,) = about(STUCK, smi("96, 507, 46, 0x0"))
        assert found.outcome == "unknown"

    @pytest.mark.parametrize("row", ["96, 700, 84, 0x0", "96, 700, 60, 0x40"])
    def test_limit_that_is_told_is_another_fault(self, row: str) -> None:
        assert not about(STUCK, smi(row, row))
        (found,) = failing("PWR_HOT", smi(row, row))
        assert found.verdict == "WARN"

    def test_heat_alone_is_a_warning(self) -> None:
        (found,) = failing("PWR_HOT", smi("96, 2400, 91, 0x0"))
        assert found.observed == "91 C"
        assert loud(smi("96, 2400, 84, 0x0")) == []


class TestCanary:
    def samples(self, text: str, node: str = "node1", note: str = "ms per step") -> Reading:
        return what("canary samples", text, node, note=note)

    def test_slow_state_is_told_against_the_best(self) -> None:
        (found,) = failing(SLOW, self.samples("50 50 80 80 80", note="ms per step, best known 50"))
        assert found.verdict == "WARN"
        assert "bimodal, current 80.0 ms / best 50 ms = 1.60" in found.observed

    @pytest.mark.parametrize("text", ["50 51 50", "50 50 69 70 70", "50 50 200 50 50 50"])
    def test_usual_times_are_quiet(self, text: str) -> None:
        assert loud(self.samples(text, note="ms per step, best known 50")) == []

    def test_nodes_own_record_is_its_best(self) -> None:
        record = what("node baseline", NodeBaseline(best_canary_ms=50).model_dump_json(), "node1")
        assert loud(self.samples("80 80 80")) == []
        assert failing(SLOW, self.samples("80 80 80"), record)

    def test_nodes_that_differ_are_told(self) -> None:
        (found,) = failing(SLOW, self.samples("60 60 60"), self.samples("90 90 90", "node2"))
        assert (found.node, found.verdict) == ("node2", "WARN")
        assert "node1 takes 60.0 ms = 1.50" in found.observed
        assert loud(self.samples("60 60 60"), self.samples("78 78 78", "node2")) == []
