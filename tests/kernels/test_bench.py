"""The benchmark's rules, on cases and a clock of the tests' own: no GPU takes part."""

import dataclasses
import json
import math

import pytest
import torch
from sparkserve_kernels import bench, bench_case, bench_timing, registry
from sparkserve_kernels.bench_case import Bar, BenchCase, Work
from sparkserve_kernels.files import write_whole

BANDWIDTH_GBS = 1000.0


class Clock:
    """Stands in for the GPU: a call's time is what the case says it is."""

    def __init__(self, monkeypatch):
        self.timed = []
        self.copies = []
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(bench_timing, "time_calls_us", self.time_calls_us)
        monkeypatch.setattr(bench_timing, "copies_for", lambda size: max(2, 100 // size))

    def time_calls_us(self, call, copies):
        self.timed.append(call)
        self.copies.append(copies)
        return [call(index % copies) for index in range(5)]


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def case(ours_us=10.0, stock_us=20.0, *, error=0.0, **changed):
    """A case whose calls take as long as they are said to."""

    def prepare(copies):
        assert copies >= 2
        return Work(lambda _: ours_us, lambda _: stock_us)

    values = {
        "op": "twice",
        "name": "rows=6",
        "rows": 6,
        "bytes_moved": 5_000_000,
        "bytes_per_copy": 10,
        "prepare": prepare,
        "stock_name": "stock",
        "gate": (lambda seed: error) if not callable(error) else error,
        "max_error": 0.01,
        **changed,
    }
    return BenchCase(**values)


class TestRun:
    def test_a_green_case_is_timed_beside_its_stock_alternative(self, clock):
        record = bench.run(case(flops=2_000_000_000), BANDWIDTH_GBS, 0)
        assert record["gate"] == "green"
        assert record["time_us"] == {"p20": 10.0, "p50": 10.0, "p80": 10.0}
        assert record["stock_us"]["p50"] == 20.0
        assert record["speedup"] == 2.0
        assert record["gbs"] == 500.0  # 5 MB in 10 us
        assert record["read_fraction"] == 0.5
        assert record["tflops"] == 200.0
        assert (record["copies"], record["rotated_bytes"]) == (10, 100)
        assert clock.copies == [10, 10]
        assert "faults" not in record

    def test_a_case_may_say_how_many_copies_rotate(self, clock):
        record = bench.run(case(copies=700), BANDWIDTH_GBS, 0)
        assert (record["copies"], record["rotated_bytes"]) == (700, 7000)

    @pytest.mark.parametrize("error", [0.011, math.inf, math.nan])
    def test_a_red_gate_gives_no_time(self, error, clock):
        record = bench.run(case(error=error), BANDWIDTH_GBS, 0)
        assert record["gate"] == "red"
        assert "time_us" not in record
        assert clock.timed == []
        assert f"error {error:.3g}, expected at most 0.01" in record["faults"][0]
        json.dumps(record, allow_nan=False)

    def test_the_bound_itself_is_green(self, clock):
        assert bench.run(case(error=0.01), BANDWIDTH_GBS, 0)["gate"] == "green"

    def test_a_gate_that_breaks_is_red_and_shows_where(self, clock):
        def broken(seed):
            raise RuntimeError(f"no luck with seed {seed}")

        record = bench.run(case(error=broken), BANDWIDTH_GBS, 7)
        assert record["gate"] == "red"
        assert "twice rows=6: no luck with seed 7" in record["faults"][0]
        assert "in broken" in record["faults"][0]
        assert clock.timed == []

    def test_a_case_that_cannot_be_timed_is_a_fault_without_a_time(self, clock):
        def unable(copies):
            raise RuntimeError("out of memory")

        record = bench.run(case(prepare=unable), BANDWIDTH_GBS, 0)
        assert (record["gate"], "time_us" in record) == ("green", False)
        assert "out of memory" in record["faults"][0]


class TestBars:
    @pytest.mark.parametrize(
        ("bar", "met"),
        [
            (Bar(read_fraction=0.5), True),
            (Bar(read_fraction=0.501), False),
            (Bar(speedup=2.0), True),
            (Bar(speedup=2.01), False),
            (Bar(below_us=10.1), True),
            (Bar(below_us=10.0), False),
        ],
    )
    def test_each_bar_is_met_or_missed(self, bar, met, clock):
        (judged,) = bench.run(case(bar=bar), BANDWIDTH_GBS, 0)["bars"]
        assert judged["met"] is met
        assert getattr(bar, judged["bar"]) == judged["asked"]

    def test_a_case_has_as_many_bars_as_are_asked(self, clock):
        assert bench.run(case(), BANDWIDTH_GBS, 0)["bars"] == []
        asked = case(bar=Bar(read_fraction=0.1, speedup=9.0, below_us=1.0))
        judged = bench.run(asked, BANDWIDTH_GBS, 0)["bars"]
        assert [(one["bar"], one["met"]) for one in judged] == [
            ("read_fraction", True),
            ("speedup", False),
            ("below_us", False),
        ]

    def test_a_missed_bar_is_shown(self, clock, capsys):
        bench._show(bench.run(case(bar=Bar(speedup=3.0)), BANDWIDTH_GBS, 0), as_json=False)
        assert "2.00 x stock  below its bar: speedup" in capsys.readouterr().out


class TestBaseline:
    def lines(self, *records):
        return "".join(json.dumps(record) + "\n" for record in records)

    def result(self, p50, name="rows=6", op="twice"):
        return {"kind": "result", "op": op, "case": name, "time_us": {"p50": p50}}

    def test_up_to_15_percent_more_is_no_regression(self):
        before = {("twice", "rows=6"): self.result(100.0)}
        assert bench.regressions([self.result(115.0)], before) == []
        assert bench.regressions([self.result(50.0)], before) == []
        (fault,) = bench.regressions([self.result(115.1)], before)
        assert fault == "twice rows=6: 115.1 us, expected at most 115.0 (baseline 100.0)"

    def test_a_case_without_a_baseline_is_a_fault(self):
        assert bench.regressions([self.result(1.0, "new")], {}) == [
            "twice new: not in the baseline"
        ]

    def test_a_case_that_is_gone_is_a_fault_where_its_op_ran(self):
        before = {
            ("twice", "rows=6"): self.result(1.0),
            ("twice", "gone"): self.result(1.0, "gone"),
            ("other", "rows=6"): self.result(1.0, op="other"),
        }
        assert bench.regressions([self.result(1.0)], before) == [
            "twice gone: in the baseline, and no case any more"
        ]

    def test_a_baseline_is_replaced_whole(self, tmp_path):
        path = tmp_path / "gpu.jsonl"
        path.write_text("before")
        write_whole(path, self.lines(self.result(1.0), self.result(2.0, "rows=7")))
        assert path.read_text() == self.lines(self.result(1.0), self.result(2.0, "rows=7"))
        assert [entry.name for entry in tmp_path.iterdir()] == ["gpu.jsonl"]

    def test_what_was_not_timed_is_no_regression(self):
        red = {"kind": "result", "op": "twice", "case": "rows=6", "gate": "red", "faults": ["x"]}
        assert bench.regressions([{"kind": "conditions"}, red], {}) == []

    def test_only_timed_results_make_a_baseline(self, tmp_path):
        path = tmp_path / "gpu.jsonl"
        red = {"kind": "result", "op": "twice", "case": "red", "gate": "red"}
        of_gpu = {"kind": "conditions", "gpu": "A GPU"}
        path.write_text(self.lines(of_gpu, red, self.result(3.0)))
        assert bench.read_baseline(path, "A GPU") == {("twice", "rows=6"): self.result(3.0)}

    def test_a_baseline_of_another_gpu_is_refused(self, tmp_path):
        path = tmp_path / "gpu.jsonl"
        path.write_text(self.lines({"kind": "conditions", "gpu": "A GPU"}, self.result(3.0)))
        with pytest.raises(ValueError, match="a baseline of A GPU, expected one of Another"):
            bench.read_baseline(path, "Another")
        path.write_text(self.lines(self.result(3.0)))
        with pytest.raises(ValueError, match="a baseline of no GPU, expected one of Another"):
            bench.read_baseline(path, "Another")

    @pytest.mark.parametrize(
        "line", ["{", "", "3", "[1]", '{"kind": "conditions"}', '{"kind": "result", "time_us": {}}']
    )
    def test_a_broken_line_is_named(self, tmp_path, line):
        path = tmp_path / "gpu.jsonl"
        path.write_text(self.lines({"kind": "conditions", "gpu": "A GPU"}) + f"{line}\n")
        with pytest.raises(ValueError, match=r"gpu\.jsonl:2: .*, expected a record"):
            bench.read_baseline(path, "A GPU")

    def test_a_file_that_is_no_text_is_named(self, tmp_path):
        path = tmp_path / "gpu.jsonl"
        path.write_bytes(b"\xff\xfe")
        with pytest.raises(ValueError, match=r"gpu\.jsonl: no text in UTF-8"):
            bench.read_baseline(path, "A GPU")


class TestCommand:
    @pytest.fixture
    def gpu(self, clock, monkeypatch):
        """A GPU that is there, and one op that the returned list has the cases of."""
        cases = [case()]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
        monkeypatch.setattr(bench_timing, "read_bandwidth_gbs", lambda: BANDWIDTH_GBS)
        monkeypatch.setattr(
            bench,
            "conditions",
            lambda gbs: {
                "kind": "conditions",
                "gpu": "A GPU",
                "torch": "2",
                "triton": "3",
                "read_bandwidth_gbs": gbs,
            },
        )
        monkeypatch.setattr(registry, "names", lambda: ("twice",))
        monkeypatch.setattr(bench, "cases_of", lambda op: tuple(cases))
        return cases

    def test_without_a_gpu_it_says_so(self, monkeypatch, capsys):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert bench.main([]) == 2
        assert "no CUDA GPU here, expected one\nhint: python -m" in capsys.readouterr().err

    def test_json_is_one_object_a_line(self, gpu, capsys):
        gpu.append(case(error=math.nan, name="red"))
        assert bench.main(["--json"]) == 1
        kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
        assert kinds == ["conditions", "result", "result"]

    def test_lines_for_people(self, gpu, capsys):
        gpu.append(case(error=1.0, name="red"))
        assert bench.main([]) == 1
        shown = capsys.readouterr()
        assert "A GPU, torch 2, triton 3: a streaming kernel reads 1000.0 GB/s" in shown.out
        assert "gate red: twice red: error 1, expected at most 0.01" in shown.out
        assert shown.err == "twice red: error 1, expected at most 0.01\n"

    def test_a_baseline_is_written_and_compared_with(self, gpu, tmp_path, capsys):
        path = tmp_path / "gpu.jsonl"
        assert bench.main(["--write-baseline", str(path)]) == 0
        assert bench.main(["--baseline", str(path)]) == 0
        gpu[0] = case(ours_us=11.6)
        assert bench.main(["--baseline", str(path)]) == 1
        assert "twice rows=6: 11.6 us, expected at most 11.5" in capsys.readouterr().err

    def test_a_run_with_faults_leaves_the_baseline_as_it_was_and_says_so(
        self, gpu, tmp_path, capsys
    ):
        path = tmp_path / "gpu.jsonl"
        path.write_text("before")
        gpu.append(case(error=math.nan, name="red"))
        assert bench.main(["--write-baseline", str(path)]) == 1
        assert path.read_text() == "before"
        assert "gpu.jsonl: not written" in capsys.readouterr().err

    def test_a_slower_run_does_not_replace_what_it_was_compared_with(self, gpu, tmp_path):
        path = tmp_path / "gpu.jsonl"
        words = ["--baseline", str(path), "--write-baseline", str(path)]
        assert bench.main(words[2:]) == 0
        before = path.read_text()
        gpu[0] = case(ours_us=11.6)
        assert bench.main(words) == 1
        assert path.read_text() == before

    def test_a_baseline_without_a_folder_is_refused_before_anything_is_timed(
        self, gpu, clock, tmp_path, capsys
    ):
        with pytest.raises(SystemExit) as ended:
            bench.main(["--write-baseline", str(tmp_path / "missing" / "gpu.jsonl")])
        assert ended.value.code == 2
        assert f"no folder {tmp_path / 'missing'}" in capsys.readouterr().err

    def test_a_baseline_of_one_op_is_refused(self, gpu, tmp_path, capsys):
        path = tmp_path / "gpu.jsonl"
        with pytest.raises(SystemExit):
            bench.main(["--op", "twice", "--write-baseline", str(path)])
        assert "a baseline holds every op" in capsys.readouterr().err
        assert not path.exists()

    def test_inputs_are_drawn_anew_and_the_record_says_from_which_seed(self, gpu, capsys):
        drawn = []
        gpu[0] = dataclasses.replace(gpu[0], gate=lambda seed: float(drawn.append(seed) or 0.0))
        for words in (["--json"], ["--json"], ["--json", "--seed", "7"]):
            assert bench.main(words) == 0
        shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [record["seed"] for record in shown if record["kind"] == "conditions"] == drawn
        assert drawn[0] != drawn[1]
        assert drawn[2] == 7

    def test_a_bad_baseline_is_refused_before_anything_is_timed(self, gpu, clock, tmp_path, capsys):
        with pytest.raises(SystemExit) as ended:
            bench.main(["--baseline", str(tmp_path / "missing.jsonl")])
        assert ended.value.code == 2
        assert "missing.jsonl" in capsys.readouterr().err
        assert clock.timed == []


class TestTiming:
    def test_the_spread_is_the_median_between_two_fifths(self):
        times = [5.0, 1.0, 2.0, 3.0, 4.0, 9.0, 8.0, 7.0, 6.0, 10.0]
        assert bench_timing.spread(times) == {"p20": 3.0, "p50": 5.5, "p80": 9.0}
        assert bench_timing.spread([4.0]) == {"p20": 4.0, "p50": 4.0, "p80": 4.0}

    @pytest.mark.parametrize(
        ("bytes_per_copy", "copies"),
        [(1, 512), (1 << 20, 200), (50 << 20, 4), (1 << 30, 2), (100 << 30, 2)],
    )
    def test_copies_pass_the_l2_by_four_and_fit_in_memory(
        self, bytes_per_copy, copies, monkeypatch
    ):
        class Properties:
            L2_cache_size = 50 << 20

        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        assert bench_timing.copies_for(bytes_per_copy) == copies


def test_two_cases_of_one_name_are_refused(monkeypatch):
    class Module:
        @staticmethod
        def cases():
            return (case(), case(ours_us=1.0))

    monkeypatch.setattr(registry, "load", lambda op: None)
    monkeypatch.setattr(bench_case.importlib, "import_module", lambda name: Module)
    with pytest.raises(registry.RegistryError, match="twice: several cases named rows=6"):
        bench_case.cases_of("twice")
