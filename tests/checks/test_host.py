"""The machine and its system: versions, identity, GPU, Wi-Fi, known-bad combinations."""

from __future__ import annotations

import pytest

from sparkserve.checks import registry
from sparkserve.checks.known_bad import Setup, in_range, matches, table
from sparkserve.facts.baseline import NodeBaseline
from sparkserve.model.reading import Reading
from tests.checks.texts import about, command, failing, loud, what

SKEW = "HOST_KERNEL_SKEW"
NVRM = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {}  Release Build\n"


def kernel(release: str, node: str) -> Reading:
    return command("uname -r", f"{release}\n", node)


def driver(version: str, node: str) -> Reading:
    return Reading(path="/proc/driver/nvidia/version", text=NVRM.format(version), node=node)


class TestSkew:
    def test_node_against_the_majority_is_named(self) -> None:
        (found,) = failing(
            SKEW, kernel("6.17.0-1031-nvidia", "a"), kernel("6.17.0-1032-nvidia", "b"),
            kernel("6.17.0-1031-nvidia", "c"),
        )  # fmt: skip
        assert (found.node, found.verdict) == ("b", "FAIL")
        assert "kernels differ (6.17.0-1031 / 6.17.0-1032)" in found.observed
        assert "boot 6.17.0-1031-nvidia" in found.fix

    def test_of_two_the_one_that_is_known_to_be_bad_is_named(self) -> None:
        readings = (kernel("7.0.0-1019-nvidia", "node1"), kernel("6.17.0-1032-nvidia", "node2"))
        (found,) = failing(SKEW, *readings)
        assert found.node == "node1"

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (driver("580.173.02", "node1"), driver("580.95.05", "node2")),
            (
                command("nvidia-smi --query-gpu=driver_version --format=csv,noheader",
                        "580.173.02\n", "node1"),
                command("nvidia-smi --query-gpu=driver_version --format=csv,noheader",
                        "580.95.05\n", "node2"),
            ),
            (
                command("ethtool -i enp1s0f0np0", "driver: mlx5_core\n"
                        "firmware-version: 28.45.4028 (NVD0000000087)\n", "node1"),
                command("ethtool -i enp1s0f0np0", "driver: mlx5_core\n"
                        "firmware-version: 28.43.2026 (NVD0000000087)\n", "node2"),
            ),
            (
                command("ibv_devinfo", "hca_id:\trocep1s0f0\n\tfw_ver:\t28.45.4028\n"
                        "\t\tport:\t1\n\t\t\tstate:\tPORT_ACTIVE (4)\n", "node1"),
                command("ibv_devinfo", "hca_id:\trocep1s0f0\n\tfw_ver:\t28.43.2026\n"
                        "\t\tport:\t1\n\t\t\tstate:\tPORT_ACTIVE (4)\n", "node2"),
            ),
        ],
    )  # fmt: skip
    def test_driver_and_firmware_are_compared_too(self, first: Reading, second: Reading) -> None:
        (found,) = failing(SKEW, first, second)
        assert (found.node, found.verdict) == ("node2", "FAIL")

    @pytest.mark.parametrize(
        ("first", "second", "differ"),
        [("580.173.02", "580.173", False), ("580.173.02", "580.17", True), ("6.1", "6.1", False)],
    )
    def test_shorter_form_of_the_same_version_is_no_difference(
        self, first: str, second: str, *, differ: bool
    ) -> None:
        found = failing(SKEW, kernel(first, "n1"), kernel(second, "n2"))
        assert bool(found) is differ

    def test_difference_that_only_needs_a_look_is_a_warning(self) -> None:
        (found,) = failing(
            SKEW, command("docker --version", "Docker version 28.3.3, build 1\n", "node1"),
            command("docker --version", "Docker version 27.0.1, build 2\n", "node2"),
        )  # fmt: skip
        assert found.verdict == "WARN"

    def test_two_names_of_one_spark_are_one(self) -> None:
        assert not about(SKEW, kernel("6.17.0-1032-nvidia", "node1"),
                         kernel("6.17.0-1032-nvidia", "rank0"))  # fmt: skip

    def test_equal_nodes_pass_and_one_alone_says_nothing(self) -> None:
        equal = (kernel("6.17.0-1032-nvidia", "node1"), kernel("6.17.0-1032-nvidia", "node2"))
        assert loud(*equal) == []
        assert [f.verdict for f in about(SKEW, *equal)] == ["PASS"]
        assert not about(SKEW, equal[0])

    def test_laptop_of_the_operator_is_no_node(self) -> None:
        assert loud(kernel("6.17.0-1032-nvidia", "node1"), kernel("6.8.0-45", "control")) == []

    @pytest.mark.parametrize(
        "record",
        [
            what("node baseline", NodeBaseline(
                served_with={"kernel": "6.17.0-1031-nvidia"}).model_dump_json(), "node1"),
            what("uname -r at the last good launch", "6.17.0-1031-nvidia\n", "node1"),
        ],
    )  # fmt: skip
    def test_change_since_the_last_good_launch_is_told(self, record: Reading) -> None:
        (found,) = failing(SKEW, record, kernel("6.17.0-1032-nvidia", "node1"))
        assert found.verdict == "WARN"
        assert "kernel 6.17.0-1031-nvidia -> 6.17.0-1032-nvidia" in found.observed

    @pytest.mark.parametrize(
        "readings",
        [
            (command("nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch\n"
                     "NVML library version: 580.173\n", "node1", rc=18),),
            (driver("580.95.05", "node1"),
             command("nvidia-smi --query-gpu=driver_version --format=csv,noheader",
                     "580.173.02\n", "node1")),
        ],
    )  # fmt: skip
    def test_module_that_is_not_the_libraries_one_fails(self, readings: list[Reading]) -> None:
        (found,) = failing(SKEW, *readings)
        assert found.verdict == "FAIL"
        assert found.check_id == "HOST.DRIVER"
        assert "reboot" in found.fix


class TestIdentity:
    def test_clone_is_named(self) -> None:
        same = f"machine_id={'ab' * 16}\n"
        (found,) = failing(
            "HOST_CLONED", what("host identity", same, "a"), what("host identity", same, "b"),
            what("host identity", f"machine_id={'cd' * 16}\n", "c"),
        )  # fmt: skip
        assert found.node == "b"
        assert "a and b have the same machine-id" in found.observed

    def test_shared_host_key_is_a_clone_too(self) -> None:
        key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExample root@x"
        path = "/etc/ssh/ssh_host_ed25519_key.pub"
        assert failing("HOST_CLONED", Reading(path=path, text=key, node="a"),
                       Reading(path=path, text=key, node="b"))  # fmt: skip

    def test_different_nodes_pass(self) -> None:
        readings = [
            what("host identity", f"machine_id={n * 16}\n", f"node{i}")
            for i, n in enumerate(("aa", "bb"), 1)
        ]
        assert loud(*readings) == []


class TestGpu:
    @pytest.mark.parametrize(
        "text", ["No devices were found\n", "NVIDIA-SMI has failed because it couldn't communicate"]
    )
    def test_driver_without_a_gpu_fails(self, text: str) -> None:
        (found,) = failing("GPU_ABSENT", command("nvidia-smi -L", text, "a", rc=9))
        assert found.verdict == "FAIL"

    def test_gb10_passes_and_another_gpu_is_nobodys_business(self) -> None:
        listed = "GPU 0: NVIDIA {} (UUID: GPU-1)\n"
        assert loud(command("nvidia-smi -L", listed.format("GB10"), "a")) == []
        assert not about("GPU_ABSENT", command("nvidia-smi -L", listed.format("H200"), "a"))

    def test_plain_machine_is_left_in_peace(self) -> None:
        missing = command("nvidia-smi -L", "sh: 1: nvidia-smi: not found\n", "a", rc=127)
        assert loud(missing, command("uname -m", "x86_64\n", "a")) == []

    def test_machine_of_another_architecture_fails(self) -> None:
        (found,) = failing("HOST_NOT_ARM64", command("uname -m", "x86_64\n", "a"))
        assert found.observed == "x86_64"
        assert loud(command("uname -m", "aarch64\n", "a")) == []

    def test_display_settings_matter_to_the_cache_in_its_reserve_alone(self) -> None:
        path = "/sys/module/nvidia_drm/parameters/"
        drm = command(f"grep . {path}*", f"{path}modeset:N\n{path}fbdev:N\n", "a")
        assert not about("GPU_DRM_SETTINGS", drm)
        (found,) = failing("GPU_DRM_SETTINGS", drm,
                           what("profile", "display_reserve_cache: true\n"))  # fmt: skip
        assert found.observed == "modeset=N fbdev=N"


class TestWifi:
    OOPS = (
        "[100.0] mt7925e 0009:01:00.0: Message 00020002 (seq 3) timeout\n"
        "[101.0] mt7925e 0009:01:00.0: chip reset\n"
        "[102.0] Internal error: Oops: 0000000096000004 [#1] SMP\n"
    )

    def test_reset_and_oops_fail(self) -> None:
        (found,) = failing("HOST_WIFI_OOPS", command("journalctl -k", self.OOPS, "a"))
        assert (found.verdict, found.node) == ("FAIL", "a")
        assert "chip reset" in found.observed
        assert "Oops" in found.observed

    def test_boot_before_is_told_as_such(self) -> None:
        (found,) = failing("HOST_WIFI_OOPS", command("journalctl -k -b -1", self.OOPS, "a"))
        assert found.observed.endswith("in the boot before")

    def test_single_time_out_is_a_warning(self) -> None:
        line = self.OOPS.splitlines()[0]
        (found,) = failing("HOST_WIFI_OOPS", command("dmesg", line, "a"))
        assert found.verdict == "WARN"

    def test_oops_of_something_else_is_not_the_wifis(self) -> None:
        line = self.OOPS.splitlines()[2]
        assert not failing("HOST_WIFI_OOPS", command("dmesg", line, "a"))

    def test_default_route_of_lowest_metric_counts(self) -> None:
        wifi = "default via 192.168.1.1 dev wlP9s9 proto dhcp metric 600\n"
        wired = "default via 192.168.1.1 dev enP7s7 proto dhcp metric 100\n"
        (found,) = failing("HOST_WIFI_OOPS", command("ip route", wifi, "a"))
        assert found.verdict == "WARN"
        assert loud(command("ip route", wifi + wired, "a")) == []

    def test_wired_port_with_a_carrier_is_named(self) -> None:
        links = (
            "3: enP7s7: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP mode DEFAULT\n"
        )
        route = "default via 192.168.1.1 dev wlP9s9 proto dhcp metric 600\n"
        (found,) = failing(
            "HOST_WIFI_OOPS", command("ip -o link", links, "a"), command("ip route", route, "a")
        )
        assert "enP7s7, which has a carrier" in found.expected


class TestKnownBad:
    @pytest.mark.parametrize(
        ("version", "rule", "holds"),
        [
            ("7.0.0-1019-nvidia", ">=7.0, <7.1", True),
            ("7.1.0-1-nvidia", ">=7.0, <7.1", False),
            ("6.17.0-1032-nvidia", ">=7.0, <7.1", False),
            ("6.17.0-1032-nvidia", "==6.17.0-1031 || ==6.17.0-1032", True),
            ("6.17.0-1014-nvidia", "==6.17.0-1031 || ==6.17.0-1032", False),
            ("2.29.2", "<2.29.3", True),
            ("2.29.3", "<2.29.3", False),
            ("2.30", "<2.29.3", False),
            ("2.28.9", "<=2.28.9", True),
            ("2.30.7", ">2.30.4", True),
            ("unknown", "<2.29.3", False),
        ],
    )
    def test_ranges_compare_number_by_number(self, version: str, rule: str, *, holds: bool) -> None:
        assert in_range(version, rule) == holds

    def names(self, **known: object) -> set[str]:
        return {match.row.id for match in matches(Setup.model_validate(known))}

    def test_row_needs_every_condition_and_unknown_is_none(self) -> None:
        name = "kernel-7.0-kexec-handover"
        assert name in self.names(kernel="7.0.0-1019-nvidia", cmdline="ro quiet")
        assert name not in self.names(kernel="7.0.0-1019-nvidia", cmdline="ro kho=off")
        assert name not in self.names(kernel="7.0.0-1019-nvidia")
        assert name not in self.names(kernel="6.17.0-1032-nvidia", cmdline="ro")

    @pytest.mark.parametrize(
        ("known", "row"),
        [
            ({"nccl": "2.28.9"}, "nccl-proxy-slot-leak"),
            ({"nccl": "2.30.4", "nodes": 8, "environment": {}}, "nccl-2.30.4-nvls"),
            ({"image": "someone/image:dev-dsv41"}, "moving-image-tag"),
            (
                {"environment": {"SGLANG_FLASHINFER_MOE_FUSED_FINALIZE": "1"}},
                "fused-finalize",
            ),
            ({"packages": {"xgrammar": "0.1.27"}}, "xgrammar-0.1.27"),
            (
                {"model": "DeepSeek-V4.1-Flash", "environment": {
                    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
                "expandable-segments",
            ),
        ],
    )  # fmt: skip
    def test_every_axis_of_the_table_can_match(self, known: dict[str, object], row: str) -> None:
        assert row in self.names(**known)

    @pytest.mark.parametrize(
        "known",
        [
            {"nccl": "2.30.4", "nodes": 8, "environment": {"NCCL_NVLS_ENABLE": "0"}},
            {"nccl": "2.30.4", "nodes": 4, "environment": {}},
            {"nccl": "2.30.4", "nodes": 8},
            {"image": "someone/image@sha256:aa"},
            {"environment": {"SGLANG_FLASHINFER_MOE_FUSED_FINALIZE": "0"}},
            {"packages": {"xgrammar": "0.2.7"}},
        ],
    )
    def test_neighbours_of_a_row_are_quiet(self, known: dict[str, object]) -> None:
        assert not self.names(**known)

    def test_rows_are_whole_and_name_checks_and_codes_that_exist(self) -> None:
        rows = table()
        assert len({row.id for row in rows}) == len(rows)
        checks = {check.id: {check.code, *check.also} for check in registry.ALL}
        for row in rows:
            assert row.source, row.id
            assert row.cause, row.id
            if row.state == "bad":
                assert row.symptom, row.id
                assert row.fix, row.id
                assert row.code in checks[row.judged_by or "HOST.KNOWN_BAD"], row.id

    def test_row_without_a_check_of_its_own_is_told(self) -> None:
        (found,) = failing(
            "ENG_NONDETERMINISTIC",
            what("container env", "SGLANG_FLASHINFER_MOE_FUSED_FINALIZE=1\n", "rank0"),
        )
        assert (found.node, found.verdict) == ("rank0", "WARN")
        assert "MOE_FUSED_FINALIZE=0" in found.fix


class TestOthers:
    @pytest.mark.parametrize("line", ["timeout 5 ip link", "nmcli device", "ip -o addr"])
    def test_networking_control_that_hangs_is_the_lock_of_the_wifi(self, line: str) -> None:
        (found,) = failing("HOST_WIFI_OOPS", command(line, "", "a", rc=124))
        assert f"`{line}` did not return" in found.observed

    @pytest.mark.parametrize(
        ("line", "text", "warned"),
        [
            ("timedatectl show -p NTPSynchronized --value", "no\n", True),
            ("timedatectl show -p NTPSynchronized", "NTPSynchronized=yes\n", False),
            ("timedatectl", "  Time zone: UTC\nSystem clock synchronized: no\n", True),
            ("chronyc tracking", "Leap status     : Normal\n", False),
            ("chronyc tracking", "Leap status     : Not synchronised\n", True),
        ],
    )
    def test_clock_must_be_kept_by_a_time_server(
        self, line: str, text: str, *, warned: bool
    ) -> None:
        found = failing("HOST_CLOCK_SKEW", command(line, text, "a"))
        assert [finding.verdict for finding in found] == (["WARN"] if warned else [])
