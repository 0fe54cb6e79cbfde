"""Clusters on the command line, their host keys fetched from a real sshd on loopback."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkserve import clusters
from sparkserve.paths import known_hosts_file
from sparkserve.report.console import Console
from tests.cli.conftest import Outcome, Run
from tests.ports import free_port
from tests.transport.loopback_sshd import LoopbackSshd, make_key, running_sshd


@pytest.fixture(scope="module")
def _servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LoopbackSshd]]:
    folder = tmp_path_factory.mktemp("sshd")
    with running_sshd(folder / "one") as one, running_sshd(folder / "two") as two:
        yield [one, two]


@pytest.fixture
def servers(_servers: list[LoopbackSshd]) -> list[LoopbackSshd]:
    """Two nodes of one address and different ports."""
    return _servers


def hosts_of(servers: list[LoopbackSshd]) -> str:
    return ",".join(f"{getpass.getuser()}@127.0.0.1:{server.port}" for server in servers)


def line_of(server: LoopbackSshd) -> str:
    kind, blob, *_ = Path(f"{server.host_key}.pub").read_text().split()
    return f"[127.0.0.1]:{server.port} {kind} {blob}"


def recorded() -> list[str]:
    return known_hosts_file().read_text().splitlines() if known_hosts_file().exists() else []


def fingerprint(server: LoopbackSshd) -> str:
    """As ssh-keygen itself computes it."""
    import subprocess

    text = subprocess.run(
        ["ssh-keygen", "-lf", f"{server.host_key}.pub"], capture_output=True, text=True, check=True
    ).stdout
    return text.split()[1]


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sits at the terminal."""
    monkeypatch.setattr(Console, "can_ask", property(lambda _: True))


def init(run: Run, servers: list[LoopbackSshd], *args: str, typed: str | None = None) -> Outcome:
    return run("cluster", "init", "lab", "--hosts", hosts_of(servers), *args, typed=typed)


def test_accepted_keys_and_cluster_are_written(run: Run, servers: list[LoopbackSshd]) -> None:
    outcome = init(run, servers, "--yes", "--fabric", "10.1.0.1,10.1.0.2", "--default")
    assert outcome.code == 0, outcome.err
    for server in servers:
        assert fingerprint(server) in outcome.err
        assert line_of(server) in recorded()
    cluster = clusters.load("lab").cluster
    assert [node.port for node in cluster.nodes] == [server.port for server in servers]
    assert [node.fabric_address for node in cluster.nodes] == ["10.1.0.1", "10.1.0.2"]
    assert clusters.default_name() == "lab"
    assert "saved cluster lab" in outcome.out


def test_user_root_and_key_are_kept(run: Run, servers: list[LoopbackSshd]) -> None:
    key = str(servers[0].user_key)
    args = ["--user", "me", "--root", "/srv/s", "--identity", key, "--yes", "--json"]
    hosts = f"127.0.0.1:{servers[0].port},you@127.0.0.1:{servers[1].port}"
    outcome = run("cluster", "init", "lab", "--hosts", hosts, *args)
    assert outcome.data["cluster"]["root"] == "/srv/s"
    cluster = clusters.load("lab").cluster
    assert [node.user for node in cluster.nodes] == ["me", "you"]
    assert cluster.identity_file == key
    assert clusters.default_name() is None


def test_keys_are_shown_before_they_are_accepted(
    run: Run, servers: list[LoopbackSshd], person: None
) -> None:
    outcome = init(run, servers, typed="yes\n")
    assert outcome.code == 0
    question = outcome.err.index("[y/N]")
    assert all(outcome.err.index(fingerprint(server)) < question for server in servers)


@pytest.mark.parametrize("typed", ["no\n", "\n", ""])
def test_refused_keys_leave_nothing(
    run: Run, servers: list[LoopbackSshd], person: None, typed: str
) -> None:
    outcome = init(run, servers, typed=typed)
    assert outcome.code == 2
    assert "host keys not accepted; nothing was written" in outcome.err
    assert (recorded(), clusters.names()) == ([], ())


def test_nobody_to_ask_is_told_what_to_do(run: Run, servers: list[LoopbackSshd]) -> None:
    outcome = init(run, servers)
    assert outcome.code == 2
    assert "run the same command with --yes" in outcome.err
    assert fingerprint(servers[0]) in outcome.err
    assert (recorded(), clusters.names()) == ([], ())


def test_every_unreachable_node_is_named_and_nothing_written(
    run: Run, servers: list[LoopbackSshd]
) -> None:
    dead = [free_port(), free_port()]
    hosts = hosts_of(servers[:1]) + "".join(f",127.0.0.1:{port}" for port in dead)
    outcome = run("cluster", "init", "lab", "--hosts", hosts, "--yes")
    assert outcome.code == 3
    assert fingerprint(servers[0]) in outcome.err, "the good node does not hide"
    for port in dead:
        assert f"127.0.0.1-{port}: 127.0.0.1:{port} refused the connection" in outcome.err
    assert "nothing was written" in outcome.err
    assert (recorded(), clusters.names()) == ([], ())


def test_this_machine_has_no_key(run: Run) -> None:
    outcome = run("cluster", "init", "here", "--hosts", "localhost", "--user", "me")
    assert outcome.code == 0
    assert clusters.load("here").cluster.nodes[0].user is None


def test_known_keys_need_no_question(run: Run, servers: list[LoopbackSshd]) -> None:
    assert init(run, servers, "--yes").code == 0
    before = recorded()
    outcome = run("cluster", "trust", "--cluster", "lab")
    assert outcome.code == 0
    assert outcome.out == "nothing to record: every key was known\n"
    assert recorded() == before


def test_existing_cluster_is_not_replaced_unasked(
    run: Run, servers: list[LoopbackSshd], person: None
) -> None:
    assert init(run, servers, "--yes").code == 0
    outcome = run("cluster", "init", "lab", "--hosts", hosts_of(servers[:1]), typed="no\n")
    assert outcome.code == 2
    assert "cluster lab was left as it is" in outcome.err
    assert len(clusters.load("lab").cluster.nodes) == 2


class TestTrust:
    """``cluster trust``."""

    def test_changed_key_is_shown_beside_the_recorded_one(
        self, run: Run, tmp_path: Path, person: None
    ) -> None:
        with running_sshd(tmp_path / "server") as server:
            assert init(run, [server], "--yes").code == 0
            old = fingerprint(server)
            server.stop()
            server.host_key = make_key(tmp_path / "new_key")
            server.start()
            refused = run("cluster", "trust", "127.0.0.1", typed="no\n")
            assert refused.code == 2
            assert old in refused.err
            assert fingerprint(server) in refused.err
            assert "HAS CHANGED" in refused.err
            assert f"until now ssh-ed25519 {old}" in refused.err
            assert old not in fingerprint(server)
            accepted = run("cluster", "trust", "127.0.0.1", typed="y\n")
            assert accepted.code == 0
            assert recorded() == [line_of(server)], "the old key is gone"

    def test_node_is_found_in_any_cluster(self, run: Run, servers: list[LoopbackSshd]) -> None:
        assert init(run, servers, "--yes").code == 0
        known_hosts_file().unlink()
        name = clusters.load("lab").cluster.nodes[1].name
        outcome = run("cluster", "trust", name, "--yes", "--json")
        assert [key["state"] for key in outcome.data["host_keys"]] == ["new"]
        assert recorded() == [line_of(servers[1])]

    def test_host_that_no_cluster_has_can_be_trusted(
        self, run: Run, servers: list[LoopbackSshd]
    ) -> None:
        outcome = run("cluster", "trust", f"127.0.0.1:{servers[0].port}", "--yes")
        assert outcome.code == 0
        assert recorded() == [line_of(servers[0])]

    def test_all_nodes_of_a_cluster(self, run: Run, servers: list[LoopbackSshd]) -> None:
        assert init(run, servers, "--yes").code == 0
        known_hosts_file().unlink()
        assert run("cluster", "trust", "-c", "lab", "-y").code == 0
        assert recorded() == [line_of(server) for server in servers]

    def test_unknown_node_of_a_named_cluster(self, run: Run, servers: list[LoopbackSshd]) -> None:
        assert init(run, servers, "--yes").code == 0
        outcome = run("cluster", "trust", "spark9", "--cluster", "lab")
        assert outcome.code == 2
        assert "has no node 'spark9', expected one of: 127.0.0.1-" in outcome.err


class TestList:
    """``cluster list``, ``show`` and ``use``."""

    @pytest.fixture(autouse=True)
    def _saved(self) -> None:
        lab = clusters.from_hosts("me@spark1,me@spark2:2222", name="lab")
        clusters.save(lab, overrides={"serving": {"port": 9000}})
        clusters.save(clusters.this_machine().model_copy(update={"name": "here"}))
        (clusters.folder() / "bad.toml").write_text("nodes = 1\n")

    def test_list(self, run: Run) -> None:
        assert run("cluster", "use", "lab").out == "commands use cluster lab\n"
        run("cluster", "list").golden("cluster-list")
        assert run("cluster", "list", "-q").out == "bad\nhere\nlab\n"
        entries = run("cluster", "list", "--json").data["clusters"]
        assert [entry["default"] for entry in entries] == [False, False, True]

    def test_show(self, run: Run) -> None:
        run("cluster", "show", "lab").golden("cluster-show")
        assert run("cluster", "show", "lab", "-q").out == "spark1\nspark2\n"
        assert run("cluster", "show", "lab", "--json").data["cluster"]["overrides"] == {
            "serving": {"port": 9000}
        }

    def test_show_without_a_name_is_this_machine_or_the_default(self, run: Run) -> None:
        assert "this machine: no cluster is named" in run("cluster", "show").out
        run("cluster", "use", "lab")
        assert "why        default cluster lab" in run("cluster", "show").out
        assert run("cluster", "use", "--none").out == "commands use this machine\n"
        assert clusters.default_name() is None

    def test_default_whose_file_is_gone_is_mentioned(self, run: Run) -> None:
        run("cluster", "use", "lab")
        (clusters.folder() / "lab.toml").unlink()
        outcome = run("cluster", "list")
        assert outcome.code == 0
        assert "the default cluster 'lab' has no file" in outcome.err


class TestImport:
    """``cluster import``."""

    @pytest.fixture
    def env_file(self, tmp_path: Path) -> Path:
        path = tmp_path / ".env"
        path.write_text(
            "HEAD_IP=10.1.0.1\nWORKER_IPS=10.1.0.2\nWORKER_HOSTS=spark2\nHEAD_HOST=spark1\n"
            "WORKER_USER=me\nSERVER_PORT=9000\nWORKER_PASS=geheim\nNFS_EXPORT=1\nTP_SIZE=2\n"
        )
        return path

    def test_every_key_is_told(self, run: Run, env_file: Path) -> None:
        outcome = run("cluster", "import", str(env_file), "lab", "--default")
        outcome.golden("cluster-import")
        assert outcome.code == 0
        file = clusters.load("lab")
        assert [node.host for node in file.cluster.nodes] == ["spark1", "spark2"]
        assert file.overrides["serving"] == {"port": 9000}
        assert clusters.default_name() == "lab"

    def test_no_secret_is_shown_or_stored(self, run: Run, env_file: Path) -> None:
        for args in ([], ["--json"]):
            outcome = run("cluster", "import", str(env_file), "lab", "--yes", *args)
            assert "geheim" not in outcome.out + outcome.err
        assert "geheim" not in (clusters.folder() / "lab.toml").read_text()

    def test_dry_run_writes_nothing(self, run: Run, env_file: Path) -> None:
        outcome = run("cluster", "import", str(env_file), "lab", "--dry-run", "--json")
        assert outcome.data["cluster"]["path"] is None
        assert outcome.data["used"]["SERVER_PORT"] == "serving.port"
        assert "WORKER_PASS" in [one["key"] for one in outcome.data["dropped"]]
        assert clusters.names() == ()

    def test_head_can_be_this_machine(self, run: Run, env_file: Path) -> None:
        assert run("cluster", "import", str(env_file), "lab", "--head-local").code == 0
        assert clusters.load("lab").cluster.nodes[0].is_local

    def test_existing_cluster_is_not_replaced_unasked(self, run: Run, env_file: Path) -> None:
        assert run("cluster", "import", str(env_file), "lab").code == 0
        outcome = run("cluster", "import", str(env_file), "lab")
        assert outcome.code == 2
        assert "--yes replaces it" in outcome.err

    def test_wrong_file_is_named_with_its_line(self, run: Run, env_file: Path) -> None:
        env_file.write_text("HEAD_IP=10.1.0.1\nSERVER_PORT=high\n")
        outcome = run("cluster", "import", str(env_file))
        assert outcome.code == 2
        assert "$TMP/.env line 2: SERVER_PORT = 'high'" in outcome.err
