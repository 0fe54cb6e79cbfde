"""The harness itself, without a GPU: an engine of 60 lines stands in for SGLang."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the harness makes models with torch: run `make engine`")

from sparkserve.engram.ownership import Layout
from tests.gpu import tiny_v41
from tests.gpu.build_kit import KERNEL_WHEEL, WHEELS
from tests.gpu.cases import ENGRAM_GRAPHS
from tests.gpu.comparison import Comparison, decode_row, flip_signs
from tests.gpu.place import Place
from tests.gpu.results import Results
from tests.gpu.servers import Answer, Case, first_difference, greatest_difference

# Answers with numbers that depend on the prompt, and on a file that a test may put in its way.
FAKE = """
import argparse, json, os, pathlib, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
parser = argparse.ArgumentParser()
for name in ("--model-path", "--host", "--port"):
    parser.add_argument(name)
asked, _ = parser.parse_known_args()
model = pathlib.Path(asked.model_path)
pathlib.Path("argv.json").write_text(json.dumps([sys.argv, os.environ.get("CUDA_VISIBLE_DEVICES")]))
if (model / "refuses").exists():
    sys.exit("no such model")
spoiled = (model / "spoiled").exists() and "again" in str(pathlib.Path.cwd())
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *words): pass
    def do_GET(self): self.say({})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "messages" in body:
            return self.say({"choices": [{"message": {"content": "hi"}}]})
        print("Decode batch, cuda graph: True", flush=True)
        start = sum(body["input_ids"])
        pairs = [[-1.0 / (start + i + 1) - (spoiled and i > 3), (start + i) % 250, None]
                 for i in range(body["sampling_params"]["max_new_tokens"])]
        self.say({"meta_info": {"output_token_logprobs": pairs}})
    def say(self, body):
        data = json.dumps(body).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(data)))
        self.end_headers(); self.wfile.write(data)
HTTPServer(("127.0.0.1", int(asked.port)), Handler).serve_forever()
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path / "work", tmp_path / "out")
    for folder in (made.site / "sglang", made.runs, made.out):
        folder.mkdir(parents=True)
    (made.site / "sglang" / "__init__.py").touch()
    (made.site / "sglang" / "launch_server.py").write_text(textwrap.dedent(FAKE))
    return made


def compare(place: Place, model: Path, port: int, ranks: int = 1) -> Results:
    results = Results(place.out)
    model.mkdir(exist_ok=True)
    cases = tuple(Case(name, model, ENGRAM_GRAPHS, ranks=ranks) for name in ("first", "again"))
    Comparison("fake", place, results, port, time.monotonic() + 120).run(cases, corrupt_dir=None)
    results.write()
    return results


def test_equal_servers_pass_and_leave_a_readable_record(place: Place, tmp_path: Path) -> None:
    results = compare(place, tmp_path / "model", 21310)
    assert results.passed, results.summary()
    assert "4 of 4 expectations hold" in results.summary()
    lines = (place.out / "results.jsonl").read_text().splitlines()
    assert {"first", "again"} <= {json.loads(line)["what"] for line in lines}
    assert json.loads((place.out / "results.json").read_text())["passed"] is True


def test_every_rank_is_an_engine_of_its_own_with_a_gpu_of_its_own(
    place: Place, tmp_path: Path
) -> None:
    results = compare(place, tmp_path / "model", 21340, ranks=2)
    assert results.passed, results.summary()
    seen, meetings = [], set()
    for rank in range(2):
        argv, gpu = json.loads((place.runs / f"first-{rank}" / "argv.json").read_text())
        values = dict(itertools.pairwise(argv))
        seen.append((values["--node-rank"], values["--nnodes"], values["--tp-size"], gpu))
        meetings.add(values["--dist-init-addr"])
    assert seen == [("0", "2", "2", "0"), ("1", "2", "2", "1")]
    assert len(meetings) == 1


def test_a_server_that_answers_otherwise_fails_with_the_first_place_that_differs(
    place: Place, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "spoiled").touch()
    results = compare(place, model, 21320)
    (failed,) = [verdict for verdict in results.verdicts if not verdict.holds]
    assert failed.says == "again gives every token and log-probability of first"
    assert failed.detail == "from (0, 4) on, up to 1"


def test_a_server_that_ends_costs_its_own_results_alone(place: Place, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "refuses").touch()
    results = compare(place, model, 21330)
    assert not results.passed
    assert "no such model" in (place.out / "results.jsonl").read_text()
    assert "not judged: first gave no answers" in results.summary()


def test_a_difference_in_the_last_bit_is_one() -> None:
    one = [Answer((1,), (5, 6), (-1.0, -2.0))]
    other = [Answer((1,), (5, 6), (-1.0, -2.0000000000000004))]
    assert first_difference(one, one) is None
    assert first_difference(one, other) == (0, 1)
    assert 0 < greatest_difference(one, other) < 1e-15


def test_the_tiny_v41_has_the_names_and_shapes_of_the_real_one(tmp_path: Path) -> None:
    """Counted by hand from the published index: 4 layers, 2 KV and 3 index sources, 16 experts."""
    maker = tiny_v41.Maker(tiny_v41.NARROW, 262, "cpu")
    shapes = {name: tuple(tensor.shape) for name, tensor in maker.all()}
    experts = len(tiny_v41.RATIOS) * (tiny_v41.Size().experts - tiny_v41.NARROW.experts) * 6
    assert len(shapes) + experts == 533
    assert shapes["layers.1.engram.wkv.weight"] == (5 * 64, 3 * 2 * 64)
    assert shapes["layers.3.ffn.experts.1.w2.scale"] == (64, 64 // 32)
    assert "layers.2.attn.compressor.wgate.weight" not in shapes
    text = tiny_v41.text_config(tiny_v41.Size(), 262, 200)
    assert text["engram_num_embeddings"] == [50148, 54840]


def test_the_row_to_corrupt_is_read_at_one_decode_step_alone(tmp_path: Path) -> None:
    from sparkserve.engram.config import EngramConfig
    from sparkserve.engram.ownership import RowRange
    from sparkserve.engram.shard import ShardHeader, ShardName, write_shard

    tiny_v41.write(tmp_path, tiny_v41.NARROW, "cpu")
    config = EngramConfig.from_config(json.loads((tmp_path / "config.json").read_text()))
    answer = Answer(tuple(range(10, 16)), tuple(range(40, 52)), (0.0,) * 12)
    layer, row = decode_row(tmp_path, [answer])
    bounds = config.bounds(layer)
    assert layer == 1
    assert RowRange(bounds[4], bounds[6]).start <= row < bounds[6]

    header = ShardHeader(layer, 0, bounds[-1], bounds[-1], config.row_bytes)
    path = tmp_path / ShardName(layer, 0, 1).file_name
    write_shard(path, header, [bytes(bounds[-1] * config.row_bytes)])
    before = path.read_bytes()
    flip_signs(tmp_path, layer, row)
    changed = [
        at
        for at, (old, new) in enumerate(zip(before, path.read_bytes(), strict=True))
        if old != new
    ]
    start = 4096 + row * config.row_bytes
    assert changed == list(range(start, start + 64))


@pytest.mark.parametrize(("layout", "rank", "tp"), [("columns", 0, 1), ("strided", 1, 4)])
def test_the_reference_gather_agrees_with_the_lookup_on_the_cpu(
    tmp_path: Path, layout: Layout, rank: int, tp: int
) -> None:
    """So that on a GPU a difference points to the lookup there."""
    import torch

    from sparkserve.adapters.engram_rows.lookup import CpuLookup
    from tests.gpu.table import DIM, Reference, Table, open_layer

    table = Table.random(50, 1)
    identity = table.identity(layout, rank, tp)
    layer = open_layer(table.write(tmp_path, identity), identity, "pread")
    ids = table.ids(40, 2)
    rows = CpuLookup(layer, DIM).now(ids)
    reference = Reference(table, identity, "cpu")
    assert int(reference.differing(rows, ids)) == 0
    assert rows.isfinite().all()
    assert int((rows != 0).any(-1).sum()) == ids.numel() // tp
    rows.view(torch.int16)[3, 5 if tp == 4 else 0, 7] ^= 1
    assert int(reference.differing(rows, ids)) == 1
    layer.store.close()


def test_every_carried_package_is_pinned() -> None:
    assert all(wheel.count("==") == 1 for wheel in (*WHEELS, KERNEL_WHEEL))
    assert sys.version_info >= (3, 11)
