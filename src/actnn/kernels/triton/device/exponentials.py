"""Exponentials and logarithms, operation by operation as the reference has them."""

import triton
import triton.language as tl

from actnn.kernels.reference import exponentials

LN2, PER_LN2 = tl.constexpr(exponentials.LN2), tl.constexpr(exponentials.PER_LN2)
MAGIC = tl.constexpr(exponentials.MAGIC)
A0, A1, A2 = (tl.constexpr(value) for value in exponentials.LOG)
B2, B3, B4, B5 = (tl.constexpr(value) for value in exponentials.HALF_EXP[2:])
L1, L2, L3, L4, L5, L6, L7 = (tl.constexpr(value) for value in exponentials.LOG_OF_CENTRE[1:])
# float32 numbers nearest to 16 / 19, 16 / 21, …
C1, C2, C3, C4, C5, C6, C7 = (
    tl.constexpr(float.fromhex(number))
    for number in (
        *("0x1.af286cp-1", "0x1.861862p-1", "0x1.642c86p-1", "0x1.47ae14p-1"),
        *("0x1.2f684cp-1", "0x1.1a7b96p-1", "0x1.084210p-1"),
    )
)


@triton.jit
def logarithm(w):
    """Return the logarithm of values of at least 1."""
    bits = w.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    # exact as the bits of a float: the exponent is small
    exponent = ((bits >> 23) + 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + 127.0)
    mantissa = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    first, second, third = (bits & 0x400000) != 0, (bits & 0x200000) != 0, (bits & 0x100000) != 0
    reciprocal = tl.where(
        first,
        tl.where(second, tl.where(third, C7, C6), tl.where(third, C5, C4)),
        tl.where(second, tl.where(third, C3, C2), tl.where(third, C1, 1.0)),
    )
    of_centre = tl.where(
        first,
        tl.where(second, tl.where(third, L7, L6), tl.where(third, L5, L4)),
        tl.where(second, tl.where(third, L3, L2), tl.where(third, L1, 0.0)),
    )
    f = mantissa * reciprocal - 1.0
    return (exponent * LN2 + of_centre) + (f + (f * f) * ((f * A2 + A1) * f + A0))


@triton.jit
def half_exponential(u):
    """Return half of exp(u)."""
    shifted = u * PER_LN2 + MAGIC
    r = u - (shifted - MAGIC) * LN2
    p = ((((r * B5 + B4) * r + B3) * r + B2) * r + 0.5) * r + 0.5
    return (p.to(tl.uint32, bitcast=True) + (shifted.to(tl.uint32, bitcast=True) << 23)).to(tl.float32, bitcast=True)
