"""Nodes are machines of their own: reachable, isolated, and gone without a trace afterwards."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sparkserve.model.cluster import Cluster
from tests.testbed import leavings
from tests.testbed.cluster import Testbed
from tests.testbed.plugin import MakeTestbed

pytestmark = pytest.mark.testbed


def ssh(testbed: Testbed, number: int, command: str, user: str = "spark") -> str:
    argv = testbed.ssh_argv(testbed.nodes[number - 1], [command], user=user)
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_every_node_answers_ssh_with_its_own_name(testbed: Testbed) -> None:
    names = [ssh(testbed, number, "hostname") for number in (1, 2, 3, 4)]
    assert names == ["spark1", "spark2", "spark3", "spark4"]


def test_the_plain_user_has_sudo_and_root_has_a_login(testbed: Testbed) -> None:
    assert ssh(testbed, 1, "id -un; sudo -n id -un") == "spark\nroot"
    assert ssh(testbed, 1, "id -un", user="root") == "root"


def test_what_one_node_writes_no_other_node_and_not_the_machine_sees(testbed: Testbed) -> None:
    first, second = testbed.nodes[:2]
    places = [f"{folder}/only-on-spark1" for folder in
              ("/dev/shm", "/tmp", "/run", "/mnt/nvme", "/home/spark", "/etc")]  # fmt: skip
    first.inside(["touch", *places])
    for place in places:
        assert first.inside(["ls", place]).stdout.strip() == place
        assert second.inside(["ls", place], check=False).returncode != 0
        assert not Path(place).exists()


def test_a_node_sees_its_own_processes_only(testbed: Testbed) -> None:
    listed = testbed.nodes[0].inside(["sh", "-c", "cat /proc/[0-9]*/comm"]).stdout.split()
    assert "nodeinit" in listed
    assert "pytest" not in " ".join(listed)
    assert testbed.nodes[0].processes()[0].pid == 1


def test_the_repository_interpreter_runs_inside_as_the_plain_user(testbed: Testbed) -> None:
    command = f"{sys.executable} -c 'import sparkserve, os; print(os.getuid())'"
    repository = Path(__file__).resolve().parents[2]
    assert ssh(testbed, 3, f"cd {repository} && {command}") == "1500"


def test_the_model_of_the_cluster_names_every_node(testbed: Testbed) -> None:
    cluster = testbed.cluster()
    assert [node.host for node in cluster.nodes] == [f"10.77.0.1{n}" for n in (1, 2, 3, 4)]
    assert [node.fabric_address for node in cluster.nodes] == [
        f"10.77.1.1{n}" for n in (1, 2, 3, 4)
    ]
    assert Cluster.model_validate(tomllib.loads(testbed.cluster_toml())) == cluster


@pytest.mark.parametrize("init", ["mini", "systemd"])
def test_nothing_is_left_after_down(make_testbed: MakeTestbed, init: str) -> None:
    links = {path.name for path in Path("/sys/class/net").iterdir()}
    cluster = make_testbed(nodes=2, init=init, nvme="ext4", nvme_mib=16)
    cluster.nodes[0].slow(1)
    assert ssh(cluster, 2, "hostname") == "spark2"
    up = traces(cluster.prefix)
    kinds = {"mounts", "namespaces", "folders", "processes", "loops"}
    assert {kind for kind, found in up.items() if found} == kinds | (
        {"cgroups"} if init == "systemd" else set()
    )
    assert {path.name for path in Path("/sys/class/net").iterdir()} == links
    cluster.down()
    assert {kind: found for kind, found in traces(cluster.prefix).items() if found} == {}


def traces(prefix: str) -> dict[str, list[str]]:
    """What the machine shows of one cluster, by kind."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    commands = [read_or_empty(entry / "cmdline") for entry in Path("/proc").glob("[0-9]*")]
    loops = Path("/sys/block").glob("loop*/loop/backing_file")
    found = {
        "mounts": [line.split()[4] for line in mounts],
        "namespaces": [path.name for path in Path("/run/netns").iterdir()],
        "cgroups": [str(path) for path in Path("/sys/fs/cgroup").glob("*/sst*")],
        "folders": [path.name for path in leavings.BASE.iterdir()],
        "processes": [command.replace("\0", " ") for command in commands],
        "loops": [read_or_empty(path) for path in loops],
    }
    return {kind: [text for text in texts if prefix in text] for kind, texts in found.items()}


def read_or_empty(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
