"""Linear layers of MXFP8 rows with MXFP8 weights, fp32 sums and bf16 results."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="mxfp8_linear",
    summary="x @ W^T with both in e4m3 and a power-of-two scale per 32 columns; split along K "
    "where rows are few, always added up in the same order",
    entry_points=("mxfp8_linear",),
    capabilities=((9, 0),),
    test="tests/kernels/test_mxfp8_linear.py",
)
