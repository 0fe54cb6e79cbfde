"""Nodes are machines of their own: reachable, isolated, and gone without a trace afterwards."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sparkserve.model.cluster import Cluster
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
    import sys

    command = f"{sys.executable} -c 'import sparkserve, os; print(os.getuid())'"
    repository = Path(__file__).resolve().parents[2]
    assert ssh(testbed, 3, f"cd {repository} && {command}") == "1500"


def test_the_model_of_the_cluster_names_every_node(testbed: Testbed) -> None:
    cluster = testbed.cluster()
    assert [node.host for node in cluster.nodes] == [f"10.77.0.1{n}" for n in (1, 2, 3, 4)]
    assert [node.fabric_address for node in cluster.nodes] == [
        f"10.77.1.1{n}" for n in (1, 2, 3, 4)
    ]
    import tomllib

    assert Cluster.model_validate(tomllib.loads(testbed.cluster_toml())) == cluster


@pytest.mark.parametrize("init", ["mini", "systemd"])
def test_nothing_is_left_after_down(make_testbed: MakeTestbed, init: str) -> None:
    before = machine_state()
    cluster = make_testbed(nodes=2, init=init)
    assert ssh(cluster, 2, "hostname") == "spark2"
    assert machine_state() != before
    cluster.down()
    assert machine_state() == before


def machine_state() -> dict[str, set[str]]:
    """What a testbed adds to the machine while it is up."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    netns = Path("/run/netns")
    groups = Path("/sys/fs/cgroup").rglob("sst*")
    folder = Path("/run/sparkserve-testbed")
    commands = {path.read_text().replace("\0", " ") for path in processes("cmdline")}
    return {
        # the first `ip netns add` ever makes /run/netns itself a mount point, for good
        "mounts": {line.split()[4] for line in mounts} - {"/run/netns"},
        "namespaces": {path.name for path in netns.iterdir()} if netns.is_dir() else set(),
        "cgroups": {str(path) for path in groups},
        "folders": {path.name for path in folder.iterdir()} if folder.is_dir() else set(),
        "processes": {command for command in commands if "sparkserve-testbed" in command},
        "links": {path.name for path in Path("/sys/class/net").iterdir()},
    }


def processes(name: str) -> list[Path]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (entry / name).exists():
            found.append(entry / name)
    return found
