"""Device functions that kernels share: exact roundings, element codecs, group scales.

All of it is integer arithmetic on IEEE bits or exact fp32, because Triton's interpreter truncates
where it should round (docs/format/numbers.md, "Traps of Triton's interpreter") and because a
result that two components must agree on may not depend on how a compiler lowers a cast. bf16
tensors are cast to fp32 before any arithmetic: the interpreter would compute on their raw bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

E4M3_MAX = tl.constexpr(448.0)
INVERSE_E4M3_MAX_BITS = tl.constexpr(0x3B124925)
"""fp32 bits of 1/448 as the canonical quantiser has it."""


@triton.jit
def to_fp32(x):
    """fp32 or bf16 as fp32, exactly; the interpreter's own cast of a subnormal bf16 is wrong."""
    if x.dtype == tl.bfloat16:
        wide = x.to(tl.uint16, bitcast=True).to(tl.uint32)
        return (wide << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def bf16_bits(x):
    """Bits (uint16) of fp32 rounded to bf16, nearest even; NaN becomes 0x7FC0."""
    bits = x.to(tl.uint32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(x != x, 0x7FC0, rounded).to(tl.uint16)


@triton.jit
def to_bf16(x):
    """fp32 rounded to bf16, nearest even, as a bf16 tensor."""
    return bf16_bits(x).to(tl.bfloat16, bitcast=True)


@triton.jit
def round_bf16(x):
    """fp32 rounded to the nearest bf16 value (even at ties), kept as fp32."""
    return (bf16_bits(x).to(tl.uint32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def e4m3_bits(x):
    """Bits (uint8) of fp32 rounded to e4m3, nearest even, saturated at 448; NaN becomes 0x7F."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = (bits & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    magnitude = tl.where(magnitude > E4M3_MAX, E4M3_MAX, magnitude)
    clamped = magnitude.to(tl.uint32, bitcast=True)
    normal = ((clamped + 0x7FFFF + ((clamped >> 20) & 1)) >> 20) - (120 << 3)
    # 2^14 has 2^-9 as its last place: the addition rounds to a multiple of the smallest subnormal.
    subnormal = (magnitude + 16384.0).to(tl.uint32, bitcast=True) & 0xFF
    code = tl.where(magnitude < 0.015625, subnormal, normal)
    return tl.where(x != x, 0x7F, sign | code).to(tl.uint8)


@triton.jit
def to_e4m3(x):
    """fp32 rounded to e4m3 (nearest even, saturated) as an fp8e4nv tensor."""
    return e4m3_bits(x).to(tl.float8e4nv, bitcast=True)


@triton.jit
def e4m3_value(bits):
    """fp32 value of e4m3 bits (uint8); both NaN codes give NaN."""
    wide = bits.to(tl.uint32)
    magnitude = wide & 0x7F
    normal = ((magnitude + (120 << 3)) << 20).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
    value = tl.where(magnitude == 0x7F, float("nan"), value)
    return (value.to(tl.uint32, bitcast=True) | ((wide & 0x80) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def e8m0_value(byte):
    """fp32 value 2^(byte-127) of an e8m0 byte; byte 0 is 2^-127, 255 is NaN."""
    wide = byte.to(tl.uint32)
    bits = tl.where(wide == 0, 0x00400000, wide << 23)
    return tl.where(wide == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def e2m1_code(x):
    """Code 0..15 (uint8) of fp32 rounded to e2m1, ties to even; NaN and all above 6 become 6."""
    bits = x.to(tl.uint32, bitcast=True)
    a = (bits & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    a = tl.where(a < 6.0, a, 6.0)
    clamped = a.to(tl.uint32, bitcast=True)
    # Codes of normal values count on from code 2 of 1.0, whose exponent and first bit are 254.
    normal = (clamped + (0x1FFFFF + (4 << 22)) + ((clamped >> 22) & 1)) >> 22
    # 2^22 has .5 as its last place: the addition rounds to a multiple of it.
    subnormal = (a + 4194304.0).to(tl.uint32, bitcast=True)
    code = tl.where(a < 1.0, subnormal, normal) & 7
    return (code | ((bits >> 28) & 8)).to(tl.uint8)


@triton.jit
def e2m1_code_scaled(x, scale):
    """Code 0..15 (uint8) of x/scale rounded to e2m1, without the division.

    scale: fp32, positive and of few bits (a power of two or an e4m3 value), broadcast against x.
    For bf16 x this is the code of the quotient itself: a boundary times the scale is exact.
    """
    bits = x.to(tl.uint32, bitcast=True)
    a = (bits & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    code = (a > 0.25 * scale).to(tl.uint32) + (a >= 0.75 * scale).to(tl.uint32)
    code += (a > 1.25 * scale).to(tl.uint32) + (a >= 1.75 * scale).to(tl.uint32)
    code += (a > 2.5 * scale).to(tl.uint32) + (a >= 3.5 * scale).to(tl.uint32)
    code += (a > 5.0 * scale).to(tl.uint32)
    return (code | ((bits >> 28) & 8)).to(tl.uint8)


@triton.jit
def e2m1_pack(codes, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Codes [ROWS, COLUMNS] as bytes [ROWS, COLUMNS/2], element 2i in the low nibble."""
    low, high = tl.split(tl.reshape(codes, (ROWS, COLUMNS // 2, 2)))
    return low | (high << 4)


@triton.jit
def e2m1_unpack(packed, ROWS: tl.constexpr, BYTES: tl.constexpr):
    """Bytes [ROWS, BYTES] as codes [ROWS, 2*BYTES], the low nibble first."""
    return tl.reshape(tl.join(packed & 15, packed >> 4), (ROWS, 2 * BYTES))


@triton.jit
def e2m1_to_e4m3_bits(code):
    """The e4m3 byte of the same value as an e2m1 code (low nibble of a uint8)."""
    sign = (code & 8) << 4
    magnitude = code & 7
    return (sign | tl.where(magnitude >= 2, 0x30 + 4 * magnitude, 0x30 * magnitude)).to(tl.uint8)


@triton.jit
def e2m1_value(code):
    """fp32 value of an e2m1 code (low nibble of a uint8)."""
    return e4m3_value(e2m1_to_e4m3_bits(code))


@triton.jit
def mxfp8_scale_byte(amax):
    """e8m0 byte (int32) of the canonical MXFP8 rule for a group's largest magnitude (fp32).

    The scale is the least power of two that is not below amax/448; 0 for an all-zero group and
    for n <= 2^-127.
    """
    n = amax * tl.full((), INVERSE_E4M3_MAX_BITS, tl.uint32).to(tl.float32, bitcast=True)
    bits = n.to(tl.uint32, bitcast=True)
    exponent = (bits >> 23).to(tl.int32)
    mantissa = (bits & 0x7FFFFF).to(tl.int32)
    bump = (mantissa != 0) & ((exponent != 0) | (mantissa > 0x400000))
    byte = tl.minimum(exponent + bump.to(tl.int32), 254)
    return tl.where(n > 0.0, byte, 0)


@triton.jit
def mxfp8_multiplier(byte):
    """fp32 2^(127-byte) by which a group is scaled before rounding; 0 for byte 0."""
    bits = tl.where(byte == 0, 0, (254 - byte) << 23)
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def e4m3_bits_on(x, INTERPRETED: tl.constexpr):
    """The same as ``e4m3_bits``, by the GPU's own conversion where there is one."""
    if INTERPRETED:
        return e4m3_bits(x)
    return tl.inline_asm_elementwise(
        """{
        .reg .b16 low, high;
        cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
        cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
        mov.b32 $0, {low, high};
        }""",
        "=r,f,f,f,f",
        [x],
        dtype=tl.uint8,
        is_pure=True,
        pack=4,
    )


@triton.jit
def mxfp8_quantise_groups(groups, INTERPRETED: tl.constexpr):
    """Quantise fp32 groups along the last axis by the canonical rule.

    groups: [..., 32] fp32. Gives e4m3 bits of that shape (uint8) and scale bytes [...] uint8.
    NaN takes no part in the scale.
    """
    AXIS: tl.constexpr = len(groups.shape) - 1
    known = tl.where(groups == groups, tl.abs(groups), 0.0)
    byte = mxfp8_scale_byte(tl.max(known, axis=AXIS))
    scaled = groups * tl.expand_dims(mxfp8_multiplier(byte), AXIS)
    return e4m3_bits_on(scaled, INTERPRETED), byte.to(tl.uint8)


@triton.jit
def mxfp8_quantise(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INTERPRETED: tl.constexpr = True):
    """Quantise an fp32 tile by the canonical rule.

    x: [ROWS, COLUMNS] fp32, COLUMNS a multiple of 32.
    Gives e4m3 bits [ROWS, COLUMNS] uint8 and scale bytes [ROWS, COLUMNS/32] uint8.
    """
    groups = tl.reshape(x, (ROWS, COLUMNS // 32, 32))
    bits, byte = mxfp8_quantise_groups(groups, INTERPRETED)
    return tl.reshape(bits, (ROWS, COLUMNS)), byte


@triton.jit
def dot(a, b, acc, INTERPRETED: tl.constexpr):
    """Add a @ b to acc (fp32); the interpreter, which multiplies raw bf16 bits, gets fp32."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc)


@triton.jit
def fma(x, y, z, INTERPRETED: tl.constexpr):
    """Product and sum x * y + z of fp32, rounded once; x is a tensor.

    The interpreter's own rounds twice. float64 holds the product exactly, and only a sum within
    2^-53 of a tie between two fp32 values can then round otherwise than the GPU does.
    """
    if INTERPRETED:
        return (x.to(tl.float64) * y + z).to(tl.float32)
    return tl.fma(x, y, z)


@triton.jit
def to_bf16_on(x, INTERPRETED: tl.constexpr):
    """The same as ``to_bf16``, by the GPU's own conversion where there is one.

    Only the bits of a NaN may differ.
    """
    if INTERPRETED:
        return to_bf16(x)
    return x.to(tl.bfloat16)


@triton.jit
def e4m3_to_fp16_on(codes, INTERPRETED: tl.constexpr):
    """e4m3 (bits as uint8, or fp8e4nv) as fp16, exactly, by the GPU's own conversion if on one."""
    if INTERPRETED:
        return e4m3_value(codes.to(tl.uint8, bitcast=True)).to(tl.float16)
    return codes.to(tl.float8e4nv, bitcast=True).to(tl.float16)


@triton.jit
def exponent_value(byte):
    """fp32 2^(byte-127) of an exponent within 0..254 (uint32, or int32 that is not negative).

    255 gives an infinity; ``e8m0_value`` gives NaN, for which it needs more instructions.
    """
    bits = tl.maximum(byte << 23, 0x00400000).to(tl.uint32)
    return bits.to(tl.float32, bitcast=True)
