"""Index queries and keys to FP4 by the two-stage rule, as tensors or as records in pages."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="index_quant",
    summary="RoPE'd bf16 index queries and keys to e2m1 with e8m0 per 32, or to 68-byte records",
    entry_points=("index_quant", "index_quant_to_pages"),
    capabilities=((9, 0),),
    test="tests/kernels/test_index_quant.py",
)
