"""SSH alone: trust, keys, unreachable servers, lost connections, jump hosts."""

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sparkserve.errors import (
    AuthenticationError,
    ConfigError,
    ConnectionLostError,
    HostKeyError,
    NodeError,
    RemoteError,
    UnreachableError,
)
from sparkserve.model.cluster import Cluster, Node
from sparkserve.paths import known_hosts_file
from sparkserve.transport import ssh
from sparkserve.transport.connect import close_hosts, connect, fetch_host_key, resolve_root
from sparkserve.transport.hostkeys import HostKey, record_host_key
from sparkserve.transport.local import LocalHost
from sparkserve.transport.ssh import SshHost
from sparkserve.transport.target import configured_target, plain_target
from tests.ports import free_port
from tests.transport.loopback_sshd import make_key, running_sshd, wait_until
from tests.transport.processes import pids_of, sleeper


@pytest.fixture
def own_sshd(tmp_path):
    """A server that the test may stop and change."""
    with running_sshd(tmp_path / "own") as server:
        yield server


def error_of(cluster, known_hosts):
    group = connect(cluster, known_hosts=known_hosts, use_ssh_config=False)
    close_hosts(group.values())
    assert len(group.errors_by_node) == 1
    return next(iter(group.errors_by_node.values()))


def keygen_fingerprint(public_key):
    """What ssh-keygen says: an independent value."""
    done = subprocess.run(
        ["ssh-keygen", "-lf", str(public_key)], check=True, capture_output=True, text=True
    )
    return done.stdout.split()[1]


def test_an_unknown_key_is_refused_with_its_fingerprint_and_the_way_to_accept(sshd, tmp_path):
    error = error_of(sshd.cluster(), tmp_path / "empty")
    assert isinstance(error, HostKeyError)
    assert f"127.0.0.1:{sshd.port} is not known: ssh-ed25519" in error.message
    assert keygen_fingerprint(f"{sshd.host_key}.pub") in error.message
    assert error.hint == "sparkserve cluster trust spark1"


def test_a_fetched_and_recorded_key_is_trusted_from_then_on(sshd):
    node = sshd.node()
    key = fetch_host_key(sshd.cluster(), node, use_ssh_config=False)
    assert key.fingerprint_sha256 == keygen_fingerprint(f"{sshd.host_key}.pub")
    assert key.line == " ".join(
        [f"[127.0.0.1]:{sshd.port}", *Path(f"{sshd.host_key}.pub").read_text().split()[:2]]
    )
    path = record_host_key(key)
    assert path == known_hosts_file()
    assert path.stat().st_mode & 0o777 == 0o600
    group = connect(sshd.cluster(), use_ssh_config=False)
    assert not group.errors_by_node
    close_hosts(group.values())
    # OpenSSH itself finds the recorded key.
    found = subprocess.run(
        ["ssh-keygen", "-F", f"[127.0.0.1]:{sshd.port}", "-f", str(path)],
        check=False,
        capture_output=True,
    )
    assert found.returncode == 0


def test_recording_replaces_the_same_place_and_keeps_everything_else(tmp_path):
    path = tmp_path / "known_hosts"
    path.write_text("# mine\nother ssh-rsa AAAA\n10.0.0.2 ssh-rsa OLD\n10.0.0.2,x ssh-rsa BOTH\n")
    key = HostKey("10.0.0.2", "ssh-ed25519", "SHA256:x", "10.0.0.2 ssh-ed25519 NEW")
    record_host_key(key, path=path)
    record_host_key(key, path=path)
    assert path.read_text() == (
        "# mine\nother ssh-rsa AAAA\n10.0.0.2,x ssh-rsa BOTH\n10.0.0.2 ssh-ed25519 NEW\n"
    )


def test_a_changed_key_is_refused_with_both_fingerprints(own_sshd, tmp_path):
    old = keygen_fingerprint(f"{own_sshd.host_key}.pub")
    own_sshd.stop()
    own_sshd.host_key = make_key(tmp_path / "new_host_key")
    own_sshd.start()
    error = error_of(own_sshd.cluster(), own_sshd.known_hosts)
    assert isinstance(error, HostKeyError)
    assert "HAS CHANGED" in error.message
    assert old in error.message
    assert keygen_fingerprint(f"{own_sshd.host_key}.pub") in error.message


def test_a_key_of_another_type_than_the_recorded_one_counts_as_changed(own_sshd, tmp_path):
    own_sshd.stop()
    own_sshd.host_key = make_key(tmp_path / "rsa", kind="rsa")
    own_sshd.start()
    error = error_of(own_sshd.cluster(), own_sshd.known_hosts)
    assert "HAS CHANGED: recorded ssh-ed25519" in error.message
    assert "shown ssh-rsa" in error.message


def test_an_rsa_host_key_works_when_it_is_the_recorded_one(own_sshd, tmp_path):
    own_sshd.stop()
    own_sshd.host_key = make_key(tmp_path / "rsa", kind="rsa")
    own_sshd.trust()
    own_sshd.start()
    group = connect(own_sshd.cluster(), known_hosts=own_sshd.known_hosts, use_ssh_config=False)
    assert not group.errors_by_node
    close_hosts(group.values())


def test_our_own_file_wins_over_the_users(sshd, tmp_path):
    kind, blob, *_ = Path(f"{make_key(tmp_path / 'stale')}.pub").read_text().split()
    stale = tmp_path / "users"
    stale.write_text(f"[127.0.0.1]:{sshd.port} {kind} {blob}\n")
    target = dataclasses.replace(
        plain_target(sshd.node(), str(sshd.user_key)), known_hosts=(stale,)
    )
    host = SshHost(target, known_hosts=sshd.known_hosts)
    host.open()
    host.close()
    with pytest.raises(HostKeyError, match="HAS CHANGED"):
        SshHost(target, known_hosts=tmp_path / "absent").open()
    good = dataclasses.replace(target, known_hosts=(sshd.known_hosts,))
    host = SshHost(good, known_hosts=tmp_path / "absent")
    host.open()
    host.close()


def test_a_damaged_known_hosts_file_is_named(sshd, tmp_path):
    bad = tmp_path / "bad"
    bad.write_bytes(b"\xff\xfe broken\n")
    with pytest.raises(ConfigError, match=f"cannot read host keys of {bad}"):
        connect(sshd.cluster(), known_hosts=bad, use_ssh_config=False)


def test_a_refused_key_is_an_error_that_lists_what_was_offered(sshd, tmp_path):
    stranger = make_key(tmp_path / "stranger")
    cluster = sshd.cluster().model_copy(update={"identity_file": str(stranger)})
    error = error_of(cluster, sshd.known_hosts)
    assert isinstance(error, AuthenticationError)
    assert f"root@127.0.0.1:{sshd.port} accepted no key" in error.message
    assert f"{stranger} (ssh-ed25519 {keygen_fingerprint(f'{stranger}.pub')})" in error.message
    assert error.hint == f"ssh-copy-id -p {sshd.port} root@127.0.0.1"


def test_without_any_key_the_error_says_so(sshd):
    cluster = sshd.cluster().model_copy(update={"identity_file": None})
    error = error_of(cluster, sshd.known_hosts)
    assert isinstance(error, AuthenticationError)
    assert "offered: none" in error.message


def test_a_key_with_a_passphrase_is_named_as_unusable(sshd, tmp_path):
    locked = make_key(tmp_path / "locked", passphrase="secret")
    cluster = sshd.cluster().model_copy(update={"identity_file": str(locked)})
    error = error_of(cluster, sshd.known_hosts)
    assert isinstance(error, AuthenticationError)
    assert f"not usable: {locked} (needs a passphrase: ssh-add {locked})" in error.message


def test_a_file_that_is_no_key_is_named_as_unusable(sshd, tmp_path):
    (tmp_path / "text").write_text("hello")
    cluster = sshd.cluster().model_copy(update={"identity_file": str(tmp_path / "text")})
    assert "not usable: " in error_of(cluster, sshd.known_hosts).message


def test_a_missing_identity_file_is_a_configuration_error(sshd, tmp_path):
    cluster = sshd.cluster().model_copy(update={"identity_file": str(tmp_path / "absent")})
    with pytest.raises(ConfigError, match="absent does not exist"):
        connect(cluster, known_hosts=sshd.known_hosts, use_ssh_config=False)


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """A real ssh-agent."""
    path = tmp_path / "agent.sock"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until(path.exists, "the agent listens")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield path
    process.terminate()
    process.wait()


def test_the_agents_keys_are_used(sshd, agent):
    subprocess.run(["ssh-add", "-q", str(sshd.user_key)], check=True)
    cluster = sshd.cluster().model_copy(update={"identity_file": None})
    group = connect(cluster, known_hosts=sshd.known_hosts, use_ssh_config=False)
    assert not group.errors_by_node
    close_hosts(group.values())


def test_a_locked_identity_file_is_taken_from_the_agent_and_no_other_key(own_sshd, agent, tmp_path):
    locked = make_key(tmp_path / "locked", passphrase="secret")
    askpass = tmp_path / "askpass"
    askpass.write_text("#!/bin/sh\necho secret\n")
    askpass.chmod(0o700)
    environment = {**os.environ, "SSH_ASKPASS": str(askpass), "SSH_ASKPASS_REQUIRE": "force"}
    subprocess.run(["ssh-add", "-q", str(locked)], check=True, env=environment)
    subprocess.run(["ssh-add", "-q", str(own_sshd.user_key)], check=True)
    cluster = own_sshd.cluster().model_copy(update={"identity_file": str(locked)})
    assert isinstance(error_of(cluster, own_sshd.known_hosts), AuthenticationError)
    own_sshd.authorized.write_text(Path(f"{locked}.pub").read_text())
    group = connect(cluster, known_hosts=own_sshd.known_hosts, use_ssh_config=False)
    assert not group.errors_by_node
    close_hosts(group.values())


def unreachable(host, port=22):
    cluster = Cluster(name="x", nodes=(Node(name="spark1", host=host, port=port),))
    error = error_of(cluster, Path("/nonexistent"))
    assert isinstance(error, UnreachableError)
    return error.message


def test_a_closed_port_is_said_to_be_refused():
    assert "refused the connection: the machine is up" in unreachable("127.0.0.1", free_port())


def test_a_name_that_does_not_resolve_is_named():
    assert "the name no-such-host.invalid cannot be resolved" in unreachable("no-such-host.invalid")


def test_an_address_without_route_is_said_so():
    # 192.0.2.0/24 is reserved for documentation; an unreachable route needs no packet.
    with pytest.raises(OSError):
        socket.create_connection(("255.255.255.255", 22), timeout=5)
    assert "255.255.255.255:22" in unreachable("255.255.255.255")


@pytest.fixture
def fake_server():
    """A TCP server that does what the test says with each connection."""
    servers = []

    def serve(behave):
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def loop():
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                behave(client)

        threading.Thread(target=loop, daemon=True).start()
        return server.getsockname()[1]

    yield serve
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def test_a_server_that_says_nothing_is_not_waited_for_forever(fake_server, monkeypatch):
    monkeypatch.setattr(ssh, "CONNECT_TIMEOUT_S", 1)
    held = []
    message = unreachable("127.0.0.1", fake_server(held.append))
    for client in held:
        client.close()
    assert "not as an SSH server" in message


def test_a_server_that_speaks_something_else_is_said_so(fake_server):
    def greet(client):
        client.sendall(b"220 mail.example ESMTP\r\n" * 200)
        client.close()

    message = unreachable("127.0.0.1", fake_server(greet))
    assert "not as an SSH server" in message or "during the handshake" in message


def test_a_server_that_hangs_up_is_said_so(fake_server):
    message = unreachable("127.0.0.1", fake_server(lambda client: client.close()))
    assert "handshake" in message or "not as an SSH server" in message


def test_a_full_accept_queue_counts_as_no_answer(monkeypatch):
    monkeypatch.setattr(ssh, "CONNECT_TIMEOUT_S", 1)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        clients = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(server.getsockname())
            clients.append(client)
        message = unreachable("127.0.0.1", server.getsockname()[1])
        for client in clients:
            client.close()
    assert "no answer from 127.0.0.1" in message


def test_one_dead_node_does_not_hide_the_good_ones(sshd):
    dead = Node(name="spark2", host="127.0.0.1", port=free_port())
    cluster = sshd.cluster()
    cluster = cluster.model_copy(update={"nodes": (dead, *cluster.nodes)})
    group = connect(cluster, known_hosts=sshd.known_hosts, use_ssh_config=False)
    assert list(group) == ["spark1"]
    assert list(group.errors_by_node) == ["spark2"]
    assert group["spark1"].run(["true"], timeout_s=60).ok
    close_hosts(group.values())


def test_local_nodes_need_no_ssh():
    cluster = Cluster(name="x", nodes=(Node(name="me", host="local"),))
    group = connect(cluster)
    assert isinstance(group["me"], LocalHost)
    with pytest.raises(ConfigError, match="has no host key"):
        fetch_host_key(cluster, cluster.nodes[0])


def kill_sessions(server):
    assert server.sessions()
    for pid in server.sessions():
        os.kill(pid, signal.SIGKILL)


def test_a_connection_that_dies_during_a_command_is_lost_not_failed(own_sshd, mark):
    host = connect(own_sshd.cluster(), known_hosts=own_sshd.known_hosts, use_ssh_config=False)[
        "spark1"
    ]
    results, arrived = [], threading.Event()
    thread = threading.Thread(
        target=lambda: results.append(
            host.stream(
                ["sh", "-c", f"echo x; exec {sleeper(mark)}"],
                on_line=lambda line: arrived.set(),
                cancel=threading.Event(),
            )
        )
    )
    thread.start()
    assert arrived.wait(60)
    kill_sessions(own_sshd)
    thread.join(60)
    assert (results[0].status, results[0].exit_code) == ("lost", None)
    wait_until(lambda: not pids_of(mark), "the lifeline ended the command")
    host.close()


def test_the_next_call_after_a_lost_connection_opens_a_new_one(own_sshd):
    host = connect(own_sshd.cluster(), known_hosts=own_sshd.known_hosts, use_ssh_config=False)[
        "spark1"
    ]
    kill_sessions(own_sshd)
    wait_until(lambda: not own_sshd.sessions(), "the session is gone")
    wait_until(lambda: host.run(["true"], timeout_s=60).ok, "the host works again")
    kill_sessions(own_sshd)
    own_sshd.stop()

    def lost():
        result = host.run(["true"], timeout_s=60)
        return result.status == "lost" and "refused the connection" in result.stderr

    wait_until(lost, "a dead server is told as such")
    with pytest.raises(ConnectionLostError, match="the old file is intact"):
        host.put(b"x", "/tmp/never")
    with pytest.raises(NodeError):
        host.forward(1)
    host.close()


def test_a_connection_that_dies_during_a_put_leaves_the_old_file_and_no_part(own_sshd, tmp_path):
    host = connect(own_sshd.cluster(), known_hosts=own_sshd.known_hosts, use_ssh_config=False)[
        "spark1"
    ]
    path = tmp_path / "target" / "file"
    host.put(b"old", str(path))
    errors = []

    def put():
        try:
            host.put(b"new" * 20_000_000, str(path))
        except NodeError as error:
            errors.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    wait_until(lambda: list(path.parent.glob("*.part-*")), "the put has begun")
    kill_sessions(own_sshd)
    thread.join(60)
    assert isinstance(errors[0], ConnectionLostError)
    assert path.read_bytes() == b"old"
    wait_until(lambda: len(list(path.parent.iterdir())) == 1, "no part file is left")
    host.close()


def test_content_that_arrives_changed_is_refused_and_removed(ssh_host, tmp_path, monkeypatch):
    ssh_host.put(b"old", str(tmp_path / "file"))
    monkeypatch.setattr(
        ssh, "put_argv", lambda *args, make=ssh.put_argv: [*make(*args)[:-1], "0" * 64]
    )
    with pytest.raises(RemoteError, match=r"file arrived changed: sha256 [0-9a-f]{64}, expected"):
        ssh_host.put(b"new", str(tmp_path / "file"))
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_a_killed_wrapper_is_an_unknown_signal_not_a_lost_connection(ssh_host, mark):
    results = []
    thread = threading.Thread(
        target=lambda: results.append(
            ssh_host.run(
                [sys.executable, "-c", "import time; time.sleep(600)", mark], timeout_s=300
            )
        )
    )
    thread.start()
    wait_until(lambda: len(pids_of(mark)) >= 3, "wrapper, timeout and program run")
    # The wrapper first: it must not live to tell the others' end.
    for pid in sorted(pids_of(mark), key=lambda pid: b"limit=" not in command_line_of(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    thread.join(60)
    assert (results[0].status, results[0].exit_code) == ("exited", -128)
    assert ssh_host.run(["true"], timeout_s=60).ok


def command_line_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


CONTROLLER = """
import sys
from pathlib import Path
from sparkserve.model.cluster import Cluster
from sparkserve.transport.connect import connect
cluster = Cluster.model_validate_json(sys.argv[1])
host = connect(cluster, known_hosts=Path(sys.argv[2]), use_ssh_config=False)["spark1"]
mark = sys.argv[3] + sys.argv[4]
host.run([sys.executable, "-c", "import time; time.sleep(600)", mark], timeout_s=600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_controller_leaves_nothing_running(sshd, mark, number):
    # The controller's own command line must not count: it gets the mark in two parts.
    argv = [sys.executable, "-c", CONTROLLER, sshd.cluster().model_dump_json()]
    controller = subprocess.Popen(
        [*argv, str(sshd.known_hosts), mark[:4], mark[4:]], stderr=subprocess.DEVNULL
    )
    try:
        wait_until(
            lambda: [p for p in pids_of(mark) if b"limit=" in command_line_of(p)],
            "the command runs on the node",
        )
        controller.send_signal(number)
        controller.wait(60)
    finally:
        controller.kill()
        controller.wait()
    wait_until(lambda: not pids_of(mark), "nothing of it is left")


def test_fewer_sessions_than_threads_are_waited_for(tmp_path):
    with running_sshd(tmp_path / "narrow", extra="MaxSessions 2") as server:
        host = connect(server.cluster(), known_hosts=server.known_hosts, use_ssh_config=False)[
            "spark1"
        ]
        results = []
        threads = [
            threading.Thread(
                target=lambda: results.append(host.run(["sleep", "0.2"], timeout_s=60))
            )
            for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        host.close()
    assert [(r.status, r.exit_code, r.stderr) for r in results] == [("exited", 0, "")] * 10


def test_a_command_too_long_for_a_login_shell_is_refused_before_it_is_sent(ssh_host):
    with pytest.raises(ValueError, match="send it on stdin"):
        ssh_host.run(["echo", "x" * 130_000], timeout_s=60)
    assert ssh_host.run(["sh", "-c", "echo ${#1}", "x", "y" * 100_000], timeout_s=60).ok


def test_nothing_runs_on_a_closed_host(ssh_host):
    ssh_host.close()
    ssh_host.close()
    result = ssh_host.run(["true"], timeout_s=60)
    assert (result.status, result.stderr) == ("lost", "spark1: the connection was closed")


def test_a_forward_to_a_closed_port_ends_the_connection_and_keeps_serving(ssh_host):
    port = free_port()
    forwarded = ssh_host.forward(port)
    with socket.create_connection(("127.0.0.1", forwarded.port), 20) as client:
        assert client.recv(10) == b""
    with (
        socket.create_server(("127.0.0.1", port)) as server,
        socket.create_connection(("127.0.0.1", forwarded.port), 20) as client,
    ):
        far, _ = server.accept()
        far.sendall(b"hi")
        far.close()
        assert client.recv(10) == b"hi"
    forwarded.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", forwarded.port), 5)


def test_closing_the_host_closes_its_forwards(sshd):
    host = connect(sshd.cluster(), known_hosts=sshd.known_hosts, use_ssh_config=False)["spark1"]
    forwarded = host.forward(sshd.port)
    port = forwarded.port
    client = socket.create_connection(("127.0.0.1", port), 20)
    assert client.recv(4) == b"SSH-"
    host.close()
    client.settimeout(20)
    while client.recv(1000):
        pass
    client.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_a_root_is_resolved_on_the_node(host):
    import pwd

    home = (
        os.environ["HOME"] if isinstance(host, LocalHost) else pwd.getpwuid(os.getuid()).pw_dir
    ).rstrip("/")
    assert resolve_root(host, "~/sparkserve") == f"{home}/sparkserve"
    assert resolve_root(host, "~") == home
    assert resolve_root(host, "/srv/a b/") == "/srv/a b"
    assert resolve_root(host, "/") == "/"
    assert resolve_root(host, "~nobody/x") == pwd.getpwnam("nobody").pw_dir + "/x"
    for bad in ("", "x", "./x", "~$(id)/x", "~a b/x", "~;id"):
        with pytest.raises(ConfigError, match="expected an absolute path"):
            resolve_root(host, bad)
    with pytest.raises(NodeError, match="no-such-user"):
        resolve_root(host, "~no-such-user/x")


@pytest.fixture
def ssh_config(tmp_path, sshd):
    """A user's ssh_config with an alias, an Include and a jump host."""
    (tmp_path / "included").write_text(
        f"Host alias\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User root\n"
        f"  IdentityFile {sshd.user_key}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {sshd.known_hosts}\n"
    )
    config = tmp_path / "config"
    config.write_text(
        f"Include {tmp_path}/included\n"
        f"Host behind\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User root\n"
        f"  IdentityFile {sshd.user_key}\n  ProxyJump alias\n"
        f"  UserKnownHostsFile {sshd.known_hosts}\n"
        f"Host piped\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User root\n"
        f"  IdentityFile {sshd.user_key}\n  UserKnownHostsFile {sshd.known_hosts}\n"
        f"  ProxyCommand {sys.executable} {tmp_path}/pipe.py %h %p\n"
        "Host circle\n  ProxyJump circle2\nHost circle2\n  ProxyJump circle\n"
    )
    (tmp_path / "pipe.py").write_text(
        "import os, socket, sys, threading\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): s.sendall(data)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536): os.write(1, data)\n"
    )
    return config


@pytest.mark.parametrize("alias", ["alias", "behind", "piped"])
def test_an_alias_of_the_users_ssh_config_works(ssh_config, alias, tmp_path):
    target = configured_target(Node(name="spark1", host=alias), None, config_file=ssh_config)
    host = SshHost(target, known_hosts=tmp_path / "absent")
    assert host.run(["echo", "ok"], timeout_s=60).stdout == "ok\n"
    host.close()


def test_an_alias_is_resolved_as_openssh_does(ssh_config, sshd):
    target = configured_target(Node(name="n", host="behind"), None, config_file=ssh_config)
    assert (target.host, target.port, target.user) == ("127.0.0.1", sshd.port, "root")
    assert target.identity_files == (sshd.user_key,)
    assert [hop.address for hop in target.jumps] == [f"127.0.0.1:{sshd.port}"]
    assert target.jumps[0].use_agent is False


def test_the_cluster_file_wins_over_the_ssh_config(ssh_config, tmp_path):
    key = make_key(tmp_path / "other")
    node = Node(name="n", host="alias", user="spark", port=2222)
    target = configured_target(node, str(key), config_file=ssh_config)
    assert (target.user, target.port, target.identity_files) == ("spark", 2222, (key,))
    assert target.use_agent is False


def test_a_circle_of_jump_hosts_ends_in_an_error(ssh_config):
    with pytest.raises(ConfigError, match="more than 6 hosts"):
        configured_target(Node(name="n", host="circle"), None, config_file=ssh_config)


def test_a_broken_ssh_config_is_told_in_openssh_words(tmp_path):
    (tmp_path / "config").write_text("Nonsense yes\n")
    with pytest.raises(ConfigError, match="Bad configuration option: nonsense"):
        configured_target(Node(name="n", host="x"), None, config_file=tmp_path / "config")


def test_a_jump_hosts_unknown_key_is_refused_too(ssh_config, tmp_path):
    target = configured_target(Node(name="n", host="behind"), None, config_file=ssh_config)
    hop = dataclasses.replace(target.jumps[0], known_hosts=())
    host = SshHost(dataclasses.replace(target, jumps=(hop,)), known_hosts=tmp_path / "absent")
    with pytest.raises(HostKeyError, match="is not known"):
        host.open()


def test_importing_the_product_does_not_import_fabric():
    code = (
        "import sys, sparkserve.transport.connect, sparkserve.clusters, sparkserve.profiles\n"
        "print([m for m in ('fabric', 'paramiko', 'invoke', 'httpx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
