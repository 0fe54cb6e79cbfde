"""Launches of the score kernels on checked tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton

from sparkserve_kernels.index_scores.kernel import (
    candidate_scores_kernel,
    scores_kernel,
    widen_kernel,
)
from sparkserve_kernels.index_scores.keys import Keys, places_of
from sparkserve_kernels.index_scores.tiles import (
    CANDIDATE_TILES,
    DIM,
    HEADS,
    ROWS_PER_SPLIT,
    SCAN,
    WIDEN_BLOCK,
    ScoreTile,
)
from sparkserve_kernels.target import Target, target_of


@dataclass(frozen=True)
class ScoreRows:
    """What has a line per row, or one per row and head."""

    queries: torch.Tensor
    """[rows * 32, 64] uint8, or widened [rows * 32, 128] e4m3 or bf16."""
    scales: torch.Tensor
    """[rows * 32, 4] uint8."""
    weights: torch.Tensor
    """[rows, 32] fp32 or bf16."""
    visible: torch.Tensor
    """[rows] int32."""
    row_starts: torch.Tensor | None
    """[requests + 1] int32, counted from row -begin."""
    begin: int = 0
    """Number of the first row in row_starts."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.visible.shape[0])

    @property
    def requests(self) -> int:
        """How many requests there are, those without rows included."""
        return 1 if self.row_starts is None else int(self.row_starts.shape[0]) - 1

    def part(self, begin: int, end: int) -> ScoreRows:
        """Views of the rows [begin, end)."""
        return replace(
            self,
            queries=self.queries[begin * HEADS : end * HEADS],
            scales=self.scales[begin * HEADS : end * HEADS],
            weights=self.weights[begin:end],
            visible=self.visible[begin:end],
            begin=self.begin + begin,
        )

    def widened(self, tile: ScoreTile, target: Target) -> ScoreRows:
        """Queries decoded, if the tile wants them so: 16 MiB (Spark) or 32 MiB per 4,096 rows."""
        if not tile.wide:
            return self
        scaled = target.family == "spark"
        dtype = torch.float8_e4m3fn if scaled else torch.bfloat16
        wide = torch.empty((self.rows * HEADS, DIM), dtype=dtype, device=self.queries.device)
        widen_kernel[(triton.cdiv(self.rows * HEADS, WIDEN_BLOCK),)](
            self.queries,
            self.scales,
            wide,
            self.rows * HEADS,
            self.queries.stride(0),
            self.scales.stride(0),
            SCALED=scaled,
            BLOCK=WIDEN_BLOCK,
            num_warps=4,
        )
        return replace(self, queries=wide)


def launch_scores(
    lines: ScoreRows,
    keys: Keys,
    scores: torch.Tensor,
    first_key: int,
    *,
    tile: ScoreTile,
    target: Target,
) -> None:
    """Scores of the keys [first_key, first_key + scores.shape[1]) for all lines.

    Elements of scores that no row of a key tile sees keep what they held.
    """
    rows, count = scores.shape
    places = places_of(keys)
    splits = triton.cdiv(rows, ROWS_PER_SPLIT)
    scores_kernel[(triton.cdiv(count, tile.keys), lines.requests, splits)](
        lines.queries,
        lines.scales,
        lines.weights,
        places.payload,
        places.scales,
        places.table,
        lines.visible if lines.row_starts is None else lines.row_starts,
        lines.visible,
        scores,
        lines.queries.stride(0),
        lines.scales.stride(0),
        lines.weights.stride(0),
        places.payload.stride(0),
        places.scales.stride(0),
        places.table.stride(0),
        scores.stride(0),
        lines.begin,
        rows,
        ROWS_PER_SPLIT,
        first_key,
        count,
        RAGGED=lines.row_starts is not None,
        PAGED=places.paged,
        SLOTS=places.slots,
        WIDE=tile.wide,
        SCALED=target.family == "spark",
        BT=tile.rows,
        BK=tile.keys,
        SCAN=SCAN,
        INTERPRETED=target.interpreted,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=False,
    )


def launch_candidates(
    lines: ScoreRows, keys: Keys, blocks: torch.Tensor, scores: torch.Tensor, size: int
) -> None:
    """Scores of the keys of each line's blocks; every element of scores is written."""
    target = target_of(scores)
    tile = CANDIDATE_TILES[target.family]
    places = places_of(keys)
    candidate_scores_kernel[(lines.rows, triton.cdiv(scores.shape[1], tile.keys))](
        lines.queries,
        lines.scales,
        lines.weights,
        places.payload,
        places.scales,
        places.table,
        lines.visible if lines.row_starts is None else lines.row_starts,
        lines.visible,
        blocks,
        scores,
        lines.queries.stride(0),
        lines.scales.stride(0),
        lines.weights.stride(0),
        places.payload.stride(0),
        places.scales.stride(0),
        places.table.stride(0),
        blocks.stride(0),
        scores.stride(0),
        lines.begin,
        lines.requests if lines.row_starts is not None else 0,
        blocks.shape[1],
        keys.capacity,
        REQUESTS=triton.next_power_of_2(max(lines.requests, 1)),
        PAGED=places.paged,
        SLOTS=places.slots,
        SCALED=target.family == "spark",
        SIZE=size,
        BK=tile.keys,
        INTERPRETED=target.interpreted,
        num_warps=tile.warps,
        enable_fp_fusion=False,
    )
