"""Docker's answers in all their shapes, and what other readers make of disks and sockets."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sparkserve.facts.containers import Container, Containers, DockerInfo, Memlock, memlock_of
from sparkserve.facts.docker_output import parse_call
from sparkserve.facts.filesystems import Filesystem, Filesystems, is_below
from sparkserve.facts.probe import Context, UnusableOutput
from sparkserve.facts.reader import Fact, understand, unwrapped
from sparkserve.facts.registry import ASKS, READERS
from sparkserve.facts.weights import Listing, ShardHeader
from sparkserve.model.reading import Reading


def read(line: str, text: str, kind: type[Fact], **more: object) -> Fact:
    """The one fact of a kind that a command's output holds."""
    reading = Reading(command=line, text=text, **more)  # type: ignore[arg-type]
    found = understand([reading], READERS)
    assert found.unread == ()
    (fact,) = [one.fact for one in found.observations if isinstance(one.fact, kind)]
    return fact


@pytest.mark.parametrize(
    ("line", "verb", "names"),
    [
        ("docker ps -a --format '{{.Names}} {{.State}}'", "ps", ()),
        ("docker container ls --all", "ps", ()),
        ("docker inspect -f '{{.Name}}' $(docker ps -aq)", "inspect", ()),
        ("docker -H ssh://x inspect --type=container rank1", "inspect", ("rank1",)),
        ("docker image inspect --format='{{.Id}}' a:1 | head -1", "image inspect", ("a:1",)),
        ("docker run --rm -e A=b image python3 -m x --help", "run",
         ("image", "python3", "-m", "x", "--help")),
    ],
)  # fmt: skip
def test_command_line_is_understood_in_any_order(
    line: str, verb: str, names: tuple[str, ...]
) -> None:
    call = parse_call(line)
    assert (call.verb, call.names) == (verb, names)


def test_pipe_inside_a_template_is_no_pipe_of_the_shell() -> None:
    call = parse_call("docker ps --format '{{.Names}} | {{.State}}' | grep rank")
    assert call.template == "{{.Names}} | {{.State}}"
    assert call.filtered


class TestTemplates:
    @pytest.mark.parametrize(
        ("template", "line"),
        [
            ("{{.Status}} {{.Names}}", "Exited (137) 5 minutes ago rank1"),
            ("{{.Names}}\\t{{.Status}}\\t{{.ID}}", "rank1\tExited (137) 5 minutes ago\t0123ab"),
            ("table {{.Names}}\\t{{.Status}}", "NAMES STATUS\nrank1    Exited (137) 5 minutes ago"),
            ("name={{.Names}}, {{.Status}}", "name=rank1, Exited (137) 5 minutes ago"),
            ("{{json .}}", '{"Names":"rank1","Status":"Exited (137) 5 minutes ago"}'),
        ],
    )  # fmt: skip
    def test_values_are_taken_by_the_template_that_printed_them(
        self, template: str, line: str
    ) -> None:
        fact = read(f"docker ps -a --format '{template}'", line + "\n", Containers)
        assert isinstance(fact, Containers)
        (one,) = fact.containers
        assert (one.name, one.status, one.exit_code) == ("rank1", "exited", 137)
        assert fact.all_listed

    def test_text_of_another_template_is_not_guessed(self) -> None:
        reading = Reading(
            command="docker inspect -f '{{.State.Status}} {{.Id}}' x", text="a b c d\n"
        )
        assert all("template" in o.fact.reason for o in understand([reading], READERS).observations)

    def test_template_that_is_not_known_is_said_to_be(self) -> None:
        reading = Reading(command="docker ps --format '{{if .X}}y{{end}}'", text="y\n")
        (first, *_) = understand([reading], READERS).observations
        assert "not understood" in first.fact.reason


class TestContainers:
    def test_whole_inspection_is_read(self) -> None:
        document = {
            "Id": "ab" * 32, "Name": "/rank1", "RestartCount": 2, "Image": "sha256:00",
            "State": {"Status": "exited", "ExitCode": 137, "OOMKilled": False, "Pid": 0},
            "HostConfig": {
                "RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3},
                "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
                "Devices": [{"PathOnHost": "/dev/infiniband"}],
            },
            "Config": {"Image": "sgl:1", "Labels": {"a": "b"}, "Env": ["A=b", "C="]},
            "Mounts": [{"Type": "volume", "Name": "w", "Destination": "/w", "RW": False}],
            "Args": ["--model-path", "/w"],
        }  # fmt: skip
        fact = read("docker inspect rank1", json.dumps([document]), Containers)
        assert isinstance(fact, Containers)
        (one,) = fact.containers
        assert (one.name, one.status, one.exit_code, one.oom_killed) == (
            "rank1",
            "exited",
            137,
            False,
        )
        assert (one.restart_count, one.restart_policy, one.restart_limit) == (2, "on-failure", 3)
        assert (one.memlock_bytes, one.devices) == (-1, ("/dev/infiniband",))
        assert one.environment == ("A=b", "C=")
        assert one.mounts is not None
        assert (one.mounts[0].source, one.mounts[0].writable) == ("w", False)

    def test_readings_of_one_container_become_one(self) -> None:
        listed = Containers(containers=(Container(id="ab" * 6, name="rank1", status="exited"),))
        looked = Containers(containers=(Container(id="ab" * 32, exit_code=137),), all_listed=True)
        merged = listed.merged(looked)
        (one,) = merged.containers
        assert (one.name, one.status, one.exit_code) == ("rank1", "exited", 137)
        assert merged.all_listed

    def test_container_that_was_named_on_the_line_has_that_name(self) -> None:
        fact = read("docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' rank1", "exited 1\n",
                    Containers)  # fmt: skip
        assert isinstance(fact, Containers)
        (one,) = fact.containers
        assert (one.name, one.status, one.exit_code) == ("rank1", "exited", 1)

    def test_filtered_list_does_not_tell_what_is_missing(self) -> None:
        fact = read("docker ps --filter name=x --format '{{.Names}}'", "x1\n", Containers)
        assert isinstance(fact, Containers)
        assert fact.running_listed is None

    def test_missing_runtimes_are_not_an_empty_list(self) -> None:
        fact = read(
            "docker info -f '{{.Driver}} {{.DefaultRuntime}}'", "overlay2 nvidia\n", DockerInfo
        )
        assert isinstance(fact, DockerInfo)
        assert (fact.runtimes, fact.default_runtime) == (None, "nvidia")


class TestMemlock:
    def test_units_are_those_of_the_text(self) -> None:
        assert memlock_of("8192\n", in_container=True).limit_kib == 8192
        limits = "Max locked memory         8388608              8388608              bytes\n"
        assert memlock_of(limits, in_container=True).limit_kib == 8192
        assert memlock_of("unlimited", in_container=True).is_unlimited

    @pytest.mark.parametrize("text", ["", "sh: ulimit: bad", "٣", "-5"])
    def test_garbage_is_no_limit(self, text: str) -> None:
        with pytest.raises(UnusableOutput):
            memlock_of(text, in_container=True)

    def test_shell_of_the_host_is_told_from_a_container(self) -> None:
        host = read("ulimit -l", "8192\n", Memlock)
        inside = read("docker exec r sh -c 'ulimit -l'", "8192\n", Memlock)
        assert isinstance(host, Memlock)
        assert isinstance(inside, Memlock)
        assert (host.in_container, inside.in_container) == (False, True)


class TestUnwrapping:
    @pytest.mark.parametrize(
        ("line", "inner"),
        [
            ("ssh spark2 'df -h /data'", "df -h /data"),
            ("ssh -o BatchMode=yes -p 2222 u@10.0.0.2 df -h", "df -h"),
            ("bash -lc 'df -h'", "df -h"),
            ("docker exec -it rank1 cat /etc/nccl.conf", "cat /etc/nccl.conf"),
        ],
    )
    def test_command_behind_ssh_or_a_shell_is_found(self, line: str, inner: str) -> None:
        found = unwrapped(Reading(command=line))
        assert found is not None
        assert found.command == inner

    def test_disks_of_a_container_are_not_those_of_the_node(self) -> None:
        assert unwrapped(Reading(command="docker exec rank1 df -h")) is None
        assert unwrapped(Reading(command="df -h")) is None


class TestFilesystems:
    KNOWN = Filesystems(
        filesystems=(
            Filesystem(target="/", available_bytes=1),
            Filesystem(target="/data", available_bytes=2),
            Filesystem(target="/data", kind="xfs"),
        )
    )

    @pytest.mark.parametrize(
        ("path", "target"),
        [("/data", "/data"), ("/data/engram/x", "/data"), ("/database", "/"), ("/x", "/")],
    )
    def test_longest_mount_point_holds_a_path(self, path: str, target: str) -> None:
        found = self.KNOWN.holding(path)
        assert found is not None
        assert found.target == target

    def test_what_several_texts_say_of_one_mount_is_put_together(self) -> None:
        found = self.KNOWN.holding("/data/x")
        assert found is not None
        assert (found.available_bytes, found.kind) == (2, "xfs")

    def test_answer_for_the_very_path_wins(self) -> None:
        asked = Filesystem(target="/mnt/raid", path="/data/x", kind="ext4")
        both = Filesystems(filesystems=(*self.KNOWN.filesystems, asked))
        found = both.holding("/data/x")
        assert found is not None
        assert found.target == "/mnt/raid"

    def test_nothing_known_holds_nothing(self) -> None:
        assert Filesystems().holding("/x") is None
        assert is_below("/a/b", "/a/")
        assert not is_below("/ab", "/a")


@pytest.mark.parametrize(
    ("header", "size", "declares", "fault"),
    [(0, 100, None, True), (92, 100, None, False), (93, 100, None, True), (2, 10, 10, False),
     (2, 10, 12, True), (100_000_001, None, None, True)],
)  # fmt: skip
def test_header_ends_within_its_file(
    header: int, size: int | None, declares: int | None, fault: bool
) -> None:
    one = ShardHeader(name="a", size_bytes=size, header_bytes=header, declares_bytes=declares)
    assert (one.fault is not None) is fault


def test_links_of_a_snapshot_are_listed_by_their_own_name() -> None:
    text = "lrwxrwxrwx 1 u u 52 Sep  1 10:00 a.safetensors -> ../../blobs/9f\n"
    fact = read("ls -l snapshots/ab", text, Listing)
    assert isinstance(fact, Listing)
    assert [one.name for one in fact.files] == ["a.safetensors"]


def test_secrets_of_containers_do_not_leave_the_node(tmp_path: Path) -> None:
    document = {
        "Id": "ab" * 32, "Name": "/rank1",
        "Args": ["--model-path", "/w", "--api-key", "kkk", "--port", "8"],
        "Config": {"Env": ["HF_TOKEN=hf_x", "OPENAI_API_KEY=sk", "NCCL_IB_HCA=roce", "PGPASS=a b"],
                   "Cmd": ["--api-key", "kkk"]},
    }  # fmt: skip
    docker = tmp_path / "docker"
    shown = (
        f'case "$1" in ps) echo abab ;; *) cat <<"END"\n{json.dumps([document])}\nEND\n;; esac\n'
    )
    docker.write_text(f"#!/bin/sh\n{shown}")
    docker.chmod(0o755)
    (ask,) = [one for one in ASKS if one.command == "docker inspect $(docker ps -aq)"]
    script = f'PATH="{tmp_path}:$PATH"\n{ask.script(Context(root="/"))}'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert [one for one in ("hf_x", "sk", "a b", "kkk") if one in done.stdout] == []
    reading = ask.reading("n1", 0, done.stdout)
    facts = [one.fact for one in understand([reading], READERS).observations]
    (containers,) = [fact for fact in facts if isinstance(fact, Containers)]
    assert containers.containers[0].args == ("--model-path", "/w")
    assert containers.containers[0].environment == ("NCCL_IB_HCA=roce",)
