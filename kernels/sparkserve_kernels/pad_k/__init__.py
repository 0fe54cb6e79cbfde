"""Weights and activations padded along K to a multiple, for kernels that want one."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="pad_k",
    summary="weight and scale grid padded along K with zeros and ones, and a buffer of fixed "
    "address for activations of that width",
    entry_points=("pad_k", "padded_k", "PaddedInput"),
    capabilities=((9, 0),),
    test="tests/kernels/test_pad_k.py",
)
