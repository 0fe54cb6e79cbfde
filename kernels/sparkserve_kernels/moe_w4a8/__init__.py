"""Routed experts: MXFP4 weights, MXFP8 activations, one deterministic sum over a token's slots."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="moe_w4a8",
    summary="routed MXFP4 experts with MXFP8 activations, route planner, deterministic reduction",
    entry_points=("moe_w4a8", "route_plan", "make_scratch", "remap_experts"),
    capabilities=((9, 0),),
    test="tests/kernels/test_moe_w4a8.py",
)
