"""The light engine on four nodes: ranks meet over the simulated fabric, faults reach them."""

from __future__ import annotations

import http.client
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed.cluster import Testbed
from tests.testbed.node import Node
from tests.testbed.shell import wait_until

pytestmark = pytest.mark.testbed

PORT = 8888
REPOSITORY = Path(__file__).resolve().parents[2]


def start_rank(testbed: Testbed, node: Node) -> None:
    words = [sys.executable, "-m", "sparkserve.sim.light_engine", "--model-path", "/models/x",
             "--host", "0.0.0.0", "--port", str(PORT), "--tp-size", "4", "--nnodes", "4",
             "--node-rank", str(node.number - 1), "--light-peer-loss", "exit",
             "--dist-init-addr", f"{testbed.nodes[0].fabric_address}:20000"]  # fmt: skip
    command = (
        f"cd {shlex.quote(str(REPOSITORY))} || exit 1; GLOO_SOCKET_IFNAME=enp1s0f0np0 "
        f"setsid nohup {shlex.join(words)} >~/engine.log 2>&1 </dev/null &"
    )
    subprocess.run(testbed.ssh_argv(node, [command]), check=True, timeout=60)


def get(node: Node, path: str) -> int | None:
    connection = http.client.HTTPConnection(node.address, PORT, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


def ask(node: Node, question: str) -> str:
    connection = http.client.HTTPConnection(node.address, PORT, timeout=5)
    body = json.dumps({"messages": [{"role": "user", "content": question}]})
    connection.request("POST", "/v1/chat/completions", body)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return str(answer["choices"][0]["message"]["content"])


def engines(node: Node) -> list[str]:
    return [process.command for process in node.processes() if "light_engine" in process.command]


def test_four_ranks_serve_and_a_dead_node_takes_the_others_along(testbed: Testbed) -> None:
    for node in testbed.nodes:
        start_rank(testbed, node)
    with testbed.enter():
        wait_until(lambda: get(testbed.nodes[0], "/health") == 200, what="the head is ready")
        assert ask(testbed.nodes[0], "capital of Japan") == "The capital of Japan is Tokyo."
        assert all(get(node, "/health") == 200 for node in testbed.nodes)
    assert [len(engines(node)) for node in testbed.nodes] == [2, 2, 2, 2]
    testbed.nodes[3].stop()
    for node in testbed.nodes[:3]:
        wait_until(lambda n=node: not engines(n), what=f"no engine on {node.name}")
        assert "NCCL error" in node.read("/home/spark/engine.log")
