"""What an Engram layer adds to the four residual streams."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="engram_gate",
    summary="Engram rows gated into the hyper-connection streams",
    entry_points=("engram_gate",),
    capabilities=((9, 0),),
    test="tests/kernels/test_engram_gate.py",
)
