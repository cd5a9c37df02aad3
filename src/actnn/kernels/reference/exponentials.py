"""Exponentials and logarithms of single float32 operations, of which smooth functions are made."""

from __future__ import annotations

from actnn.kernels.contract import Array, Arrays
from actnn.kernels.reference.numbers import WORD, divide, masked

MAGIC = 1.5 * 2.0**23

LN2 = float.fromhex("0x1.62e430p-1")
PER_LN2 = float.fromhex("0x1.715476p+0")
# of log(1 + f) - f, from f^2 on, for f from -1/18 to 1/8
LOG = tuple(map(float.fromhex, ("-0x1.000b2ap-1", "0x1.5567d0p-2", "-0x1.c86820p-3")))
# of the eighths between 1 and 2: the logarithms of what their reciprocals stand for
LOG_OF_CENTRE = tuple(
    map(
        float.fromhex,
        (
            *("0x0p+0", "0x1.5ff306p-3", "0x1.1675cap-2", "0x1.739d7ep-2"),
            *("0x1.c8ff7ep-2", "0x1.0be72ep-1", "0x1.307d74p-1", "0x1.52a2d4p-1"),
        ),
    )
)
# of exp(r) / 2 for |r| <= ln 2 / 2, from the constant on
HALF_EXP = (0.5, 0.5, *map(float.fromhex, ("0x1.fffdfap-3", "0x1.5557b0p-4", "0x1.572ae6p-6", "0x1.10621ep-8")))


def polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Return the polynomial of these coefficients, from the constant on, by Horner's rule."""
    result = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        result = result * x + coefficient
    return result


def logarithm(arrays: Arrays, w: Array) -> Array:
    """Return the logarithm of values of at least 1."""
    bits = masked(arrays, arrays.float_bits(w), 0x7FFFFFFF)
    exponent = arrays.cast((bits >> 23) - 127, "float32")
    eighth = masked(arrays, bits >> 20, 7)
    mantissa = arrays.bits_float(masked(arrays, bits, 0x7FFFFF) + 0x3F800000)
    # the first eighth is measured from its beginning, so that the logarithm of 1 is 0
    centre = arrays.cast(arrays.where(eighth > 0, 2 * eighth + 17, 16), "float32")
    f = mantissa * divide(arrays, 16.0, centre) - 1.0
    of_centre = 0.0 * f
    for index, value in enumerate(LOG_OF_CENTRE):
        of_centre = arrays.where(eighth == index, 0.0 * f + value, of_centre)
    return (exponent * LN2 + of_centre) + (f + (f * f) * polynomial(f, LOG))


def half_exponential(arrays: Arrays, u: Array) -> Array:
    """Return half of exp(u)."""
    shifted = u * PER_LN2 + MAGIC
    r = u - (shifted - MAGIC) * LN2
    power = masked(arrays, arrays.float_bits(shifted), 0x1FF) << 23
    return arrays.bits_float(signed(arrays, arrays.float_bits(polynomial(r, HALF_EXP)) + power))


def signed(arrays: Arrays, bits: Array) -> Array:
    """Return integers modulo 2^32 as those of 32 bits with a sign."""
    return masked(arrays, bits + 0x80000000, WORD) - 0x80000000
