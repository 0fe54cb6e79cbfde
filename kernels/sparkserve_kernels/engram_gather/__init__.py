"""Rows of an Engram table by id, decoded to bf16."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="engram_gather",
    summary="rows of an Engram table (e4m3 with e8m0 scales) by id, as bf16",
    entry_points=("engram_gather",),
    capabilities=((9, 0),),
    test="tests/kernels/test_engram_gather.py",
)
