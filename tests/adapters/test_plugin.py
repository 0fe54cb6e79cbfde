"""The plugin inside a (fake) engine process: installs, or ends the process with 78."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkserve.engram.shard import ShardHeader, write_shard
from sparkserve.model.engine_spec import (
    AdapterSpec,
    EngineSpec,
    EngramSpec,
    GuardSpec,
    InstallReport,
)

FAKE = Path(__file__).parent / "fake_engine"
ROWS = 7
CONFIG = {
    "engram_layer_ids": [0],
    "engram_num_embeddings": [ROWS],
    "engram_max_ngram_size": 2,
    "engram_n_heads": 1,
    "engram_head_dim": 64,
    "engram_vocab_size": ROWS,
    "engram_pad_token_id": 0,
    "engram_compressed_vocab_size": 5,
}


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    shard = tmp_path / "rows" / "engram-l0-r0of1.bin"
    shard.parent.mkdir()
    write_shard(shard, ShardHeader(0, 0, ROWS, ROWS, 66), [bytes(66 * ROWS)])
    return EngineSpec(
        run_id="r1",
        profile="p",
        profile_digest="0" * 64,
        node="n0",
        rank=0,
        world_size=1,
        run_dir=str(tmp_path),
        root=str(tmp_path),
        argv=("python", "--model-path", str(tmp_path)),
        env={},
        port=1,
        engram=EngramSpec(directory=str(shard.parent)),
        adapters=(AdapterSpec(name="engram_rows"),),
        guard=GuardSpec(port=1, head_address="127.0.0.1"),
    )


def run_engine(spec, **variables):
    """Run one fake engine process; spec is an EngineSpec, the text of its file, or None."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(FAKE), **variables}
    if spec is not None:
        directory = Path(spec.run_dir) if isinstance(spec, EngineSpec) else Path(spec).parent
        path = directory / "engine.json"
        if isinstance(spec, EngineSpec):
            path.write_text(spec.model_dump_json())
        env["SPARKSERVE_ENGINE_SPEC"] = str(path)
    command = [sys.executable, "-m", "sglang.launch"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def fatal_lines(result):
    return [line for line in result.stderr.splitlines() if line.startswith("sparkserve: FATAL")]


def reports(spec):
    files = (Path(spec.run_dir) / "reports").iterdir()
    return [InstallReport.model_validate_json(file.read_text()) for file in files]


def test_without_a_spec_the_engine_is_left_alone():
    result = run_engine(None)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "serving with EngramEmbedding\n"
    assert "sparkserve:" not in result.stderr


def test_the_loader_swallows_exceptions_but_not_our_refusal(spec):
    # The fake engine always loads a plugin that raises RuntimeError before ours.
    swallowed = run_engine(None)
    assert "somebody else is broken" in swallowed.stderr
    assert swallowed.returncode == 0
    refused = run_engine(spec)
    assert refused.returncode == 78
    assert refused.stdout == ""


def test_an_accepted_engine_is_patched_and_reported(spec):
    result = run_engine(spec, FAKE_ACCEPT="1")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "serving with ShardEngramEmbedding\n"
    (report,) = reports(spec)
    assert (report.role, report.status, report.rank) == ("scheduler", "installed", 0)
    assert report.told == spec.agreement
    assert [adapter.name for adapter in report.adapters] == ["engram_rows"]
    assert report.adapters[0].targets[0].target == "sglang.srt.layers.engram.EngramEmbedding"


def test_without_adapters_only_the_report_is_written(spec):
    result = run_engine(spec.model_copy(update={"adapters": ()}))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "serving with EngramEmbedding\n"
    (report,) = reports(spec)
    assert (report.role, report.status, report.adapters) == ("scheduler", "installed", ())


def test_foreign_source_is_refused_by_adapter_target_and_version(spec):
    result = run_engine(spec)
    assert result.returncode == 78
    (line,) = fatal_lines(result)
    assert line.startswith("sparkserve: FATAL engram_rows sglang.srt.layers.engram.EngramEmbedding")
    assert "of sglang 0.5.23 has source digest" in line
    (report,) = reports(spec)
    assert (report.status, report.role) == ("refused", "main")
    assert "EngramEmbedding" in report.reason


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        (AdapterSpec(name="engram_row"), "FATAL engram_row no adapter engram_row; did you mean"),
        (
            AdapterSpec(name="engram_rows", settings={"stats_interval_s": 0.1}),
            "FATAL engram_rows adapters.engram_rows.stats_interval_s: Input should be greater",
        ),
        (
            AdapterSpec(name="engram_rows", settings={"speed": 1}),
            "FATAL engram_rows adapters.engram_rows.speed: no such setting",
        ),
    ],
)
def test_unknown_adapters_and_bad_settings_are_refused(spec, adapter, words):
    result = run_engine(spec.model_copy(update={"adapters": (adapter,)}), FAKE_ACCEPT="1")
    assert result.returncode == 78
    assert words in fatal_lines(result)[0]


def test_a_registry_that_applies_nothing_is_noticed(spec):
    result = run_engine(spec, FAKE_ACCEPT="1", FAKE_BROKEN_HOOKS="1")
    assert result.returncode == 78
    assert "was not changed by the hook registry" in fatal_lines(result)[0]


def test_a_target_changed_after_installation_is_noticed_before_the_model_loads(spec):
    result = run_engine(spec, FAKE_ACCEPT="1", FAKE_LATE_PLUGIN="1")
    assert result.returncode == 78
    assert result.stdout == ""
    assert "EngramEmbedding was changed after installation" in fatal_lines(result)[0]
    (report,) = reports(spec)
    assert (report.role, report.status) == ("scheduler", "refused")


def test_a_truncated_shard_refuses_with_path_and_byte(spec):
    shard = Path(spec.engram.directory) / "engram-l0-r0of1.bin"
    os.truncate(shard, 4096 + 100)
    result = run_engine(spec, FAKE_ACCEPT="1")
    assert result.returncode == 78
    assert f"FATAL engram_rows {shard} at byte 4196: file ends here" in fatal_lines(result)[0]


def test_a_shard_of_another_table_refuses_before_the_model_loads(spec):
    shard = Path(spec.engram.directory) / "engram-l0-r0of1.bin"
    write_shard(shard, ShardHeader(0, 0, 8, 8, 66), [bytes(66 * 8)])
    result = run_engine(spec, FAKE_ACCEPT="1")
    assert result.returncode == 78
    assert f"{shard} at byte 24: row_end is 8, but" in fatal_lines(result)[0]
    (report,) = reports(spec)
    assert (report.role, report.status) == ("main", "refused")


def test_an_engine_with_another_table_than_its_config_is_refused_when_it_asks(spec):
    config = CONFIG | {"engram_vocab_size": 11, "engram_num_embeddings": [11]}
    (Path(spec.root) / "config.json").write_text(json.dumps(config))
    shard = Path(spec.engram.directory) / "engram-l0-r0of1.bin"
    write_shard(shard, ShardHeader(0, 0, 11, 11, 66), [bytes(66 * 11)])
    result = run_engine(spec, FAKE_ACCEPT="1")
    assert result.returncode == 78
    assert "table of layer 0 has 7 rows of 64, config.json says 11" in fatal_lines(result)[0]
    (report,) = reports(spec)
    assert (report.role, report.status) == ("scheduler", "refused")


@pytest.mark.parametrize("content", [None, "{", '{"schema_version": 2}'])
def test_an_unreadable_spec_ends_the_engine(tmp_path, content):
    path = tmp_path / "engine.json"
    if content is not None:
        path.write_text(content)
    result = run_engine(str(path))
    assert result.returncode == 78
    assert len(fatal_lines(result)) == 1
    assert fatal_lines(result)[0].startswith("sparkserve: FATAL frame")
