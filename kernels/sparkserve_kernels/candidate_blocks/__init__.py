"""Candidate blocks of keys that a source layer publishes for the layers after it."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="candidate_blocks",
    summary="top 2048 blocks of 8 keys per row by their best score, the newest block always in",
    entry_points=("candidate_blocks", "topk_and_candidates", "blocks_of_scores", "is_supported"),
    capabilities=((9, 0),),
    test="tests/kernels/test_candidate_blocks.py",
)
