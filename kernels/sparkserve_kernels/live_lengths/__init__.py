"""How many rows of each request a verify step keeps alive."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="live_lengths",
    summary="live rows per request by the running product of the draft's confidences",
    entry_points=("live_lengths",),
    capabilities=((9, 0),),
    test="tests/kernels/test_live_lengths.py",
)
