"""The curves of docs/format.md, section 10, operation by operation as the reference has them."""

import triton
import triton.language as tl

from actnn.kernels.reference import curves
from actnn.kernels.triton.device.numbers import float_of, scale_up

LN2, PER_LN2, MAGIC = tl.constexpr(curves.LN2), tl.constexpr(curves.PER_LN2), tl.constexpr(curves.MAGIC)
MOST_BENT, TWELFTH = tl.constexpr(curves.MOST_BENT), tl.constexpr(curves.TWELFTH)
A0, A1, A2 = (tl.constexpr(value) for value in curves.LOG)
B2, B3, B4, B5 = (tl.constexpr(value) for value in curves.HALF_EXP[2:])
D1, D2, D3, D4 = (tl.constexpr(value) for value in curves.SINH_RATIO[1:])
L1, L2, L3, L4, L5, L6, L7 = (tl.constexpr(value) for value in curves.LOG_OF_CENTRE[1:])
# float32 numbers nearest to 16 / 19, 16 / 21, …
C1, C2, C3, C4, C5, C6, C7 = (
    tl.constexpr(float.fromhex(number))
    for number in (
        *("0x1.af286cp-1", "0x1.861862p-1", "0x1.642c86p-1", "0x1.47ae14p-1"),
        *("0x1.2f684cp-1", "0x1.1a7b96p-1", "0x1.084210p-1"),
    )
)


@triton.jit
def asinh(x):
    """Return the inverse hyperbolic sine; of what is not finite, a number beyond MOST_BENT."""
    t = tl.abs(x)
    bent = logarithm(t + tl.sqrt_rn(t * t + 1.0))
    return tl.where(x < 0, -bent, bent)


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


@triton.jit
def sinh(u):
    """Return the hyperbolic sine."""
    half = half_exponential(u)
    return half - tl.div_rn(tl.full(half.shape, 0.25, tl.float32), half)


@triton.jit
def gain(h):
    """Return h / sinh h."""
    square = h * h
    ratio = (((square * D4 + D3) * square + D2) * square + D1) * square + 1.0
    near = tl.div_rn(tl.full(h.shape, 1.0, tl.float32), ratio)
    magnitude = tl.abs(h)
    return tl.where(square < 1.0, near, tl.div_rn(magnitude, sinh(magnitude)))


@triton.jit
def halved(x, AXIS_LENGTH: tl.constexpr, REST: tl.constexpr):
    """Add the halves of the second axis of (groups, length, rest): a sum of two is the same in any order."""
    return tl.sum(tl.reshape(x, (x.shape[0], 2, AXIS_LENGTH // 2, REST)), 1)


@triton.jit
def group_unit(low, high, length):
    """Return the bits of the unit of each group, from its magnitudes (groups, 16, 8), 0 where there is no element."""
    for axis in tl.static_range(4):
        low = halved(low, 16 >> axis, 8)
        high = halved(high, 16 >> axis, 8)
    total = tl.reshape(low + high, (low.shape[0], 8, 1))
    for axis in tl.static_range(3):
        total = halved(total, 8 >> axis, 1)
    mean = tl.div_rn(tl.reshape(total, (low.shape[0],)), length.to(tl.float32))
    bits = scale_up(mean)
    return tl.where(float_of(bits) > 0, bits, 0x3F80)
