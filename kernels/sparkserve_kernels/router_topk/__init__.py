"""Experts of each token: sqrt-softplus scores, a selection bias and the best few."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="router_topk",
    summary="best experts by sqrt-softplus score plus bias; rows past a live length follow their "
    "anchor",
    entry_points=("router_topk",),
    capabilities=((9, 0),),
    test="tests/kernels/test_router_topk.py",
)
