"""The best keys of each row by indexer score, with memory bounded along rows and keys."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="index_topk",
    summary="top 512 keys per row in a total order, by a running merge over key blocks",
    entry_points=("index_topk", "candidate_topk", "top_positions", "slots_of", "is_supported"),
    capabilities=((9, 0),),
    test="tests/kernels/test_index_topk.py",
)
