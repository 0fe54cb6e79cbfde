"""What runs at the model's shapes is what the compile gate has proved."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sparkserve_kernels import bench_case, registry
from sparkserve_kernels.engram_gate.api import Images, engram_gate
from sparkserve_kernels.engram_gate.tiles import FEW_ROWS
from sparkserve_kernels.engram_gather.api import GatherOptions, RowTable, engram_gather
from sparkserve_kernels.engram_gather.tiles import FEW_IDS
from sparkserve_kernels.engram_hash.api import HashTables, Runs, advance_history, engram_hash
from sparkserve_kernels.shipped import Shipped

from tests.kernels.launches import Launch, differences, fake_gpu, launches_of

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="holds the Spark's forms against launches without a GPU"
)


def zeros(*shape, dtype=torch.bfloat16):
    """Memory of the operating system's own zeros: real shapes cost nothing until touched."""
    size = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)


@pytest.fixture
def departures(monkeypatch):
    """How a call's launches differ from what is shipped; there must be some launch."""

    def judge(call):
        launches = launches_of(call, monkeypatch)
        assert launches
        return [departure for launch in launches for departure in launch.departure()]

    return judge


@pytest.mark.filterwarnings("ignore")  # fake tensors warn of what real ones do not do
@pytest.mark.parametrize("op", [name for name in registry.names() if name != "l2_prefetch"])
def test_every_case_of_the_benchmark_launches_what_is_shipped(op, departures, monkeypatch):
    """But the prefetch's, which has one form and needs real streams."""
    for case in bench_case.cases_of(op):
        with fake_gpu(monkeypatch):
            assert departures(prepared(case, monkeypatch)) == [], case.name


def prepared(case, monkeypatch):
    """The call that a case times."""
    works = []
    launches_of(lambda: works.append(case.prepare(2)), monkeypatch)
    return lambda: works[0].ours(0)


@pytest.mark.parametrize("ids", [1, FEW_IDS, FEW_IDS + 1, 98_304])
@pytest.mark.parametrize("packed", [False, True], ids=["planes", "records"])
def test_engram_gather(ids, packed, departures):
    byte = {"dtype": torch.uint8}
    table = (
        RowTable.of_records(zeros(10, 264, **byte))
        if packed
        else RowTable.of_planes(zeros(10, 256, **byte), zeros(10, 8, **byte))
    )
    wanted, out = zeros(ids, dtype=torch.int64), zeros(ids, 256)
    for options in (GatherOptions("signed"), GatherOptions("positive", "sorted")):

        def call(options=options):
            engram_gather(wanted, table, out=out, options=options)

        assert departures(call) == []


@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, 4096])
@pytest.mark.parametrize("images", [False, True], ids=["text", "images"])
def test_engram_gate(rows, images, departures):
    x, kv, weight = zeros(rows, 4, 5120), zeros(rows, 25600), zeros(4, 5120)
    marked = Images(zeros(rows, dtype=torch.int64), 1) if images else None
    assert departures(lambda: engram_gate(x, kv, (weight, weight), marked, out=x)) == []


@pytest.mark.parametrize("ragged", [False, True], ids=["blocks", "ragged"])
def test_engram_hash(ragged, departures):
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

    def step():
        engram_hash(tokens, tokens, runs, tables)
        advance_history(history, slots, tokens, runs, media=(10**6, 1), **marks)

    assert departures(step) == []


def test_a_launch_that_departs_from_its_form_is_seen():
    form = Shipped("f", None, {"x": "*bf16"}, {"BLOCK": 64}, 4, 3, options={"maxnreg": 128})
    launch = {"x": 1, "BLOCK": 64, "num_warps": 4, "maxnreg": 128, "INTERPRETED": True}
    assert differences(form, launch) == []
    assert differences(form, {**launch, "BLOCK": 32}) == ["BLOCK: launched 32, shipped 64"]
    assert differences(form, {**launch, "num_warps": 8}) == ["num_warps: launched 8, shipped 4"]
    assert differences(form, {**launch, "num_stages": 2}) == ["num_stages: launched 2, shipped 3"]
    assert differences(form, {**launch, "SPLIT": 2}) == ["SPLIT: launched only"]
    del launch["maxnreg"]
    assert differences(form, launch) == ["maxnreg: launched None, shipped 128"]


def test_a_kernel_that_its_op_does_not_ship_is_seen():
    function = SimpleNamespace(__name__="stray", __module__="sparkserve_kernels.engram_gate.kernel")
    launch = Launch(SimpleNamespace(fn=function), {})
    assert launch.departure() == ["stray: engram_gate does not ship it"]
