"""Unified memory: each fault by every text that shows it, and its healthy neighbours quiet."""

from __future__ import annotations

import pytest

from sparkserve.checks.memory_gates import Reclaim, load_refusal, reclaim
from sparkserve.facts.baseline import NodeBaseline
from sparkserve.model.reading import Reading
from tests.checks.texts import about, command, failing, loud, what

GIB = 1 << 30
PIN = (
    "spark2:555:771 [0] misc/ibvwrap.cc:217 NCCL WARN Call to ibv_reg_mr_iova2 failed with error"
    " Cannot allocate memory"
)


def meminfo(node: str | None = "spark2", **kib: int) -> Reading:
    lines = "".join(f"{name}: {value} kB\n" for name, value in kib.items())
    return Reading(path="/proc/meminfo", text=lines, node=node)


def buddyinfo(*blocks: int, node: str | None = "spark2") -> Reading:
    counts = " ".join(str(count) for count in blocks)
    text = f"Node 0, zone      DMA  0 0 0\nNode 0, zone   Normal  {counts}\n"
    return Reading(path="/proc/buddyinfo", text=text, node=node)


class TestCma:
    def test_more_free_than_there_is_fails_with_the_kernel_beside_it(self) -> None:
        (found,) = failing(
            "MEM_KHO_CMA",
            meminfo(CmaTotal=65536, CmaFree=900000),
            command("uname -r", "7.0.0-1012-nvidia\n", "spark2"),
            Reading(path="/proc/cmdline", text="root=/dev/x quiet\n", node="spark2"),
        )
        assert (found.node, found.verdict) == ("spark2", "FAIL")
        assert "CmaFree 900000 kB > CmaTotal 65536 kB" in found.observed
        assert "7.0.0-1012-nvidia without kho=off" in found.observed
        assert "kho=off" in found.fix

    def test_as_much_free_as_there_is_passes(self) -> None:
        assert loud(meminfo(CmaTotal=0, CmaFree=0)) == []
        assert loud(meminfo(CmaTotal=32768, CmaFree=32768)) == []

    def test_failed_pin_with_a_limited_memlock_is_not_this_fault(self) -> None:
        readings = (
            what("engine log", PIN, "rank1"),
            meminfo("node2", CmaTotal=32768, CmaFree=30000),
            command('docker exec r sh -c "ulimit -l"', "64\n", "rank1"),
        )
        assert [f.verdict for f in about("MEM_KHO_CMA", *readings)] == ["PASS"]
        assert failing("CTR_MEMLOCK", *readings)

    def test_failed_pin_alone_says_what_must_be_measured(self) -> None:
        (found,) = about("MEM_KHO_CMA", what("engine log", PIN, "rank1"))
        assert (found.outcome, found.node) == ("unknown", "rank1")
        assert "Cma lines not read, memlock not read" in found.observed
        assert "grep Cma /proc/meminfo" in found.fix
        assert "ulimit -l" in found.fix

    def test_kernel_known_for_it_is_warned_of_where_cma_was_not_read(self) -> None:
        readings = (
            command("uname -r", "7.0.0-1019-nvidia\n", "spark2"),
            command("cat /proc/cmdline", "root=/dev/x quiet\n", "spark2"),
        )
        (found,) = failing("MEM_KHO_CMA", *readings)
        assert found.verdict == "WARN"
        assert loud(*readings, meminfo(CmaTotal=32768, CmaFree=30000)) == []


class TestBlocks:
    def test_few_large_blocks_fail_although_much_is_available(self) -> None:
        (found,) = failing(
            "MEM_FRAGMENTED",
            buddyinfo(*[9] * 13, 150, 20),
            meminfo(MemTotal=127600712, MemAvailable=115343360),
        )
        # 150 + 2 x 20 of at least 200
        assert "190 blocks of 32 MiB" in found.observed
        assert "110.0 GiB" in found.observed
        assert "110.0 GiB are available" in found.why
        assert found.exit_code == 5

    def test_two_hundred_are_enough(self) -> None:
        assert loud(buddyinfo(*[9] * 13, 160, 20), meminfo(MemAvailable=115343360)) == []

    def test_blocks_of_dma_do_not_count(self) -> None:
        text = f"Node 0, zone DMA {'0 ' * 13}900\nNode 0, zone Normal {'7 ' * 13}3\n"
        (found,) = failing("MEM_FRAGMENTED", Reading(path="/proc/buddyinfo", text=text, node="a"))
        assert "3 blocks of 32 MiB" in found.observed

    def test_kernel_with_eleven_columns_is_judged_by_its_own_largest(self) -> None:
        assert loud(buddyinfo(*[200] * 10, 28000)) == []
        (found,) = failing("MEM_FRAGMENTED", buddyinfo(*[200] * 10, 0))
        assert "0 blocks of 4 MiB" in found.observed

    def test_memory_that_a_server_holds_is_not_called_fragmented(self) -> None:
        busy = meminfo(MemTotal=127600712, MemAvailable=9437184)
        (found,) = about("MEM_FRAGMENTED", buddyinfo(*[9] * 13, 2), busy)
        assert found.outcome == "skipped"

    def test_another_nodes_memory_is_not_taken_for_this_ones(self) -> None:
        (found,) = failing(
            "MEM_FRAGMENTED", buddyinfo(*[9] * 13, 2, node="node1"),
            meminfo("node2", MemTotal=127600712, MemAvailable=9437184),
        )  # fmt: skip
        assert found.node == "node1"
        assert "MemAvailable" not in found.observed

    @pytest.mark.parametrize(("was", "verdict"), [(1000.0, "WARN"), (900.0, "PASS")])
    def test_node_is_compared_with_its_own_reboot(self, was: float, verdict: str) -> None:
        # a quarter of 1000 is 250; of 900 it is 225
        record = NodeBaseline(large_blocks=was, is_post_reboot=True).model_dump_json()
        (found,) = about(
            "MEM_FRAGMENTED", buddyinfo(*[9] * 13, 240), what("node baseline", record, "spark2"),
            meminfo(MemTotal=127600712, MemAvailable=115343360),
        )  # fmt: skip
        assert found.verdict == verdict


class TestDriverLine:
    LINE = (
        "[ 8123.1] NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY] from _memdescAllocInternal"
    )

    def log(self, quiet_s: int) -> Reading:
        text = "[2026-09-14 10:30:00 TP0] Load weight begin. avail mem=104.31 GB\n"
        return what("engine log", text, "node1", note=f"no newer line for {quiet_s} s")

    def test_many_lines_of_a_start_that_goes_on_are_no_fault(self) -> None:
        lines = "\n".join([self.LINE] * 23)
        readings = (command("dmesg", lines, "node1"), self.log(20))
        assert loud(*readings) == []
        (found,) = about("MEM_NVRM_LINE_ALONE", *readings)
        assert found.observed.startswith("23 NVRM lines")

    @pytest.mark.parametrize(
        ("lines", "quiet_s", "available_kib", "fails"),
        [
            (2, 90, 1 << 20, True),
            (1, 90, 1 << 20, False),
            (2, 30, 1 << 20, False),
            (2, 90, 30 << 20, False),
        ],
    )
    def test_all_three_conditions_together_are_a_fault(
        self, lines: int, quiet_s: int, available_kib: int, *, fails: bool
    ) -> None:
        found = failing(
            "MEM_FRAGMENTED", command("dmesg", "\n".join([self.LINE] * lines), "node1"),
            self.log(quiet_s), meminfo("node1", MemAvailable=available_kib),
        )  # fmt: skip
        assert bool(found) == fails

    def test_nvidia_smi_that_does_not_return_counts_as_starved(self) -> None:
        (found,) = failing(
            "MEM_FRAGMENTED", command("dmesg", f"{self.LINE}\n{self.LINE}", "node1"),
            self.log(70), command("nvidia-smi", "", "node1", rc=124),
        )  # fmt: skip
        assert "did not return" in found.observed


class TestReserve:
    def test_reserve_is_named_with_what_it_does(self) -> None:
        (found,) = failing(
            "MEM_MIN_FREE_KBYTES", command("sysctl vm.min_free_kbytes",
            "vm.min_free_kbytes = 2097152\n", "spark2"),
            meminfo(MemFree=104857600, MemAvailable=99614720),
        )  # fmt: skip
        assert found.verdict == "WARN"
        assert "2.0 GiB reserve" in found.observed
        assert "MemAvailable 95.0 GiB is below MemFree 100.0 GiB" in found.observed

    def test_visible_sign_is_enough_where_the_setting_was_not_read(self) -> None:
        (found,) = failing("MEM_MIN_FREE_KBYTES", meminfo(MemFree=104857600, MemAvailable=99614720))
        assert "not read" in found.observed

    def test_usual_reserve_passes(self) -> None:
        assert loud(command("sysctl -n vm.min_free_kbytes", "1048576\n", "a")) == []
        assert loud(meminfo(MemFree=104857600, MemAvailable=104857000)) == []


class TestSwap:
    def test_up_to_one_gib_passes(self) -> None:
        assert loud(meminfo(SwapTotal=16777212, SwapFree=15728636)) == []
        (found,) = failing("MEM_SWAP_DIRTY", meminfo(SwapTotal=16777212, SwapFree=13631484))
        assert (found.verdict, found.node) == ("WARN", "spark2")
        assert "3.0 GiB of swap in use (of 16.0 GiB)" in found.observed

    @pytest.mark.parametrize(("now_gib", "warned"), [(112, False), (111, True), (20, False)])
    def test_idle_node_is_compared_with_its_best(self, now_gib: int, *, warned: bool) -> None:
        record = NodeBaseline(best_available_bytes=117 * GIB).model_dump_json()
        found = failing(
            "MEM_SWAP_DIRTY", what("node baseline", record, "spark2"),
            meminfo(MemTotal=127600712, MemAvailable=now_gib << 20),
        )  # fmt: skip
        assert bool(found) == warned


class TestKillers:
    UNITS = "systemctl list-units --type=service --state=active --plain --no-legend"

    @pytest.mark.parametrize(
        ("name", "verdict"),
        [
            ("earlyoom", "FAIL"),
            ("nohang-desktop", "FAIL"),
            ("dgx-oomguard", "FAIL"),
            ("systemd-oomd", "WARN"),
        ],
    )
    def test_each_is_named_with_its_command(self, name: str, verdict: str) -> None:
        text = f"cron.service loaded active running x\n{name}.service loaded active running y\n"
        (found,) = failing("MEM_USERSPACE_KILLER", command(self.UNITS, text, "spark2"))
        assert found.verdict == verdict
        assert f"disable --now {name}.service" in found.fix

    def test_other_services_are_quiet(self) -> None:
        text = "docker.service loaded active running Docker\nroom.service loaded active running x\n"
        assert loud(command(self.UNITS, text, "spark2")) == []


class TestPageCache:
    SHORT = (
        "ValueError: Free memory on device cuda:0 (90.00/121.69 GiB) on startup is less than"
        " desired GPU memory utilization (0.8, 97.35 GiB)."
    )
    FULL = "MemTotal: 127600712 kB\nMemAvailable: 104857600 kB\nCached: 62914560 kB\n"

    @pytest.mark.parametrize(
        "server",
        [
            command("cat /proc/fs/nfsd/threads", "16\n", "head"),
            command("systemctl is-active nfs-kernel-server", "active\n", "head"),
            command("exportfs -v", "/data 10.0.0.0/24(ro,root_squash)\n", "head"),
            command("ss -ltnH", "LISTEN 0 64 0.0.0.0:2049 0.0.0.0:*\n", "head"),
        ],
    )
    def test_head_that_serves_files_is_named_whatever_shows_it(self, server: Reading) -> None:
        (found,) = failing(
            "MEM_PAGECACHE_NFS_HEAD", what("engine log", self.SHORT, "rank0"), server,
            Reading(path="/proc/meminfo", text=self.FULL, node="head"),
        )  # fmt: skip
        assert (found.node, found.verdict) == ("head", "FAIL")
        assert "short by 7.35 GiB" in found.observed
        assert "60.0 GiB of page cache" in found.observed

    def test_ranks_far_apart_at_the_load_tell_the_same(self) -> None:
        begin = "[2026-09-14 10:30:00 TP{}] Load weight begin. avail mem={} GB\n"
        readings = (
            what("engine log", begin.format(0, "94.10"), "rank0"),
            what("engine log", begin.format(1, "104.31"), "rank1"),
            Reading(path="/proc/meminfo", text=self.FULL, node="head"),
            command("cat /proc/fs/nfsd/threads", "8\n", "head"),
        )
        (found,) = failing("MEM_PAGECACHE_NFS_HEAD", *readings)
        assert "10.21 GB less than another rank" in found.observed

    def test_cache_of_a_node_that_serves_nothing_is_not_blamed(self) -> None:
        assert not about(
            "MEM_PAGECACHE_NFS_HEAD", what("engine log", self.SHORT, "rank0"),
            command("cat /proc/fs/nfsd/threads", "0\n", "head"),
            Reading(path="/proc/meminfo", text=self.FULL, node="head"),
        )  # fmt: skip

    def test_cache_before_a_launch_is_only_mentioned(self) -> None:
        readings = (
            Reading(path="/proc/meminfo", text=self.FULL, node="head"),
            command("cat /proc/fs/nfsd/threads", "8\n", "head"),
        )
        (found,) = failing("MEM_PAGECACHE_NFS_HEAD", *readings)
        assert found.verdict == "INFO"


class TestOrphans:
    APPS = "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader"
    ENGINE = "4711, sglang::scheduler, 98304 MiB\n"
    PS = "docker ps --format '{{.ID}} {{.Names}}'"

    def test_process_of_a_container_that_is_gone_is_an_orphan(self) -> None:
        (found,) = failing(
            "MEM_ORPHAN_ENGINE", command(self.APPS, self.ENGINE, "spark2"),
            command(self.PS, "0123456789ab portainer\n", "spark2"),
            command("cat /proc/4711/cgroup", f"0::/docker-{'9' * 64}.scope\n", "spark2"),
        )  # fmt: skip
        assert "pid 4711 (sglang::scheduler) holds 98304 MiB" in found.observed
        assert "999999999999, which does not run any more" in found.observed
        assert "kill 4711" in found.fix

    def test_process_of_a_running_container_is_no_orphan(self) -> None:
        readings = (
            command(self.APPS, self.ENGINE, "spark2"),
            command(self.PS, "999999999999 my-model\n", "spark2"),
            command("cat /proc/4711/cgroup", f"0::/docker-{'9' * 64}.scope\n", "spark2"),
        )
        assert loud(*readings) == []

    def test_engine_container_that_runs_explains_its_process(self) -> None:
        readings = (
            command(self.APPS, self.ENGINE, "spark2"),
            command(self.PS, "999999999999 dsv41-rank1\n", "spark2"),
        )
        assert loud(*readings) == []

    def test_docker_that_was_not_asked_or_refused_leaves_the_owner_unknown(self) -> None:
        apps = command(self.APPS, self.ENGINE, "spark2")
        (found,) = about("MEM_ORPHAN_ENGINE", apps)
        assert found.outcome == "unknown"
        refused = "permission denied while trying to connect to the Docker daemon socket at unix:/x"
        (found,) = about(
            "MEM_ORPHAN_ENGINE", apps, command("docker ps", refused, "spark2", stream="stderr")
        )
        assert found.outcome == "unknown"

    def test_desktop_and_small_processes_are_ignored(self) -> None:
        text = "8, /usr/lib/xorg/Xorg, 3000 MiB\n9, /usr/bin/gnome-shell, 2000 MiB\n7, x, 9 MiB\n"
        assert loud(command(self.APPS, text, "spark2"), command(self.PS, "", "spark2")) == []


class TestReclaim:
    def test_enough_and_still_for_three_samples_is_go(self) -> None:
        # the samples of a public report, in KiB: need 114.3 GiB
        kib = (39321600, 52428800, 77594624, 104857600, 121634816, 121700352, 121700352)
        samples = [value * 1024 for value in kib]
        assert reclaim(samples, 114.3 * GIB) == Reclaim("GO", 5, 7)
        assert reclaim(samples[:6], 114.3 * GIB) == Reclaim("WAIT", 5, None)
        assert reclaim(samples[:4], 114.3 * GIB) == Reclaim("WAIT", None, None)

    def test_memory_that_sinks_again_starts_the_count_anew(self) -> None:
        assert reclaim([120, 120, 100, 120, 120, 120], 110) == Reclaim("GO", 4, 6)

    def test_memory_that_still_moves_is_waited_for(self) -> None:
        growing = [115 * GIB, 116 * GIB, 117 * GIB]
        assert reclaim(growing, 114 * GIB).verdict == "WAIT"

    def test_three_minutes_without_enough_fail(self) -> None:
        assert reclaim([1.0] * 90, 2.0).verdict == "WAIT"
        assert reclaim([1.0] * 91, 2.0).verdict == "FAIL"
        assert reclaim([], 2.0).verdict == "WAIT"

    def test_samples_short_of_the_profiles_need_say_wait(self) -> None:
        (found,) = about(
            "MEM_NOT_RECLAIMED_YET", what("MemAvailable samples", "40\n60\n80\n", "spark2",
            note="GiB, every 2 s"), what("profile", "start_memory_gib: 112\n"),
        )  # fmt: skip
        assert found.verdict == "WAIT"
        assert "need 112.0 GiB" in found.observed

    def test_samples_that_fall_belong_to_another_question(self) -> None:
        samples = what("MemAvailable samples", "29 27 23 10 6", "spark2", note="GiB, every 2 s")
        assert not about("MEM_NOT_RECLAIMED_YET", samples)


class TestTestSize:
    @pytest.mark.parametrize(
        ("size", "available", "allowed"),
        [
            (16 * GIB, 29 * GIB, False),
            (16 * GIB, 120 * GIB, False),
            (4 * GIB, 120 * GIB, True),
            (256 << 20, 6 * GIB, True),
            (256 << 20, 4 * GIB, False),
            (None, 100 * GIB, True),
            (None, None, False),
        ],
    )
    def test_at_most_a_twentieth_of_what_is_available(
        self, size: int | None, available: int | None, *, allowed: bool
    ) -> None:
        assert (load_refusal(size, available) is None) == allowed

    def test_running_engine_refuses_any_test(self) -> None:
        refused = load_refusal(1 << 20, 100 * GIB, engine_runs=True)
        assert refused is not None
        assert "engine" in refused

    def test_nccl_test_as_people_write_it_is_refused_on_the_tightest_node(self) -> None:
        (found,) = failing(
            "MEM_TEST_TOO_BIG",
            what("test command", "mpirun -np 2 ./build/all_gather_perf -b 8G -e 8G -f 2"),
            meminfo("node1", MemAvailable=10485760), meminfo("node2", MemAvailable=104857600),
        )  # fmt: skip
        assert (found.verdict, found.node) == ("REFUSE", "node1")
        assert "needs about 16.0 GiB of 10.0 GiB available" in found.observed
        assert "--size 256M" in found.fix

    def test_small_test_passes(self) -> None:
        request = what("request", "sparkserve doctor --bandwidth --size 256M")
        assert loud(request, meminfo(MemAvailable=104857600)) == []


def test_figures_that_nvidia_smi_has_not_are_never_zero() -> None:
    (found,) = about(
        "MEM_SMI_NA",
        command("nvidia-smi --query-gpu=memory.total,memory.used --format=csv,noheader",
                "[N/A], [N/A]\n", "spark2"),
        meminfo(MemTotal=127600712, MemAvailable=52428800),
    )  # fmt: skip
    assert "total 121.69 GiB, available 50.0 GiB" in found.observed
    alone = command(
        "nvidia-smi --query-gpu=memory.total --format=csv,noheader", "[N/A]\n", "spark2"
    )
    (found,) = about("MEM_SMI_NA", alone)
    assert "total unknown, available unknown" in found.observed


def test_less_memory_than_a_spark_has_fails_on_a_spark_alone() -> None:
    small = meminfo(MemTotal=96 << 20)
    (found,) = failing("MEM_TOTAL_LOW", small, command("nvidia-smi -L", "GPU 0: NVIDIA GB10\n",
                       "spark2"))  # fmt: skip
    assert "96.0 GiB" in found.observed
    laptop = command("nvidia-smi -L", "sh: 1: nvidia-smi: not found\n", "spark2", rc=127)
    assert not about("MEM_TOTAL_LOW", small, laptop)


def test_engine_on_any_node_refuses_a_test_of_any_size() -> None:
    (found,) = failing(
        "MEM_TEST_TOO_BIG", what("request", "sparkserve doctor --bandwidth --size 64M"),
        meminfo("node1", MemAvailable=104857600), meminfo("node2", MemAvailable=114857600),
        command("docker ps --format '{{.Names}} {{.State}}'", "dsv41-rank1 running\n", "node2"),
    )  # fmt: skip
    assert (found.verdict, found.node) == ("REFUSE", "node2")
    assert "an engine runs" in found.observed
