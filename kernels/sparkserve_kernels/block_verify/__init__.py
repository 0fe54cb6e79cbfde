"""Verify a block of drafted tokens without changing the target's law."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="block_verify",
    summary="accept as many drafts as block verification allows and draw the correction",
    entry_points=("block_verify",),
    capabilities=((9, 0),),
    test="tests/kernels/test_block_verify.py",
)
