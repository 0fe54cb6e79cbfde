"""What moves, what is wedged, what never ends, and how containers ended."""

from __future__ import annotations

import pytest

from sparkserve.checks import progress
from sparkserve.checks.check import judge
from sparkserve.checks.ends import kills
from sparkserve.checks.progress import looped
from sparkserve.checks.scene import Scene
from sparkserve.facts.reader import understand
from sparkserve.facts.registry import READERS
from sparkserve.model.finding import Finding
from sparkserve.model.reading import Reading
from tests.casefiles import ALL

SMI = "nvidia-smi --query-gpu=utilization.gpu,power.draw --format=csv,noheader,nounits"


def judged(*readings: Reading) -> list[Finding]:
    scene = Scene(None, None, observations=understand(readings, READERS).observations)
    return list(judge(progress.CHECKS, scene))


def of_case(number: str, kind: str = "faulty") -> list[Finding]:
    (variant,) = (v for v in ALL if v.id.startswith(f"{number}-") and v.kind == kind)
    return judged(*variant.readings)


class TestProgress:
    def rows(self, *rows: str, node: str = "rank1") -> Reading:
        return Reading(
            text="\n".join(rows), what="progress samples", node=node,
            note="columns: t in s, rx_bytes, read_bytes, cache_files",
        )  # fmt: skip

    def test_traffic_behind_a_silent_log_means_wait(self) -> None:
        (found,) = of_case("B60")
        assert (found.code, found.verdict) == ("ENG_TIMEOUT_TOO_SHORT", "WAIT")
        # (54.9 - 51.2) GB in 30 s is 123 MB/s; two samples know two digits of it.
        assert "rank1 receives ~120 MB/s" in found.observed
        assert "rank0 logged nothing for 840 s" in found.observed

    @pytest.mark.parametrize("last", ["400 9 5 7", "400 5 9 7", "400 5 5 8"])
    def test_any_moving_counter_is_enough(self, last: str) -> None:
        (found,) = judged(self.rows("0 5 5 7", last))
        assert found.verdict == "WAIT"

    def test_nothing_that_moved_on_any_rank_for_five_minutes_is_a_stall(self) -> None:
        still = self.rows("0 5 5 7", "300 5 5 7")
        (found,) = judged(still, self.rows("0 1 1 1", "310 1 1 1", node="rank0"))
        assert (found.verdict, found.outcome) == ("FAIL", "fail")
        assert "300 s" in found.observed

    def test_one_moving_rank_speaks_for_all(self) -> None:
        (found,) = judged(
            self.rows("0 5 5 7", "300 5 5 7"), self.rows("0 1 1 1", "310 2 1 1", node="rank0")
        )
        assert (found.verdict, found.node) == ("WAIT", "rank0")

    def test_short_standstill_is_none(self) -> None:
        assert judged(self.rows("0 5 5 7", "60 5 5 7")) == []


class TestWedge:
    def scene(
        self, gpu: str, *, tokens: tuple[int, int] = (7, 7), running: int = 2,
        note: str = "two scrapes, 75 s apart", more: tuple[str, str] = ("", ""),
    ) -> list[Finding]:  # fmt: skip
        page = "vllm:num_requests_running{{}} {0}\nvllm:generation_tokens_total{{}} {1}\n{2}\n"
        text = "--\n".join(page.format(running, t, m) for t, m in zip(tokens, more, strict=True))
        return judged(
            Reading(text=text, what="metrics", note=note),
            Reading(text=gpu, command=SMI, node="gx2"),
        )

    def test_frozen_tokens_at_the_power_of_an_idle_gpu(self) -> None:
        (found,) = of_case("B62")
        assert (found.code, found.verdict, found.node) == ("ENG_SPIN_WEDGE", "FAIL", "head")
        for figure in ("3 requests", "60 s", "918233", "96 %", "19.90 W"):
            assert figure in found.observed
        (other,) = self.scene("97, 18.2\n97, 18.4\n")
        assert (other.verdict, other.node) == ("FAIL", "gx2")

    def test_distance_of_scrapes_may_stand_between_them(self) -> None:
        page = "sglang:num_running_reqs 1\nsglang:generation_tokens_total 5\n"
        text = f"{page}-- 90 s later\n{page}"
        gpu = Reading(text="96, 19.0\n", command=SMI, node="gx2")
        (found,) = judged(Reading(text=text, command="curl -s localhost:8888/metrics"), gpu)
        assert (found.code, found.outcome) == ("ENG_SPIN_WEDGE", "fail")

    def test_long_prefill_draws_power_and_passes(self) -> None:
        (found,) = of_case("B62", "quiet")
        assert found.outcome == "pass"

    @pytest.mark.parametrize(
        "gpu", ["97, [N/A]\n", "[N/A], 18.2\n", "97, 18.2\n97, 44.0\n", "12, 18.2\n"]
    )
    def test_unknown_or_honest_gpu_is_no_wedge(self, gpu: str) -> None:
        assert [f for f in self.scene(gpu) if f.outcome == "fail"] == []

    def test_nothing_frozen_is_no_wedge(self) -> None:
        gpu = "97, 18.2\n"
        assert self.scene(gpu, tokens=(7, 8)) == []
        assert self.scene(gpu, running=0) == []
        assert self.scene(gpu, note="two scrapes, 5 s apart") == [] or all(
            f.outcome == "pass" for f in self.scene(gpu, note="two scrapes, 5 s apart")
        )
        prompt = "vllm:prompt_tokens_total{} "
        assert self.scene(gpu, more=(f"{prompt}100", f"{prompt}900")) == []


class TestRequests:
    def test_old_and_long_one_is_an_abort_candidate(self) -> None:
        (found,) = of_case("B75")
        assert (found.code, found.verdict) == ("SRV_NO_OUTPUT_CAP", "FAIL")
        for words in ("abort candidate", "ab12", "3605", "271004"):
            assert words in found.observed

    @pytest.mark.parametrize(
        ("line", "fails"),
        [
            ("rid=a age_s=1801 output_tokens=5 finish=null", True),
            ('{"rid": "a", "age_s": 1801, "output_tokens": 5, "finish_reason": null}', True),
            ("rid age_s output_tokens finish\na 1801 5 null\nb 7 5 null\n", True),
            ("rid age_s output_tokens finish\na 7 5 null\n", False),
            ("rid=a age_s=1799 output_tokens=5 finish=null", False),
            ("rid=a age_s=3605 output_tokens=271004 finish=length", False),
        ],
    )
    def test_age_counts_alone_and_an_end_counts_too(self, line: str, fails: bool) -> None:
        found = judged(Reading(text=line, what="running request sample"))
        assert bool(found) is fails

    def test_output_beyond_the_profiles_limit_counts_alone(self) -> None:
        wish = Reading(text="default_max_tokens: 1000\n", what="profile", format="yaml")
        line = "rid=a age_s=10 output_tokens=1001 finish=null"
        found = judged(Reading(text=line, what="running requests"), wish)
        assert [f.code for f in found] == ["SRV_NO_OUTPUT_CAP"]


class TestLoop:
    def test_passage_said_five_times_is_a_loop(self) -> None:
        (found,) = of_case("B81")
        assert (found.code, found.verdict) == ("SRV_VERBATIM_LOOP", "LOOP")

    @pytest.mark.parametrize(
        "text",
        [
            "Es wird geladen, und danach wird es wieder geladen, immer wieder. " * 6,
            "I should check the file first,\nthen run it again and look at it.\n" * 5,
            "no " * 300,
        ],
    )
    def test_any_passage_in_a_row_is_one(self, text: str) -> None:
        assert looped(text) is not None

    @pytest.mark.parametrize(
        "text",
        [
            "-" * 600, " " * 600, "=" * 300 + "\n" + "|" + "---|" * 60, "0, " * 300,
            "A sentence that is said three times and then never again, really. " * 3 + "Good.",
            "".join(f"| row {n} of the table | {n * n} |\n" for n in range(60)),
            "",
        ],
    )  # fmt: skip
    def test_rules_numbers_and_tables_are_none(self, text: str) -> None:
        assert looped(text) is None

    def test_only_the_end_counts(self) -> None:
        loop = "The tab bar is hidden because the parent collapses. " * 6
        rest = "".join(f"Step {n} does something else entirely. " for n in range(200))
        assert looped(loop + rest) is None


class TestDeadWorker:
    def test_third_sample_in_a_row_aborts(self) -> None:
        (found,) = of_case("B70")
        assert (found.verdict, found.node) == ("ABORT", "rank1")
        assert "sample 5" in found.observed

    @pytest.mark.parametrize(
        "states",
        ["running\nexited\nexited\n", "exited\nexited\nrunning\nexited\n", "running\n" * 9],
    )
    def test_fewer_in_a_row_do_not(self, states: str) -> None:
        assert judged(Reading(text=states, what="container state samples", node="rank1")) == []


class TestKilled:
    INSPECT = "docker inspect -f '{{.Id}} {{.State.ExitCode}} {{.State.OOMKilled}}'"
    OOM = (
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=docker-{0}.scope,mems_allowed=0"
        ",global_oom,task_memcg=/system.slice/docker-{0}.scope,task=python3,pid=77,uid=0\n"
        "Out of memory: Killed process 77 (python3) total-vm:1kB\n"
    )

    def ended(self, box: str, *kernel: str) -> list[Finding]:
        logs = [Reading(text=text, command="dmesg", format="log") for text in kernel]
        return judged(Reading(text=box, command=self.INSPECT), *logs)

    def test_kernels_global_oom_in_this_container_is_named(self) -> None:
        (found,) = of_case("B72")
        assert found.verdict == "FAIL"
        for words in ("kernel global OOM", "victim rowserver", "in this container",
                      "although OOMKilled=false"):  # fmt: skip
            assert words in found.observed

    @pytest.mark.parametrize("kernel", [(), ("",), ("usb 1-1: new device\n",)])
    def test_without_a_kernel_line_the_cause_is_unknown_and_only_noted(
        self, kernel: tuple[str, ...]
    ) -> None:
        (found,) = self.ended("0123456789ab 137 false", *kernel)
        assert "SIGKILL, cause unknown" in found.observed
        assert (found.outcome, found.severity) == ("unknown", "info")

    def test_kill_in_another_container_is_not_this_ones(self) -> None:
        (found,) = self.ended("0123456789ab 137 false", self.OOM.format("fedcba987654"))
        assert "cause unknown" in found.observed

    def test_full_and_short_ids_are_one_container(self) -> None:
        (found,) = self.ended("0123456789ab 137 false", self.OOM.format("0123456789ab" + "c" * 52))
        assert "victim python3" in found.observed

    @pytest.mark.parametrize(
        ("line", "unit"),
        [
            ("Sep 14 10:44:31 gx1 dgx-anti-oom[1312]: MemAvailable 6.1 GiB, sending SIGKILL to "
             "21951 (VLLM::EngineCore)", "dgx-anti-oom"),
            ("earlyoom[9]: sending SIGTERM to process 77 uid 0 'python3': badness 9", "earlyoom"),
            ("systemd-oomd[8]: Killed /system.slice/docker-01.scope due to memory used by it",
             "systemd-oomd"),
        ],
    )  # fmt: skip
    def test_guard_of_memory_in_user_space_is_named_by_its_journal(
        self, line: str, unit: str
    ) -> None:
        journal = Reading(text=line, command=f"journalctl -u {unit}.service --no-pager")
        box = Reading(text="0123456789ab 137 false", command=self.INSPECT)
        (found,) = judged(box, journal)
        assert (found.code, found.verdict) == ("MEM_USERSPACE_KILLER", "FAIL")
        assert f"killed by {unit}" in found.observed
        assert unit in found.fix

    def test_journal_without_a_kill_names_nobody(self) -> None:
        journal = Reading(text="earlyoom[9]: mem avail: 80 %", command="journalctl -u earlyoom")
        box = Reading(text="0123456789ab 137 false", command=self.INSPECT)
        (found,) = judged(box, journal)
        assert (found.code, found.outcome) == ("ENG_EXIT_137", "unknown")

    def test_own_limit_is_told_apart(self) -> None:
        (found,) = self.ended("0123456789ab 137 true")
        assert "its own memory limit" in found.observed

    @pytest.mark.parametrize("code", [0, 1, 143])
    def test_other_ends_are_not_its_matter(self, code: int) -> None:
        assert self.ended(f"0123456789ab {code} false") == []

    def test_every_kill_of_a_log_is_found_once(self) -> None:
        lines = tuple((self.OOM.format("aa") + self.OOM.replace("77", "78")).splitlines())
        assert [(k.pid, k.name, k.is_global) for k in kills(lines)] == [
            ("77", "python3", True), ("78", "python3", True),
        ]  # fmt: skip
