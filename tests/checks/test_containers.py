"""Containers, images, limits and tools inside: each fault by every text that shows it."""

from __future__ import annotations

import json

import pytest

from sparkserve.checks.container_images import satisfies
from sparkserve.checks.containers import is_engine
from sparkserve.facts.containers import Container
from sparkserve.model.reading import Reading
from tests.checks.texts import about, command, failing, loud, what

SOCKET = (
    "permission denied while trying to connect to the Docker daemon socket at "
    "unix:///var/run/docker.sock: Get x: dial unix /var/run/docker.sock: connect: permission denied"
)


class TestDaemon:
    @pytest.mark.parametrize(
        "line",
        [
            "docker ps",
            "ssh spark2 docker ps -a",
            "docker info --format '{{json .}}'",
            "docker inspect -f '{{json .Mounts}}' rank1",
            "docker image inspect -f '{{.Id}}' image",
            "docker volume inspect weights",
            "docker exec rank1 sh -c 'ulimit -l'",
        ],
    )
    def test_refused_socket_makes_the_state_of_containers_unknown(self, line: str) -> None:
        (found,) = failing("CTR_DOCKER_PERMISSION", command(line, SOCKET, "n2", stream="stderr"))
        assert (found.node, found.verdict) == ("n2", "FAIL")
        assert "UNKNOWN" in found.observed
        assert "usermod -aG docker" in found.fix

    def test_newer_wording_is_known(self) -> None:
        text = "permission denied while trying to connect to the docker API at unix:///x\n"
        assert failing("CTR_DOCKER_PERMISSION", command("docker ps", text, "n2", rc=1))

    def test_daemon_that_does_not_run_is_another_fault(self) -> None:
        text = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.\n"
        reading = command("docker ps", text, "n2", rc=1)
        assert failing("CTR_DOCKER_DOWN", reading)
        assert failing("CTR_DOCKER_PERMISSION", reading) == []

    def test_empty_list_is_an_answer(self) -> None:
        reading = command("docker ps --format '{{.ID}} {{.Names}}'", "", "n2")
        assert [f.outcome for f in about("CTR_DOCKER_PERMISSION", reading)] == ["pass"]


class TestRuntime:
    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("docker info", " Runtimes: io.containerd.runc.v2 runc\n Default Runtime: runc\n"),
            ("sudo docker info -f '{{json .Runtimes}}'", '{"runc":{"path":"runc"}}'),
            ("docker info -f json", '{"Runtimes":{"runc":{}},"DefaultRuntime":"runc"}'),
            ("docker info 2>/dev/null | grep -i runtime", " Runtimes: runc\n"),
            ("docker info -f '{{.Runtimes}}'", "map[runc:{runc [] <nil>}]\n"),
            ("cat /etc/docker/daemon.json", '{"log-driver": "json-file"}'),
        ],
    )
    def test_missing_nvidia_runtime_fails(self, line: str, text: str) -> None:
        (found,) = failing("CTR_NO_NVIDIA_RUNTIME", command(line, text, "w1"))
        assert (found.node, found.verdict) == ("w1", "FAIL")
        assert "no nvidia runtime" in found.observed
        assert "nvidia-ctk runtime configure" in found.fix

    @pytest.mark.parametrize(
        "text",
        [
            '{"Runtimes":{"nvidia":{},"runc":{}},"DefaultRuntime":"runc"}',
            '{"Runtimes":{"runc":{}},"DiscoveredDevices":[{"Source":"cdi","ID":"nvidia.com/gpu=0"}]}',
        ],
    )
    def test_runtime_or_cdi_passes(self, text: str) -> None:
        assert loud(command("docker info --format '{{json .}}'", text, "w1")) == []

    def test_toolkit_without_a_runtime_only_warns(self) -> None:
        (found,) = failing(
            "CTR_NO_NVIDIA_RUNTIME",
            command("docker info -f '{{json .Runtimes}}'", '{"runc":{}}', "w1"),
            command("command -v docker nvidia-ctk", "/usr/bin/docker\n/usr/bin/nvidia-ctk\n", "w1"),
        )
        assert found.verdict == "WARN"


class TestImages:
    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("docker image inspect --format '{{.Architecture}}' img", "amd64\n"),
            ("docker image inspect -f '{{.Os}}/{{.Architecture}} {{.Id}}' i", "linux/amd64 ab"),
            ("docker inspect -f '{{.Os}}/{{.Architecture}}' img", "linux/amd64\n"),
            ("docker inspect img", '[{"Os":"linux","Architecture":"amd64","RepoTags":["img"]}]'),
            ("docker image inspect img | grep -i arch", '        "Architecture": "amd64",\n'),
        ],
    )  # fmt: skip
    def test_image_for_another_processor_fails(self, line: str, text: str) -> None:
        (found,) = failing("CTR_WRONG_ARCH", command(line, text, "n2"))
        assert (found.node, found.verdict) == ("n2", "FAIL")
        assert "linux/amd64" in found.observed

    def test_arm_image_passes(self) -> None:
        line = "docker image inspect -f '{{.Os}}/{{.Architecture}}' img"
        assert loud(command(line, "linux/arm64\n", "n2")) == []

    def test_one_tag_with_two_ids_is_named_with_both(self) -> None:
        line = "docker image inspect -f '{{.Id}}' sgl:dev"
        (found,) = failing(
            "CTR_IMAGE_SKEW", command(line, "sha256:aaaaaaaaaaaaaa\n", "n1"),
            command(line, "sha256:bbbbbbbbbbbbbb\n", "n2"),
        )  # fmt: skip
        assert "n1 aaaaaaaaaaaa, n2 bbbbbbbbbbbb" in found.observed

    def test_missing_image_is_named(self) -> None:
        text = "Error response from daemon: No such image: sgl:dev\n"
        (found,) = failing(
            "CTR_IMAGE_MISSING", command("docker image inspect sgl:dev", text, "n2", rc=1)
        )
        assert "sgl:dev" in found.observed


class TestMemlock:
    LIMITS = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max locked memory         8388608              8388608              bytes     \n"
    )

    @pytest.mark.parametrize(
        ("line", "text", "note"),
        [
            ("docker exec vllm bash -lc 'ulimit -l'", "8192\n", ""),
            ("docker run --rm --entrypoint sh image -c 'ulimit -l'", "8192\n", ""),
            ("docker exec engine cat /proc/1/limits", LIMITS, ""),
            ("ulimit -a", "max locked memory           (kbytes, -l) 8192\n", "in the container"),
            ("docker inspect -f '{{json .HostConfig.Ulimits}}' rank1",
             '[{"Name":"memlock","Hard":8388608,"Soft":8388608}]', ""),
        ],
    )  # fmt: skip
    def test_limit_in_a_container_fails_with_the_measure_that_tells_it_from_cma(
        self, line: str, text: str, note: str
    ) -> None:
        (found,) = failing(
            "CTR_MEMLOCK", command(line, text, "node3", note=note),
            command("grep Cma /proc/meminfo", "CmaTotal: 32768 kB\nCmaFree: 31040 kB\n", "node3"),
        )  # fmt: skip
        assert (found.node, found.verdict) == ("node3", "FAIL")
        assert "8192 KiB" in found.observed
        assert "CmaFree 31040 kB, CmaTotal 32768 kB: CMA is healthy" in found.observed
        assert "memlock=-1" in found.fix

    def test_limit_of_the_host_shell_says_nothing_about_a_container(self) -> None:
        assert loud(command("ulimit -l", "8192\n", "node3")) == []

    def test_unlimited_passes(self) -> None:
        assert loud(command("docker exec r sh -c 'ulimit -l'", "unlimited\n", "rank1")) == []


class TestRestarts:
    @pytest.mark.parametrize(
        ("line", "text", "words"),
        [
            ("docker inspect -f '{{.Name}} {{.HostConfig.RestartPolicy.Name}}' $(docker ps -aq)",
             "/vllm-head always\n/grafana always\n", "always"),
            ("docker inspect rank0", json.dumps([{"Name": "/rank0", "RestartCount": 7,
             "HostConfig": {"RestartPolicy": {"Name": "on-failure"}}}]), "7 restarts"),
            ("docker inspect --format='{{.RestartCount}}' sglang", "12\n", "12 restarts"),
            ("docker ps", "CONTAINER ID   IMAGE   COMMAND   CREATED   STATUS   PORTS   NAMES\n"
             "ab12cd34ef56   sgl:2   \"/x\"   3 hours ago   Restarting (1) 12 seconds ago"
             "      dsv41-rank3\n", "restarting now"),
            ("docker inspect rank0 | grep -A3 -E 'RestartCount|RestartPolicy'",
             '  "RestartCount": 9,\n  "RestartPolicy": {\n    "Name": "unless-stopped",\n',
             "9 restarts, restart policy unless-stopped"),
        ],
    )  # fmt: skip
    def test_engine_that_docker_starts_again_fails(self, line: str, text: str, words: str) -> None:
        (found,) = failing("MEM_RESTART_LOOP", command(line, text, "n1"))
        assert (found.node, found.verdict) == ("n1", "FAIL")
        assert words in found.observed
        assert "docker update --restart=no" in found.fix

    def test_other_containers_may_start_again(self) -> None:
        line = (
            "docker inspect -f '{{.Name}} {{.RestartCount}} {{.HostConfig.RestartPolicy.Name}}' x"
        )
        assert loud(command(line, "/portainer 3 always\n/node-exporter 0 always\n", "n1")) == []

    def test_unknown_name_beside_an_engine_is_none(self) -> None:
        line = "docker inspect -f '{{.Name}} {{.HostConfig.RestartPolicy.Name}}' $(docker ps -aq)"
        found = failing("MEM_RESTART_LOOP", command(line, "/dsv41-rank0 always\n/foo always\n"))
        assert ["dsv41-rank0" in one.observed for one in found] == [True]
        assert failing("MEM_RESTART_LOOP", command(line, "/foo always\n"))

    def test_one_restart_without_a_policy_passes(self) -> None:
        line = (
            "docker inspect -f '{{.Name}} {{.RestartCount}} {{.HostConfig.RestartPolicy.Name}}' x"
        )
        assert loud(command(line, "/dsv41-rank0 1 no\n", "n1")) == []

    @pytest.mark.parametrize(
        ("name", "image", "serves"),
        [
            ("dsv41-rank0", None, True), ("vllm_head", "x:1", True),
            ("a1b2", "lmsysorg/sglang:x", True),
            ("portainer", None, False), ("a1b2", None, None), ("nginx", "nginx:1", False),
            ("open-webui", "owui:1", False),
            ("dcgm-exporter", "nvidia/dcgm", False),
        ],
    )  # fmt: skip
    def test_engines_are_known_by_name_and_image(
        self, name: str, image: str | None, serves: bool | None
    ) -> None:
        assert is_engine(Container(name=name, image=image)) is serves


class TestCreated:
    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("docker ps -a --format '{{.Names}} {{.State}}'", "rank2 created\n"),
            ("docker ps -a --format '{{.Names}}\\t{{.Status}}'", "rank2\tCreated\n"),
            ("docker inspect -f '{{.State.Status}}' rank2", "created\n"),
            ("docker ps -a", "CONTAINER ID   IMAGE      COMMAND       CREATED          STATUS    "
             "PORTS     NAMES\n0123456789ab   sgl:1      \"/entry\"      20 seconds ago   Created  "
             "           rank2\n"),
        ],
    )  # fmt: skip
    def test_container_that_never_ran_fails(self, line: str, text: str) -> None:
        (found,) = failing("SSH_ARGV_REPARSED", command(line, text, "n3"))
        assert (found.node, found.verdict) == ("n3", "FAIL")
        assert "rank2 is in state created" in found.observed

    def test_argv_that_quoting_keeps_passes(self) -> None:
        argv = ["docker", "run", "--x", '{"a": "b c\'d"}', "line\nbreak", "$HOME"]
        (found,) = about("SSH_ARGV_REPARSED", what("argv under test", argv))
        assert found.outcome == "pass"

    def test_running_and_ended_containers_are_no_such_fault(self) -> None:
        line = "docker ps -a --format '{{.Names}} {{.Status}}'"
        assert loud(command(line, "rank0 Up 2 hours\nrank1 Exited (0) 5 minutes ago\n")) == []


class TestTools:
    def test_old_ptxas_is_named_with_its_bound(self) -> None:
        text = "Cuda compilation tools, release 12.9, V12.9.86\n"
        (found,) = failing("CTR_PTXAS_SM121", command("docker run --rm i ptxas --version", text))
        assert "12.9 < 13.0" in found.observed
        assert "TRITON_PTXAS_PATH" in found.fix

    @pytest.mark.parametrize("release", ["13.0", "13.2", "14.0"])
    def test_ptxas_that_knows_gb10_passes(self, release: str) -> None:
        text = f"ptxas: NVIDIA\nCuda compilation tools, release {release}, V{release}.1\n"
        assert loud(command("ptxas --version", text)) == []

    SMI = "| NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0     |\n"

    @pytest.mark.parametrize(
        ("line", "nvcc", "verdict"),
        [
            ("nvcc --version", "13.2", "WARN"),
            ("docker run --rm image nvcc -V | tail -1", "13.1", "WARN"),
            ("nvcc --version", "13.0", "PASS"),
            ("nvcc --version", "12.9", "PASS"),
        ],
    )
    def test_toolkit_is_compared_with_the_driver(self, line: str, nvcc: str, verdict: str) -> None:
        text = f"Cuda compilation tools, release {nvcc}, V{nvcc}.78\n"
        (found,) = about(
            "CTR_TOOLKIT_NEWER", command(line, text), command("nvidia-smi", self.SMI, "n1")
        )
        assert found.verdict == verdict
        if verdict == "WARN":
            assert f"{nvcc} > 13.0" in found.observed


class TestFlags:
    HELP = "usage: launch_server.py [-h] --model-path P\n\noptions:\n  --tp-size N  --nnodes-x\n"

    def test_unknown_flags_are_listed(self) -> None:
        argv = "python3 -m sglang.launch_server --model-path /w --tp-size 4 --nnodes 4 --bar=3"
        (found,) = failing(
            "ENG_UNKNOWN_FLAG",
            command("docker run --rm i python3 -m sglang.launch_server --help", self.HELP),
            what("rendered argv", argv),
        )
        assert "--nnodes, --bar" in found.observed
        assert "--tp-size" not in found.observed

    def test_known_flags_pass(self) -> None:
        readings = (
            command("vllm serve --help", "usage: vllm serve\noptions:\n --model M --port P\n"),
            what("rendered argv", ["vllm", "serve", "--model", "--port=8", "-q"]),
        )
        assert loud(*readings) == []


class TestLibraries:
    PINS = what("pins of the profile", "nvidia-cutlass-dsl==4.5.2\nflashinfer-python>=0.6.14\n")

    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("pip list", "Package Version\n------- -------\nflashinfer-python 0.6.12\n"
             "nvidia_cutlass_dsl 4.5.2\n"),
            ("docker run --rm i pip freeze",
             "flashinfer_python==0.6.12\nnvidia-cutlass-dsl==4.5.2\n"),
            ("uv pip list --format json", '[{"name":"flashinfer-python","version":"0.6.12"},'
             '{"name":"nvidia-cutlass-dsl","version":"4.5.2"}]'),
        ],
    )  # fmt: skip
    def test_library_below_its_pin_is_named(self, line: str, text: str) -> None:
        (found,) = failing("ENG_LIB_SKEW", command(line, text), self.PINS)
        assert found.observed == "flashinfer-python 0.6.12, wanted >=0.6.14"

    @pytest.mark.parametrize(
        ("version", "specifier", "holds"),
        [
            ("4.5.2", "==4.5.2", True), ("4.6.0", "==4.5.2", False), ("0.6.14", ">=0.6.14", True),
            ("0.10.0", ">=0.6.14", True), ("0.6.14.post1", ">=0.6.14", True),
            ("1.0", "==1.0.0", True),
            ("1.2.9", "~=1.2.3", True), ("1.3.0", "~=1.2.3", False), ("2.0", ">=1,<2", False),
            ("2.5.1", "==2.5.*", True), ("2.9.1+cu130", "==2.9.1", True),
            ("2.9.1+cu128", "==2.9.1+cu130", False), ("1.0", "!=1.0", False), ("3", "", True),
        ],
    )  # fmt: skip
    def test_specifiers_are_met_as_pip_meets_them(
        self, version: str, specifier: str, holds: bool
    ) -> None:
        assert satisfies(version, specifier) is holds


def test_engine_without_the_rdma_devices_is_named() -> None:
    document = {
        "Name": "/rank1", "HostConfig": {"Devices": None, "Privileged": False},
        "Config": {"Env": ["NCCL_IB_HCA=rocep1s0f0"]},
    }  # fmt: skip
    reading = command("docker inspect rank1", json.dumps([document]), "n2")
    assert "rank1 is not given /dev/infiniband" in failing("CTR_NO_INFINIBAND", reading)[0].observed
    document["HostConfig"] = {"Privileged": True}
    assert (
        failing("CTR_NO_INFINIBAND", command("docker inspect rank1", json.dumps([document]))) == []
    )


def test_variables_of_one_inspected_container_are_read_with_it() -> None:
    document = [{"Name": "/rank1", "Config": {"Env": ["NCCL_IB_GID_INDEX=", "A=b"]}}]
    reading = Reading(command="docker inspect rank1", text=json.dumps(document), node="rank1")
    assert failing("NET_GID_EMPTY_STRING", reading)
