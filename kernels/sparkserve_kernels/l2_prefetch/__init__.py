"""Bulk prefetch of memory into the GPU's L2 cache."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="l2_prefetch",
    summary="prefetch of weights into the L2 while the GPU's memory is idle",
    entry_points=("segments", "l2_prefetch"),
    capabilities=((9, 0),),
    test="tests/kernels/test_l2_prefetch.py",
)
