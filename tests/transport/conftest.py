"""Hosts of both kinds: this machine, and this machine over a real sshd."""

import os
import random
import signal

import pytest

from sparkserve.transport.connect import connect
from sparkserve.transport.local import LocalHost
from tests.transport.loopback_sshd import running_sshd
from tests.transport.processes import pids_of


@pytest.fixture(scope="session")
def _session_sshd(tmp_path_factory):
    with running_sshd(tmp_path_factory.mktemp("sshd") / "server", extra="MaxSessions 10") as server:
        yield server


@pytest.fixture
def sshd(_session_sshd):
    """A running server with its own keys, shared by the session."""
    return _session_sshd


def open_ssh(server):
    group = connect(server.cluster(), known_hosts=server.known_hosts, use_ssh_config=False)
    assert not group.errors_by_node, group.errors_by_node
    return group["spark1"]


@pytest.fixture
def ssh_host(sshd):
    """A connection to the server."""
    host = open_ssh(sshd)
    yield host
    host.close()


@pytest.fixture(params=["local", "ssh"])
def host(request):
    """Each kind of host in turn."""
    if request.param == "local":
        return LocalHost("spark1")
    return request.getfixturevalue("ssh_host")


@pytest.fixture
def mark():
    """A text that names this test's processes and nobody else's."""
    text = f"mark{random.SystemRandom().getrandbits(64):x}"
    yield text
    for pid in pids_of(text):
        os.kill(pid, signal.SIGKILL)
