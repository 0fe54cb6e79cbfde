"""Row ids of n-grams, and the per-request history they look back at."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="engram_hash",
    summary="Engram row ids of a batch's tokens, and each request's newest tokens",
    entry_points=("engram_hash", "advance_history"),
    capabilities=((9, 0),),
    test="tests/kernels/test_engram_hash.py",
)
