"""MXFP8 linears on a GPU: real layers, graphs, streams beside each other."""

import pytest
import torch
from sparkserve_kernels.mxfp8_linear import api, benchmark, reference, shapes
from sparkserve_kernels.split_k import SplitWorkspace

from tests.kernels.numeric import relative_l2, same_bits

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: graphs and real shapes"
)


@needs_gpu
@pytest.mark.parametrize("rows", [1, 6, 16, 30, 96, 300])
@pytest.mark.parametrize("name", shapes.LAYERS)
def test_real_layers_agree_with_float64(name, rows, generator):
    weight = benchmark.draw_weight(shapes.LAYERS[name], generator)
    x = benchmark.draw_rows(rows, shapes.LAYERS[name][1], generator)
    have = api.mxfp8_linear(x, *weight)
    part = slice(0, 4096)
    want = reference.exact(x, weight[0][part], weight[1][part])
    assert relative_l2(have[:, part], want) <= benchmark.MAX_RELATIVE_L2
    alone = api.mxfp8_linear(x[rows - 1 :], *weight, rows_hint=rows)
    assert same_bits(alone, have[rows - 1 :])


@needs_gpu
@pytest.mark.parametrize("name", ["wqkv_a", "wq_b", "shared down"])
def test_graph_replays_with_new_inputs_and_weights(name, generator, device):
    weight = benchmark.draw_weight(shapes.LAYERS[name], generator)
    x = benchmark.draw_rows(6, shapes.LAYERS[name][1], generator)
    workspace = SplitWorkspace.on(device)
    api.mxfp8_linear(x, *weight, workspace=workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        owned = api.mxfp8_linear(x, *weight, workspace=workspace)
        alone = api.mxfp8_linear(x, *weight)
    for _ in range(5):
        x.copy_(benchmark.draw_rows(6, x.shape[1], generator))
        graph.replay()
        want = api.mxfp8_linear(x, *weight)
        assert same_bits(owned, want)
        assert same_bits(alone, want)


@needs_gpu
def test_streams_with_a_workspace_each_do_not_disturb_each_other(generator, device):
    weight = benchmark.draw_weight((1152, 5120), generator)
    x = benchmark.draw_rows(6, 5120, generator)
    want = api.mxfp8_linear(x, *weight)
    streams = [torch.cuda.Stream() for _ in range(4)]
    spaces = [SplitWorkspace.on(device) for _ in streams]
    torch.cuda.synchronize()
    results = []
    for _ in range(50):
        for stream, space in zip(streams, spaces, strict=True):
            with torch.cuda.stream(stream):
                results.append(api.mxfp8_linear(x, *weight, workspace=space))
    torch.cuda.synchronize()
    assert all(same_bits(result, want) for result in results)
