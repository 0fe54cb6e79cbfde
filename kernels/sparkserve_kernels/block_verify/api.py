"""Verify a block of drafted tokens without changing the target's law."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkserve_kernels.block_verify.rules import Block, Verdict, check
from sparkserve_kernels.block_verify.tiles import TILES, Tile
from sparkserve_kernels.target import supports, target_of

if TYPE_CHECKING:
    import torch

__all__ = ["Block", "Verdict", "block_verify", "is_supported", "launch"]


def is_supported(target: torch.Tensor) -> bool:
    """Whether the kernels run where these probabilities lie."""
    return supports(target)


def block_verify(block: Block, noise: torch.Tensor) -> Verdict:
    """Accept the longest prefix of the drafts that the target's law allows, and draw what follows.

    noise: [2] int64: a seed that all ranks share and the number of this call; a call's number must
        never repeat under one seed. Both are read on the device, so that a captured graph follows.

    Returns:
        The verdict. Committed tokens follow the target's law exactly, up to the rounding of fp32
        and the 24 bits of a draw.

    Raises:
        KernelArgumentError: a wrong shape, dtype or number of drafts.
        UnsupportedDevice: no kernel for where the probabilities lie.

    Notes:
        Sun et al., ICLR 2025. With w_0 = 1 and w_i = min(w_{i-1} p_i(X_i)/q_i(X_i), 1), draft i is
        the last one accepted if it is the greatest with eta_i < h_i (strictly: a chance of 0 never
        accepts), where h_i = S_i/(S_i + 1 - w_i) (1 for 0/0), S_i = sum(max(w_i p_{i+1} - q_{i+1},
        0)), and h = w at the last live draft. The correction is drawn from the positive part of
        w p - q at the next position, from w p behind the last live draft, and from p where no mass
        is left. Ties of the race, of which there are practically none, go to the lowest token.
        Equal seeds, calls and inputs give equal verdicts on all GPUs of one kind, and a request's
        verdict depends on its own place in the batch. A draft that the draft distribution cannot
        have drawn, or a NaN, leaves the law undefined but never leaves the vocabulary; a draft
        outside the vocabulary, or with NaN as its target probability, has the probability 0.
    """
    import torch

    check(block, noise)
    device = block.target.device
    verdict = Verdict(
        torch.empty(block.requests, dtype=torch.int32, device=device),
        torch.empty(block.requests, dtype=torch.int64, device=device),
    )
    if block.requests:
        launch(block, noise, verdict, TILES[target_of(block.target).family])
    return verdict


def launch(block: Block, noise: torch.Tensor, verdict: Verdict, tile: Tile) -> None:
    """Run the three kernels in one tile, without checks."""
    import torch
    import triton

    from sparkserve_kernels.block_verify.kernel import mass_kernel, race_kernel, verdict_kernel

    device, requests, rows = block.target.device, block.requests, block.drafts + 1
    pieces = triton.cdiv(block.vocabulary, tile.columns)
    parts = triton.cdiv(triton.cdiv(block.vocabulary, 4), tile.counters)
    masses = torch.empty((requests, rows, pieces), dtype=torch.float32, device=device)
    likeliest = torch.empty((requests, rows, pieces), dtype=torch.int32, device=device)
    times = torch.empty((requests, 2, parts), dtype=torch.float32, device=device)
    runners = torch.empty((requests, 2, parts), dtype=torch.int32, device=device)
    live = verdict.token if block.live_lengths is None else block.live_lengths
    greedy = likeliest if block.greedy is None else block.greedy.view(torch.uint8)
    which = (block.tokens, live, greedy)
    shape = (
        block.vocabulary,
        *block.target.stride()[:2],
        *block.draft.stride()[:2],
    )
    has = {
        "DRAFTS": block.drafts,
        "HAS_LIVE": block.live_lengths is not None,
        "HAS_GREEDY": block.greedy is not None,
        "enable_fp_fusion": False,
    }
    several = {"PIECES": triton.next_power_of_2(pieces), "PARTS": triton.next_power_of_2(parts)}
    mass_kernel[(requests, rows, pieces)](
        block.target, block.draft, *which, masses, likeliest, *shape,
        BLOCK=tile.columns, num_warps=tile.warps, **has,
    )  # fmt: skip
    race_kernel[(requests, parts)](
        block.target, block.draft, *which, noise, masses, verdict.accepted, times, runners, *shape,
        pieces, PIECES=several["PIECES"], BLOCK=tile.counters, num_warps=tile.race_warps,
        INTERPRETED=target_of(block.target).interpreted, **has,
    )  # fmt: skip
    verdict_kernel[(requests,)](
        *which, masses, likeliest, verdict.accepted, times, runners, verdict.token, pieces, parts,
        num_warps=1, **has, **several,
    )  # fmt: skip
