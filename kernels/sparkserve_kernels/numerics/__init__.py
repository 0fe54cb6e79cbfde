"""Number formats, quantisers and scale layouts: everything that two components must agree on."""

from sparkserve_kernels.meta import OpMeta

META = OpMeta(
    name="numerics",
    summary="element codecs, MXFP8 rule, scale layouts, fp8 twins",
    entry_points=(
        "mxfp8_quantise",
        "mxfp8_dequantise",
        "swizzle",
        "unswizzle",
        "e8m0_from_grid",
        "fp8_twin",
        "dequantise_twin",
    ),
    capabilities=((9, 0),),
    test="tests/kernels/test_numerics.py",
)
