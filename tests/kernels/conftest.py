"""Kernels run on the GPU where there is one, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import os
import sys
import zlib

import pytest
import torch

if not torch.cuda.is_available():
    if "triton" in sys.modules:
        raise RuntimeError("triton was imported before tests/kernels could choose its interpreter")
    # Triton reads this when it is imported; no other process of the test run may inherit it.
    os.environ["TRITON_INTERPRET"] = "1"
    import triton

    del os.environ["TRITON_INTERPRET"]
    triton.knobs.propagate_env = False
    triton.knobs.runtime.interpret = True


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the kernels under test run."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The same in every run, another for every test."""
    return zlib.crc32(request.node.nodeid.encode())


@pytest.fixture
def generator(device: torch.device, seed: int) -> torch.Generator:
    """Random inputs of this test alone, drawn on its device."""
    return torch.Generator(device=device).manual_seed(seed)


def _poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Fill memory that nobody has written with what shows: NaN, or all bits but the sign."""
    if tensor.numel() == 0:
        return tensor
    if tensor.dtype.itemsize == 1:
        tensor.view(torch.uint8).fill_(0x7F)
    elif tensor.dtype.is_floating_point:
        tensor.fill_(float("nan"))
    elif tensor.dtype is not torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).max)
    return tensor


@pytest.fixture(autouse=True)
def _poison_empty_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that a kernel forgets to write shall not look right by chance."""
    empty, empty_like, new_empty = torch.empty, torch.empty_like, torch.Tensor.new_empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: _poisoned(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: _poisoned(empty_like(*a, **k)))
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda self, *a, **k: _poisoned(new_empty(self, *a, **k))
    )
