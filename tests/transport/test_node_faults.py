"""SSH to simulated nodes whose links, disks and power fail."""

import threading

import pytest

from sparkserve.errors import ConnectionLostError, HostKeyError, RemoteError, UnreachableError
from sparkserve.transport import pump, ssh
from sparkserve.transport.connect import close_hosts, connect, resolve_root
from sparkserve.transport.host import map_hosts
from tests.transport.loopback_sshd import wait_until

pytestmark = pytest.mark.testbed


@pytest.fixture(autouse=True)
def _short_connect(monkeypatch):
    monkeypatch.setattr(ssh, "CONNECT_TIMEOUT_S", 3)


@pytest.fixture
def hosts(testbed):
    """Open connections to all four nodes, from the controller's place."""
    with testbed.enter():
        group = open_all(testbed)
        assert not group.errors_by_node
        yield group
        close_hosts(group.values())


def open_all(testbed):
    return connect(testbed.cluster(), known_hosts=testbed.known_hosts_file, use_ssh_config=False)


def in_background(work):
    """Start work in a thread; call the result for its value, waiting at most a minute."""
    values = []
    thread = threading.Thread(target=lambda: values.append(work()))
    thread.start()

    def value():
        thread.join(60)
        assert values, "no result within a minute"
        return values[0]

    return value


def running(node, word):
    return [p for p in node.processes() if word in p.argv]


def sleep_on(host, node, *, timeout_s=300.0):
    """Run a sleeper on a node in the background; returns once it runs there."""
    result = in_background(lambda: host.run(["sleep", "297"], timeout_s=timeout_s))
    wait_until(lambda: running(node, "297"), "the program runs on the node")
    return result


def test_all_nodes_answer_as_the_ssh_user(hosts):
    results = map_hosts(list(hosts.values()), lambda host: host.run(["id", "-un"], timeout_s=60))
    assert {name: result.stdout for name, result in results.items()} == {
        f"spark{number}": "spark\n" for number in (1, 2, 3, 4)
    }
    assert resolve_root(hosts["spark1"], "~/sparkserve") == "/home/spark/sparkserve"


def test_a_dead_node_is_named_and_the_others_are_there(testbed):
    testbed.nodes[1].power_off()
    testbed.nodes[2].reject_ssh()
    testbed.nodes[3].replace_host_key()
    with testbed.enter():
        group = open_all(testbed)
        close_hosts(group.values())
    assert list(group) == ["spark1"]
    errors = group.errors_by_node
    assert isinstance(errors["spark2"], UnreachableError)
    assert "no answer from 10.77.0.12:22" in errors["spark2"].message
    assert isinstance(errors["spark3"], UnreachableError)
    assert "refused the connection" in errors["spark3"].message
    assert isinstance(errors["spark4"], HostKeyError)
    assert "HAS CHANGED" in errors["spark4"].message


def test_a_dark_link_during_a_command_is_lost_and_the_node_ends_the_program(hosts, testbed):
    node = testbed.nodes[0]
    result = sleep_on(hosts["spark1"], node, timeout_s=20)
    with node.blackhole():
        assert (result().status, result().exit_code) == ("lost", None)
        wait_until(lambda: not running(node, "297"), "the limit on the node ends it", 40)


@pytest.mark.parametrize("how", ["stop", "power_off"])
def test_a_node_that_dies_during_a_command_is_lost(hosts, testbed, how):
    node = testbed.nodes[1]
    result = sleep_on(hosts["spark2"], node)
    getattr(node, how)()
    assert (result().status, result().exit_code) == ("lost", None)
    assert hosts["spark1"].run(["true"], timeout_s=60).ok
    node.start()
    wait_until(lambda: hosts["spark2"].run(["true"], timeout_s=60).ok, "the node is usable again")


def test_a_lost_connection_ends_what_it_ran(hosts, testbed):
    node = testbed.nodes[0]
    sleep_on(hosts["spark1"], node)
    hosts["spark1"].close()
    wait_until(lambda: not running(node, "297"), "the lifeline ended the program")


def test_a_dead_session_is_signalled_even_when_stdin_carried_input(hosts, testbed, monkeypatch):
    monkeypatch.setattr(pump, "OUTPUT_LIMIT_BYTES", 1000)
    node = testbed.nodes[0]
    with pytest.raises(RemoteError, match="of output"):
        hosts["spark1"].script("head -c 5000 /dev/zero; sleep 297", timeout_s=300)
    wait_until(lambda: not running(node, "297"), "the program is gone")


def test_a_full_disk_says_so_and_keeps_the_old_file(hosts, testbed):
    host, node = hosts["spark1"], testbed.nodes[0]
    host.put(b"old", "/home/spark/deep/file")
    with (
        node.fill("/home/spark", leave_kib=64),
        pytest.raises(
            RemoteError, match="no space left on spark1:/home/spark/deep while writing"
        ) as caught,
    ):
        host.put(b"new" * 1_000_000, "/home/spark/deep/file")
    assert caught.value.hint == "on spark1: df -h /home/spark/deep"
    assert host.run(["cat", "/home/spark/deep/file"], timeout_s=60).stdout == "old"
    assert host.run(["ls", "-A", "/home/spark/deep"], timeout_s=60).stdout == "file\n"


def test_a_forbidden_folder_says_so(hosts):
    with pytest.raises(RemoteError, match=r"cannot write /etc/x: .*Permission denied"):
        hosts["spark1"].put(b"x", "/etc/x")


def test_a_node_that_dies_during_a_put_keeps_the_old_file(hosts, testbed):
    host, node = hosts["spark3"], testbed.nodes[2]
    host.put(b"old", "/home/spark/deep/file")
    node.rate(20, device="enP7s7")

    def put():
        try:
            host.put(b"new" * 10_000_000, "/home/spark/deep/file")
        except ConnectionLostError as error:
            return error
        return None

    error = in_background(put)
    wait_until(
        lambda: ".part-" in node.inside(["ls", "/home/spark/deep"]).stdout, "the put has begun"
    )
    node.power_off()
    assert "the old file is intact" in error().message
    node.start()
    wait_until(lambda: host.run(["true"], timeout_s=60).ok, "the node is back")
    assert host.run(["cat", "/home/spark/deep/file"], timeout_s=60).stdout == "old"


def test_a_bad_link_is_slow_but_right(hosts, testbed):
    content = bytes(range(256)) * 8192
    with testbed.nodes[3].loss(0.05):
        hosts["spark4"].put(content, "/home/spark/file")
    result = hosts["spark4"].run(["cksum", "/home/spark/file"], timeout_s=60)
    assert result.stdout.split()[1] == str(len(content))


def test_a_dark_link_during_a_stream_is_lost(hosts, testbed):
    node, lines = testbed.nodes[0], []
    result = in_background(
        lambda: hosts["spark1"].stream(
            ["sh", "-c", "echo begin; exec sleep 297"],
            on_line=lines.append,
            cancel=threading.Event(),
        )
    )
    wait_until(lambda: lines == ["begin"], "the first line has come")
    with node.blackhole():
        assert result().status == "lost"


def test_a_dark_link_does_not_hold_up_the_other_nodes(hosts, testbed):
    with testbed.nodes[1].blackhole():
        results = map_hosts(
            list(hosts.values()), lambda host: host.run(["true"], timeout_s=60).status
        )
    assert dict(results) == {
        "spark1": "exited", "spark2": "lost", "spark3": "exited", "spark4": "exited",
    }  # fmt: skip
