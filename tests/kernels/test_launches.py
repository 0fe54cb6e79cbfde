"""What runs at the model's shapes is what the compile gate has proved: one case per bucket."""

import numpy as np
import pytest
import torch
from sparkserve_kernels.engram_gate.api import Images, engram_gate
from sparkserve_kernels.engram_gate.kernel import gate_kernel
from sparkserve_kernels.engram_gate.tiles import FEW_ROWS
from sparkserve_kernels.engram_gather.api import GatherOptions, RowTable, engram_gather
from sparkserve_kernels.engram_gather.kernel import gather_kernel
from sparkserve_kernels.engram_gather.tiles import FEW_IDS
from sparkserve_kernels.engram_hash.api import HashTables, Runs, advance_history, engram_hash
from sparkserve_kernels.engram_hash.kernel import advance_kernel, hash_kernel
from sparkserve_kernels.shipped import Shipped

from tests.kernels.launches import _differences, assert_ships, launches_of

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="holds the Spark's forms against launches without a GPU"
)


def zeros(*shape, dtype=torch.bfloat16):
    """Memory of the operating system's own zeros: real shapes cost nothing until touched."""
    size = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)


@pytest.mark.parametrize("ids", [1, FEW_IDS, FEW_IDS + 1, 98_304])
@pytest.mark.parametrize("packed", [False, True], ids=["planes", "records"])
def test_engram_gather(ids, packed, monkeypatch):
    byte = {"dtype": torch.uint8}
    table = (
        RowTable.of_records(zeros(10, 264, **byte))
        if packed
        else RowTable.of_planes(zeros(10, 256, **byte), zeros(10, 8, **byte))
    )
    wanted, out = zeros(ids, dtype=torch.int64), zeros(ids, 256)
    for zero in ("signed", "positive"):
        options = GatherOptions(zero)
        (launch,) = launches_of(
            gather_kernel,
            lambda options=options: engram_gather(wanted, table, out=out, options=options),
            monkeypatch,
        )
        assert_ships("engram_gather", gather_kernel, launch)


def test_sorted_engram_gather(monkeypatch):
    table, ids = RowTable.of_records(zeros(10, 264, dtype=torch.uint8)), FEW_IDS + 1
    wanted, out = zeros(ids, dtype=torch.int64), zeros(ids, 256)
    options = GatherOptions("positive", "sorted")
    (launch,) = launches_of(
        gather_kernel,
        lambda: engram_gather(wanted, table, out=out, options=options),
        monkeypatch,
    )
    assert_ships("engram_gather", gather_kernel, launch)


@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, 4096])
@pytest.mark.parametrize("images", [False, True], ids=["text", "images"])
def test_engram_gate(rows, images, monkeypatch):
    x, kv, weight = zeros(rows, 4, 5120), zeros(rows, 25600), zeros(4, 5120)
    marked = Images(zeros(rows, dtype=torch.int64), 1) if images else None
    (launch,) = launches_of(
        gate_kernel, lambda: engram_gate(x, kv, (weight, weight), marked, out=x), monkeypatch
    )
    assert_ships("engram_gate", gate_kernel, launch)


@pytest.mark.parametrize("ragged", [False, True], ids=["blocks", "ragged"])
def test_engram_hash(ragged, monkeypatch):
    whole = {"dtype": torch.int64}
    tables = HashTables(
        zeros(129280, **whole),
        zeros(2, 4, **whole),
        zeros(2, 3, 8, **whole),
        zeros(2, 24, **whole),
        pad_id=2,
        image_token=129264,
    )
    history, slots, tokens = zeros(9, 3, dtype=torch.int32), zeros(2, **whole), zeros(12, **whole)
    runs = Runs(history, slots, ends=slots) if ragged else Runs(history, slots, block=6)
    marks = {"places": tokens} if ragged else {"accepted": slots}
    (launch,) = launches_of(
        hash_kernel, lambda: engram_hash(tokens, tokens, runs, tables), monkeypatch
    )
    assert_ships("engram_hash", hash_kernel, launch)
    (launch,) = launches_of(
        advance_kernel,
        lambda: advance_history(history, slots, tokens, runs, media=(10**6, 1), **marks),
        monkeypatch,
    )
    assert_ships("engram_hash", advance_kernel, launch)


def test_a_launch_that_departs_from_its_form_is_seen():
    form = Shipped("f", None, {"x": "*bf16"}, {"BLOCK": 64}, 4, 3, options={"maxnreg": 128})
    launch = {"x": 1, "BLOCK": 64, "num_warps": 4, "maxnreg": 128, "INTERPRETED": True}
    assert _differences(form, launch) == []
    assert _differences(form, {**launch, "BLOCK": 32}) == ["BLOCK: launched 32, shipped 64"]
    assert _differences(form, {**launch, "num_warps": 8}) == ["num_warps: launched 8, shipped 4"]
    assert _differences(form, {**launch, "num_stages": 2}) == ["num_stages: launched 2, shipped 3"]
    assert _differences(form, {**launch, "SPLIT": 2}) == ["SPLIT: launched only"]
    del launch["maxnreg"]
    assert _differences(form, launch) == ["maxnreg: launched None, shipped 128"]
