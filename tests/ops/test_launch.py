"""What a launch refuses before it touches a node, and where it says that the endpoint is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkserve import clusters
from sparkserve.errors import ConfigError
from sparkserve.model.cluster import Cluster, Node
from sparkserve.ops import launch
from sparkserve.ops.doors import Doors
from sparkserve.ops.target import Target
from tests.ops.told import Heard

PROFILE = """
name = "two"
model = { path = "m", served_name = "m" }
engine = { kind = "light", python = "/venv/bin/python" }
parallel = { tp = 2 }
"""


class Connected(Exception):
    """The launch began to touch the nodes."""


def launched(tmp_path: Path, *nodes: Node) -> None:
    clusters.save(Cluster(name="mixed", nodes=nodes))
    (tmp_path / "two.toml").write_text(PROFILE)
    target = Target(profile=str(tmp_path / "two.toml"), cluster="mixed")

    def connect(_: Cluster) -> Any:
        raise Connected

    request = launch.LaunchRequest(target=target, this_python="/py")
    launch.run(request, Doors(connect=connect), Heard())


def test_loopback_is_no_address_for_other_nodes(tmp_path: Path) -> None:
    here = Node(name="spark1", host="local")
    other = Node(name="spark2", host="10.0.0.12")
    with pytest.raises(ConfigError, match=r"spark1 is this machine.*expected its fabric_address"):
        launched(tmp_path, here, other)
    with pytest.raises(Connected):
        launched(tmp_path, here.model_copy(update={"fabric_address": "192.168.0.11"}), other)
