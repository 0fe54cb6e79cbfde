"""Rows quantised to MXFP8: e4m3 with one power-of-two scale per 32 columns."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="mxfp8_quant",
    summary="bf16 or fp32 rows to e4m3 and e8m0 scales, linear or in the 128x4 layout",
    entry_points=("mxfp8_quant",),
    capabilities=((9, 0),),
    test="tests/kernels/test_mxfp8_quant.py",
)
