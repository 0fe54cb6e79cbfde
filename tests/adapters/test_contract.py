"""Every target of every adapter, against the sources of the SGLang releases it names."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sparkserve
from sparkserve.adapters import registry
from sparkserve.adapters.install import SCHEDULER_INIT
from sparkserve.adapters.source import tree_digest

REPOSITORY = Path(__file__).parents[2]
VERSIONS = ("0.5.21", "0.5.23")
SHIM = Path(sparkserve.__file__).parent / "sim" / "cpu_shim"

pytestmark = pytest.mark.contract


@pytest.fixture(params=VERSIONS)
def wheel(request):
    """(version, folder of the unpacked wheel)."""
    folder = REPOSITORY / ".cache" / "wheels" / f"sglang-{request.param}"
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing: run `make engine`")
    return request.param, folder


def targets():
    return [target for name in registry.names() for target in registry.load(name).targets]


def test_every_target_stands_in_both_releases_as_it_was_accepted(wheel):
    version, folder = wheel
    for target in targets():
        assert tree_digest(folder, target.path) in target.digests[version], target.path


def test_the_frames_own_hook_has_its_place_in_both_releases(wheel):
    assert tree_digest(wheel[1], SCHEDULER_INIT)


def test_the_running_engine_has_the_digests_of_its_wheel():
    paths = [target.path for target in targets()] + [SCHEDULER_INIT]
    script = (
        "import json, sys, importlib.metadata as m\n"
        "from sparkserve.adapters.source import live_digest\n"
        "print(json.dumps([m.version('sglang'), [live_digest(p) for p in sys.argv[1:]]]))"
    )
    env = {**os.environ, "PYTHONPATH": str(SHIM), "SGLANG_USE_CPU_ENGINE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", script, *paths]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    version, digests = ast.literal_eval(result.stdout.splitlines()[-1])
    folder = REPOSITORY / ".cache" / "wheels" / f"sglang-{version}"
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing: run `make engine`")
    assert digests == [tree_digest(folder, path) for path in paths]


def class_of(folder, name):
    text = (folder / "sglang/srt/layers/engram.py").read_text()
    classes = [n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == name]
    return classes[-1]


def reads(node, of):
    """Attribute names that the code below a node reads from the expression ``of``."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Load)
        and ast.unparse(each.value) == of
    }


def test_our_embedding_has_all_that_both_releases_read_from_theirs(wheel):
    """Subclassing without the base constructor: nothing it would have set may be missed."""
    _, folder = wheel
    theirs = class_of(folder, "EngramEmbedding")
    methods = {n.name: n for n in theirs.body if isinstance(n, ast.FunctionDef)}
    # What only runs after _init_host_table, which we never call.
    host_table_only = {"_host_table_ptrs"}
    replaced = {"__init__", "_init_host_table", "_load_rows", "_owned_rows", "finish_load"}
    wanted = reads(class_of(folder, "Engram"), "self.embed")
    for name in methods.keys() - replaced:
        wanted |= reads(methods[name], "self")
    source = Path(sparkserve.__file__).parent / "adapters/engram_rows/embedding.py"
    (rows,) = (
        n
        for n in ast.parse(source.read_text()).body
        if isinstance(n, ast.ClassDef) and n.name == "ShardRows"
    )
    ours = {
        each.attr
        for each in ast.walk(rows)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    }
    assert wanted - methods.keys() - host_table_only <= ours


def test_the_constructors_differ_only_by_the_column_bounds(wheel):
    version, folder = wheel
    (init,) = (
        n for n in class_of(folder, "EngramEmbedding").body if getattr(n, "name", "") == "__init__"
    )
    names = [arg.arg for arg in init.args.args]
    bounds = {"0.5.21": [], "0.5.23": ["column_bounds"]}[version]
    assert names == ["self", "num_embeddings", "dim", "layer_id", *bounds]
