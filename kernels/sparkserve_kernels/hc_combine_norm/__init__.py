"""A sublayer's input: the residual streams combined, and normed."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="hc_combine_norm",
    summary="weighted sum of the hyper-connection streams, then RMSNorm",
    entry_points=("hc_combine_norm",),
    capabilities=((9, 0),),
    test="tests/kernels/test_hc_combine_norm.py",
)
