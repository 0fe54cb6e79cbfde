"""The demo model with real weights: right answers, and every token reads Engram rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.sglang_server import Rank, serving
from tests.engine.tiny import settled_layers

# Not without its second sentence: the bare question is a near tie of this small model.
QUESTION = "What is the capital of France? Answer in one short sentence."

pytestmark = pytest.mark.engine


def test_the_demo_model_answers_rightly_while_its_rows_come_from_files(
    smollm2_root: Path, tmp_path: Path
) -> None:
    name = "smollm2-135m-engram"
    sampling = json.loads(
        (smollm2_root / "checkpoints" / name / "generation_config.json").read_text()
    )
    assert (sampling["temperature"], sampling["top_p"]) == (0.2, 0.9)
    rank = Rank(smollm2_root / "checkpoints" / name, tmp_path, smollm2_root / "engram" / name)
    with serving(rank) as server:
        assert "Paris" in server.chat(QUESTION)
        # Six columns a token: at the least the question's and the answer's tokens.
        layers = settled_layers(server, ids=6 * 20 + 1, rows_read=1)
        assert [layer["layer"] for layer in layers] == [0, 1]
