"""Indexer scores of FP4 queries against FP4 index-K records."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="index_scores",
    summary="weighted sums over heads of relu(q.k) between fp4 queries and index-K records",
    entry_points=("index_scores", "candidate_scores", "is_supported"),
    capabilities=((9, 0),),
    test="tests/kernels/test_index_scores.py",
)
