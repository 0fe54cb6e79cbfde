"""Linears whose bf16 weight is kept as e4m3 bytes with one exponent per block: half the bytes."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="twin_linear",
    summary="bf16 rows times an fp8 twin: wo_a, the draft's head and its main projection",
    entry_points=(
        "twin_of",
        "twin_linear",
        "twin_linear_mxfp8",
        "drop_weight",
        "restore_weight",
        "read_through",
    ),
    capabilities=((9, 0),),
    test="tests/kernels/test_twin_linear.py",
)
