"""The rows' split among ranks: every row once, ids unchanged, one decision on all ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.index_topk.split import (
    SplitCase,
    SplitMismatch,
    SplitSettings,
    eligibility,
    extent_of,
    mask_of_blocks,
    pack,
    require_equal_settings,
    rows_of,
    unpack,
)

WORLDS = [1, 2, 3, 4, 8]
GOOD = SplitCase(4096, 131_072, (12, 1), prefill=True, capturing=False, draft=False)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("rows", [0, 1, 127, 128, 129, 1024, 1031, 4096, 4097])
def test_every_row_belongs_to_one_rank(rows, world):
    extent = extent_of(rows, world)
    shares = [rows_of(rows, rank, world) for rank in range(world)]
    assert [row for share in shares for row in share] == list(range(rows))
    assert all(len(share) <= extent for share in shares)
    assert extent % 128 == 0
    assert all(share.start in (rank * extent, rows) for rank, share in enumerate(shares))
    assert extent * world < rows + 128 * world


def test_extents_by_hand():
    assert extent_of(4096, 4) == 1024
    assert extent_of(4097, 4) == 1152
    assert extent_of(1024, 3) == 384
    assert rows_of(1024, 2, 3) == range(768, 1024)
    assert rows_of(129, 3, 4) == range(129, 129)


@pytest.mark.parametrize("blocks", [0, 7])
@pytest.mark.parametrize("world", WORLDS)
def test_what_is_packed_and_gathered_comes_back(world, blocks, generator):
    rows, k = 261, 5
    device = generator.device
    ids = torch.randint(-1, 99, (rows, k + blocks), generator=generator, device=device).int()
    extent = extent_of(rows, world)
    parts = []
    for rank in range(world):
        mine = rows_of(rows, rank, world)
        own = ids[mine.start : mine.stop]
        parts.append(pack(own[:, :k], own[:, k:] if blocks else None, extent))
        assert parts[-1].shape == (extent, k + blocks)
        assert (parts[-1][len(mine) :] == -1).all()
    positions, candidates = unpack(torch.cat(parts), rows, k)
    assert torch.equal(positions, ids[:, :k])
    if blocks:
        assert torch.equal(candidates, ids[:, k:])
    else:
        assert candidates is None


def test_masks_of_blocks(device):
    blocks = torch.tensor([[0, 2, -1], [-1, -1, -1], [1, 2, -1]], dtype=torch.int32, device=device)
    mask = mask_of_blocks(blocks, 19)
    assert mask.shape == (3, 19)
    assert mask[0].nonzero().flatten().tolist() == [*range(8), *range(16, 19)]
    assert not mask[1].any()
    assert mask[2].nonzero().flatten().tolist() == list(range(8, 19))


REFUSED = {
    "draft model": {"draft": True},
    "no prefill": {"prefill": False},
    "graph capture": {"capturing": True},
    "1023 rows, expected at least 1024": {"rows": 1023},
    "context 32767, expected at least 32768": {"max_context": 32767},
    "capability (9, 0), expected one of [(12, 1)]": {"capability": (9, 0)},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_each_refusal_says_why(reason):
    found = eligibility(SplitSettings(world=4), replace(GOOD, **REFUSED[reason]))
    assert (found.ok, found.reason) == (False, reason)


@pytest.mark.parametrize("world", WORLDS)
def test_worlds(world):
    found = eligibility(SplitSettings(world=world), GOOD)
    assert found.ok == (world in (4, 8))
    if not found.ok:
        assert found.reason == f"{world} ranks, expected one of [4, 8]"


def test_the_least_that_is_split():
    least = replace(GOOD, rows=1024, max_context=32768)
    assert eligibility(SplitSettings(world=8), least) == (True, "")


def test_ranks_that_differ_are_refused():
    same = [SplitSettings(world=4)] * 4
    require_equal_settings(same)
    differs = r"rank 2 has .*min_rows=9.*expected .*1024.* as rank 0"
    with pytest.raises(SplitMismatch, match=differs):
        require_equal_settings([*same[:2], SplitSettings(world=4, min_rows=9), same[3]])


def test_what_does_not_fit_is_refused(device):
    ids = torch.zeros((3, 2), dtype=torch.int32, device=device)
    with pytest.raises(KernelArgumentError, match="3 rows, expected at most the extent 2"):
        pack(ids, None, 2)
    with pytest.raises(KernelArgumentError, match="blocks: 2 rows, expected 3"):
        pack(ids, ids[:2], 128)
    with pytest.raises(KernelArgumentError, match=r"shape \[3, 2\], expected at least \[4, 2\]"):
        unpack(ids, 4, 2)
    with pytest.raises(KernelArgumentError, match="rank 4, expected 0 to 3"):
        rows_of(9, 4, 4)
    with pytest.raises(KernelArgumentError, match="9 rows on 0 ranks"):
        extent_of(9, 0)
