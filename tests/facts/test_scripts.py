"""Probe scripts run by a real shell against real files, hostile ones among them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sparkserve.errors import NodeError
from sparkserve.facts import checkpoint, host, runtime, storage
from sparkserve.facts.checkpoint import CheckpointFacts
from sparkserve.facts.probe import Context, Probe, collect_node, compose, interpret, split
from tests.ops.told import ToldHost


def asked(probe: Probe[Any], context: Context, *, home: Path) -> Any:
    text = compose([probe], context, "@@mark")
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    answer = subprocess.run(
        ["sh"], input=text, capture_output=True, text=True, check=True, env=environment, cwd="/"
    )
    return interpret(probe, split(answer.stdout, "@@mark").get(probe.id))


@pytest.mark.parametrize(
    ("root", "resolved"),
    [
        ("~", "{home}"),
        ("~/spark serve", "{home}/spark serve"),
        ("spark/$(id)", "{home}/spark/$(id)"),
        ("/srv/it's", "/srv/it's"),
    ],
)
def test_root_is_absolute_on_the_node_and_never_evaluated(
    tmp_path: Path, root: str, resolved: str
) -> None:
    facts = asked(host.IDENTITY, Context(root=root), home=tmp_path)
    assert facts.root == resolved.format(home=tmp_path)
    assert asked(storage.ROOT_SPACE, Context(root=root), home=tmp_path).writable
    assert asked(runtime.HOLDER, Context(root=root), home=tmp_path).run_id is None


def safetensors(head: object) -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text


GOOD = safetensors({"w": {"data_offsets": [0, 8]}}) + b"x" * 8
BROKEN: Sequence[bytes] = (
    b"", b"1234", b"\xff" * 16, safetensors([1, 2]), safetensors({"w": 3}), safetensors("w"),
    safetensors({"w": {"data_offsets": []}}), safetensors({"w": {"data_offsets": ["a", "b"]}}),
    (4).to_bytes(8, "little") + b"\xff\xff\xff\xff",
)  # fmt: skip


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_broken_shard_is_known_as_broken_and_hides_no_other(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    (tmp_path / "b.safetensors").write_bytes(GOOD)
    (tmp_path / "model.safetensors.index.json").write_text("[1]")
    context = Context(root="~", python="python3", model_path=str(tmp_path))
    found = asked(checkpoint.FILES, context, home=tmp_path)
    assert isinstance(found, CheckpointFacts), found
    by_name = {file.name: file for file in found.files or ()}
    assert by_name["a.safetensors"].declares_bytes is None
    assert by_name["b.safetensors"].declares_bytes == len(GOOD)
    assert found.indexed == ("<the index is not readable JSON>",)


def test_login_shell_that_runs_nothing_is_told_with_its_own_words() -> None:
    closed = ToldHost("spark1", output="This account is currently not available.\n")
    with pytest.raises(NodeError, match=r"spark1: .*This account is currently not available"):
        collect_node(closed, [host.IDENTITY], Context(root="~"), timeout_s=1)
