"""Profiles, clusters and facts for tests of pure rooms, healthy unless a test changes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sparkserve import __version__
from sparkserve.facts import checkpoint, host, memory, network, runtime, storage
from sparkserve.model.cluster import Cluster, Node
from sparkserve.model.facts import NodeFacts
from sparkserve.model.place import Place
from sparkserve.model.profile import Profile

GIB = 1 << 30


def profile(**sections: Any) -> Profile:
    """A valid profile; sections replace its own, as nested dictionaries."""
    values: dict[str, Any] = {
        "name": "tiny",
        "model": {"path": "tiny-model", "served_name": "tiny"},
        "engine": {"version": "0.5.23"},
    }
    return Profile.model_validate(values | sections)


def cluster(count: int = 1) -> Cluster:
    """``spark1`` ... in rank order, management 10.0.0.1N, fabric 192.168.0.1N."""
    return Cluster(
        name="test",
        nodes=tuple(
            Node(name=f"spark{n}", host=f"10.0.0.1{n}", fabric_address=f"192.168.0.1{n}")
            for n in range(1, count + 1)
        ),
    )


def place(number: int = 1, **changes: Any) -> Place:
    """Where ``spark<number>`` stands."""
    values = {
        "name": f"spark{number}",
        "root": "/srv/sparkserve",
        "python": "/srv/sparkserve/venv/bin/python",
        "address": f"192.168.0.1{number}",
        "interface": "enp1s0f0np0",
        "cpu_count": 20,
        "package_dir": "/srv/sparkserve/venv/lib/sparkserve",
    }
    return Place.model_validate(values | changes)


def facts(number: int = 1, **changes: Any) -> NodeFacts:
    """Healthy facts of ``spark<number>``; keys are probe ids with ``_`` for the dot."""
    at = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
    values: dict[str, Any] = {
        "host.identity": host.HostFacts(
            hostname=f"spark{number}",
            user="nvidia",
            home="/home/nvidia",
            root="/srv/sparkserve",
            architecture="aarch64",
            kernel="6.17.0-1031-nvidia",
            cpu_count=20,
            time_s=at.timestamp(),
            ssh_address=f"10.0.0.1{number}",
        ),
        "memory.meminfo": memory.MemoryFacts(
            total_bytes=121 * GIB, available_bytes=115 * GIB, free_bytes=100 * GIB
        ),
        "network.addresses": network.AddressFacts(
            addresses=(
                network.InterfaceAddress(
                    interface="enP7s7", address=f"10.0.0.1{number}", prefix_length=24
                ),
                network.InterfaceAddress(
                    interface="enp1s0f0np0", address=f"192.168.0.1{number}", prefix_length=24
                ),
            )
        ),
        "network.ports": network.PortFacts(listening=(22,)),
        "storage.root": storage.SpaceFacts(
            path="/srv", free_bytes=900 * GIB, total_bytes=3600 * GIB, writable=True
        ),
        "runtime.python": runtime.RuntimeFacts(
            python="/srv/sparkserve/venv/bin/python",
            python_version="3.12.3",
            sglang="0.5.23",
            torch="2.14.1",
            sparkserve=__version__,
            package_dir="/srv/sparkserve/venv/lib/sparkserve",
        ),
        "runtime.holder": runtime.HolderFacts(run_id=None, guard_pid=None),
        "checkpoint.files": checkpoint.CheckpointFacts(
            path="/srv/sparkserve/checkpoints/tiny-model",
            files=(
                checkpoint.CheckpointFile(name="config.json", size_bytes=900),
                checkpoint.CheckpointFile(
                    name="model.safetensors", size_bytes=2000, declares_bytes=2000
                ),
            ),
            indexed=(),
        ),
    }
    for key, value in changes.items():
        values[key.replace("_", ".", 1)] = value
    return NodeFacts(node=f"spark{number}", collected_at=at, elapsed_s=0.1, values=values)
