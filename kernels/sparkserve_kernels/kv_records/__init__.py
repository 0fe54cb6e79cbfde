"""KV cache records in pages: 584, 432, 528, 288 bytes a token, and index keys of 68."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="kv_records",
    summary="latents packed into paged cache records and read back, any record and page geometry",
    entry_points=("kv_pack", "kv_unpack", "kv_unpack_dual"),
    capabilities=((9, 0),),
    test="tests/kernels/test_kv_records.py",
)
