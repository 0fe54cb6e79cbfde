"""The reference against real SGLang: layout, multipliers, token map, every mode of the hasher."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import sparkserve
from sparkserve.engram.config import EngramConfig
from sparkserve.engram.constants import DEEPSEEK_V41_FLASH, TOKENIZER_SIZE
from sparkserve.engram.hashing import RowHasher
from sparkserve.engram.history import RequestHistory
from sparkserve.engram.multipliers import hash_multipliers
from sparkserve.engram.ownership import owned_ranges
from sparkserve.engram.token_map import compressed_ids, token_map
from tests.engram.real import MISSING, tokenizer_file
from tests.engram.scenario import SLOTS, Life, Step
from tests.engram.test_token_map import tokenizer as byte_level

pytest.importorskip("tokenizers", reason="tokenizers is not installed: run `make engine`")
from tokenizers import Tokenizer

pytestmark = pytest.mark.engine

REPOSITORY = Path(__file__).parents[2]
SHIM = Path(sparkserve.__file__).parent / "sim" / "cpu_shim"
TP = (1, 2, 3, 4, 5, 8)


NAMES = pytest.mark.parametrize(
    "name",
    [
        "text",
        "vision",
        pytest.param(
            "released", marks=pytest.mark.skipif(tokenizer_file() is None, reason=MISSING)
        ),
    ],
)


class Case(NamedTuple):
    """One model whose hash is asked of the engine and of the reference."""

    config: EngramConfig
    tokenizer: Path
    steps: list[Step]


def small_case(folder: Path, image_token: int | None) -> Case:
    words = [f"{letter}{tail}" for letter in "aAbBcC " for tail in ("x", "é", "\t", "ﬁ", "1", "É")]
    made = byte_level(*words)
    made.save(str(folder / "tokenizer.json"))
    config = EngramConfig(
        layer_ids=(2, 5, 7),
        num_embeddings=(0, 0, 0),
        max_ngram_size=4,
        n_heads=2,
        head_dim=64,
        vocab_size=997,
        pad_token_id=3,
        compressed_vocab_size=token_map(made)[1],
        image_token_id=image_token,
    )
    return Case(config, folder / "tokenizer.json", lives(3, len(words), image_token))


def lives(seed: int, tokens: int, image_token: int | None) -> list[Step]:
    life = Life(seed, tokens, image_token)
    return [step for _ in range(150) for step in life.steps(1)]


def request_of(case: Case) -> dict:
    names = set(EngramConfig.model_fields) - {"image_token_id"}
    return {
        "config": {f"engram_{name}": getattr(case.config, name) for name in names},
        "tokenizer": str(case.tokenizer),
        "image_token_id": case.config.image_token_id,
        "slots": SLOTS,
        "steps": [vars(step) for step in case.steps],
        "tp": TP,
    }


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> dict[str, Case]:
    made = {
        "text": small_case(tmp_path_factory.mktemp("text"), None),
        "vision": small_case(tmp_path_factory.mktemp("vision"), 40),
    }
    file, config = tokenizer_file(), DEEPSEEK_V41_FLASH
    if file is not None:
        steps = lives(11, TOKENIZER_SIZE, config.image_token_id)
        made["released"] = Case(config, file, steps)
    return made


@pytest.fixture(scope="module", params=["0.5.23", "0.5.21"])
def engine(request, cases, tmp_path_factory):
    """What that release of the engine answers to all cases; importing it takes a while."""
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("SGLang is not installed: run `make engine`")
    path = [str(SHIM)]
    asked = {name: request_of(case) for name, case in cases.items()}
    if request.param == "0.5.21":
        wheel = REPOSITORY / ".cache" / "sglang-0.5.21"
        if not wheel.is_dir():
            pytest.skip(f"{wheel} is missing: run `make engine`")
        path.insert(0, str(wheel))
        for each in asked.values():
            # That release knows idle batches only without tokens.
            each["steps"] = [step for step in each["steps"] if step["mode"] != "idle"]
    folder = tmp_path_factory.mktemp("engine")
    (folder / "request.json").write_text(json.dumps(asked))
    script = Path(__file__).with_name("engine_reference.py")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "SGLANG_USE_CPU_ENGINE": "1"}
    command = [sys.executable, "-W", "ignore", script, "request.json", "answer.json"]
    result = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads((folder / "answer.json").read_text())


@NAMES
def test_layout_multipliers_and_token_map_are_the_engines(engine, cases, name):
    facts, config = engine[name]["facts"], cases[name].config
    assert facts["primes"] == [list(layer) for layer in config.primes]
    assert facts["multipliers"] == [list(layer) for layer in hash_multipliers(config)]
    ids = compressed_ids(Tokenizer.from_file(str(cases[name].tokenizer)), config)
    assert (facts["token_map"], facts["compressed"]) == (ids, config.compressed_vocab_size)
    if facts["bounds"] is None:
        return
    assert facts["bounds"] == [list(layer) for layer in config.all_bounds]
    for tp in TP:
        ours = [owned_ranges(config.all_bounds[0], "columns", rank, tp) for rank in range(tp)]
        assert facts["ranges"][str(tp)] == [list(only) for (only,) in ours]


@NAMES
def test_every_batch_hashes_to_the_engines_row_ids_and_leaves_its_history(engine, cases, name):
    case, answers = cases[name], engine[name]["steps"]
    ids_of = compressed_ids(Tokenizer.from_file(str(case.tokenizer)), case.config)
    history = RequestHistory(RowHasher.of(case.config, ids_of), SLOTS)
    steps = case.steps
    if len(answers) < len(steps):
        steps = [step for step in steps if step.mode != "idle"]
    assert {"extend", "decode", "verify"} <= {step.mode for step in steps}
    # Padding is compared as well: its ids are looked up, though nobody uses the rows.
    for number, (step, answer) in enumerate(zip(steps, answers, strict=True)):
        ids = step.run(history)
        theirs = np.array(answer["ids"], dtype=np.int64).reshape(ids.shape)
        assert np.array_equal(ids, theirs), (number, step)
        assert history.rows[:-1].tolist() == answer["history"], (number, step)
