"""Score and select in blocks of rows and keys: no more scores exist than the budget allows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparkserve_kernels.index_scores.keys import Keys
from sparkserve_kernels.index_scores.launch import ScoreRows, launch_candidates, launch_scores
from sparkserve_kernels.index_scores.tiles import ScoreTile
from sparkserve_kernels.index_topk.launch import Selection, Source
from sparkserve_kernels.index_topk.plan import Budget, spans
from sparkserve_kernels.index_topk.tiles import SelectTile
from sparkserve_kernels.target import Target


@dataclass(frozen=True)
class Sink:
    """Something to select from the scores."""

    tile: SelectTile
    visible: torch.Tensor
    """[rows] int32; 0 where nothing is wanted of a row."""
    group: int = 1
    """Neighbouring keys that count as one by their largest score."""

    def source(self, scores: torch.Tensor, rows: slice, first: int) -> Source:
        """The scores of the keys from number first on, as this sink sees them."""
        return Source(scores, self.visible[rows], first=first // self.group, group=self.group)


@dataclass(frozen=True)
class Work:
    """What is scored, and how."""

    lines: ScoreRows
    keys: Keys
    key_count: int
    budget: Budget
    tile: ScoreTile
    target: Target


def select_over_keys(work: Work, sinks: tuple[Sink, ...]) -> list[torch.Tensor]:
    """What each sink selects: [rows, k] int32, ascending, padded with -1."""
    total, device = work.lines.rows, work.lines.visible.device
    found = [torch.empty((total, sink.tile.k), dtype=torch.int32, device=device) for sink in sinks]
    block = work.budget.keys_at_a_time(total, work.key_count)
    step = min(total, work.budget.rows_at_a_time(block))
    scores = torch.empty((step, block), dtype=torch.float32, device=device)
    for begin, end in spans(total, step):
        lines = work.lines.part(begin, end).widened(work.tile, work.target)
        selections = [Selection(end - begin, sink.tile, device) for sink in sinks]
        for first, last in spans(work.key_count, block):
            part = scores[: end - begin, : last - first]
            launch_scores(lines, work.keys, part, first, tile=work.tile, target=work.target)
            for sink, selection in zip(sinks, selections, strict=True):
                selection.add(sink.source(part, slice(begin, end), first))
        for whole, selection in zip(found, selections, strict=True):
            whole[begin:end] = selection.positions()
    return found


def select_over_blocks(
    work: Work, blocks: torch.Tensor, size: int, tile: SelectTile
) -> torch.Tensor:
    """The best keys among each row's blocks: [rows, k] int32, ascending, padded with -1."""
    total, device = work.lines.rows, work.lines.visible.device
    found = torch.empty((total, tile.k), dtype=torch.int32, device=device)
    length = blocks.shape[1] * size
    step = min(total, work.budget.rows_at_a_time(length))
    scores = torch.empty((step, length), dtype=torch.float32, device=device)
    for begin, end in spans(total, step):
        lines, listed = work.lines.part(begin, end), blocks[begin:end]
        part = scores[: end - begin]
        selection = Selection(end - begin, tile, device)
        if length:
            launch_candidates(lines, work.keys, listed, part, size)
            selection.add(Source(part, lines.visible, listed=listed, per_entry=size))
        found[begin:end] = selection.positions()
    return found
