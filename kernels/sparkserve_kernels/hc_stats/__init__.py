"""How much each residual stream gives to a sublayer and takes from it."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="hc_stats",
    summary="gates and the mixing matrix of the hyper-connection streams",
    entry_points=("hc_stats", "cut_weight"),
    capabilities=((9, 0),),
    test="tests/kernels/test_hc_stats.py",
)
