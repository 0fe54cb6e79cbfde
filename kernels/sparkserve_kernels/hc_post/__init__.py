"""The residual streams after a sublayer."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="hc_post",
    summary="a sublayer's output mixed into the hyper-connection streams",
    entry_points=("hc_post",),
    capabilities=((9, 0),),
    test="tests/kernels/test_hc_post.py",
)
