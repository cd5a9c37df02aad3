"""Numbers as docs/format.md counts them: bfloat16, order, noise."""

import triton
import triton.language as tl

from actnn.format import LEAST_SCALE
from actnn.kernels.triton.device.kernel import INTERPRETED, NEAREST

LEAST = tl.constexpr(LEAST_SCALE)


@triton.jit
def widened(x):
    """Return 16-bit floats as float32."""
    if x.dtype == tl.bfloat16:
        # by their bits: the interpreter loses those that are subnormal
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def narrowed(x, like):
    """Return float32 values in the dtype that a pointer leads to, rounded to nearest even."""
    if INTERPRETED and like.dtype.element_ty == tl.bfloat16:
        # the interpreter cuts off where a GPU rounds
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        bits = tl.where(x != x, 0x7FC0, bits)
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(like.dtype.element_ty)


@triton.jit
def float_of(bits):
    """Return the float32 of bfloat16 bits."""
    return (bits.to(tl.uint32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def finite(x):
    """Tell which float32 values are finite."""
    return (x.to(tl.uint32, bitcast=True) & 0x7F800000) != 0x7F800000


@triton.jit
def scale_up(x):
    """Return the bits of the next bfloat16 towards plus infinity; of tiny and negative values 0."""
    bits = (x.to(tl.uint32, bitcast=True) + 0xFFFF) >> 16
    bits = tl.where(x > 0, bits, 0)
    return tl.where(float_of(bits) >= LEAST, bits, 0)


@triton.jit
def zero_down(x):
    """Return the bits of the next bfloat16 towards minus infinity, +0 for -0."""
    bits = tl.where(x == 0, 0, x.to(tl.uint32, bitcast=True))
    return tl.where(x < 0, bits + 0xFFFF, bits) >> 16


@triton.jit
def above_zero(x):
    """Return ``not (x <= 0)``."""
    return (x > 0) | (x != x)


@triton.jit
def ordered(x):
    """Return the bits of float32 values as integers of the same order, in which NaN lies beyond infinity."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unordered(key):
    """Return the values that integers of ``ordered`` stand for."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def ends(low, high):
    """Return minimum and maximum of each group of two tiles, of which one is NaN where a value is."""
    # as integers: what a minimum of floats does with NaN, and with zeros of both signs, depends on the device
    a, b = ordered(low), ordered(high)
    least = tl.min(tl.min(tl.minimum(a, b), 2), 1)
    most = tl.max(tl.max(tl.maximum(a, b), 2), 1)
    return unordered(least), unordered(most)


@triton.jit
def word(key):
    """Return a word of a key, which arrives as a number with a sign, as one without."""
    return tl.cast(key, tl.int32).to(tl.uint32, bitcast=True)


@triton.jit
def mix(x, k):
    """Scramble numbers, modulo 2^32, under a 32-bit key."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) ^ k
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def group_keys(j, k0, k1, k2, k3):
    """Return the two numbers that the noise of groups j is drawn from."""
    j = j.to(tl.uint32)
    return mix(j * 0x9E3779B1 + k0, k1), mix(j * 0x85EBCA77 + k2, k3)


@triton.jit
def tile_noise(j, pair, bit, k0, k1, k2, k3, ROUNDING: tl.constexpr):
    """Return the noise of the low and of the high octets of groups j: one hash serves two elements."""
    if ROUNDING == NEAREST:
        r = (j[:, None, None] + pair + bit) * 0 + 32768
        return r.to(tl.uint32), r.to(tl.uint32)
    else:
        a, b = group_keys(j, k0, k1, k2, k3)
        x = (8 * pair + bit).to(tl.uint32) * 0x9E3779B1 + a[:, None, None]
        x = x ^ (x >> 16)
        x = (x * 0x7FEB352D) ^ b[:, None, None]
        x = x ^ (x >> 15)
        x = x * 0x846CA68B
        # the last step of ``mix`` leaves the high half as it is
        high = x >> 16
        return (x ^ high) & 0xFFFF, high


@triton.jit
def element_noise(j, i, k0, k1, k2, k3, ROUNDING: tl.constexpr):
    """Return the noise of elements i of groups j, wherever these are."""
    if ROUNDING == NEAREST:
        return (0 * (i + j) + 32768).to(tl.uint32)
    else:
        a, b = group_keys(j, k0, k1, k2, k3)
        i = i.to(tl.uint32)
        x = mix((8 * (i >> 4) + (i & 7)) * 0x9E3779B1 + a, b)
        return (x >> (2 * (i & 8))) & 0xFFFF
