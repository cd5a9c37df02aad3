"""Numbers as docs/format.md counts them: noise, bfloat16, bytes, all in plain array operations.

Integers are int64 throughout and masked to 32 bits where the format counts modulo 2^32.
"""

from __future__ import annotations

from collections.abc import Sequence

from actnn.format import GROUP, LEAST_SCALE, Rounding
from actnn.kernels.contract import AnyLayout, Array, Arrays

WORD = 0xFFFFFFFF
HALF = 0xFFFF
NEAREST = 1 << 15


def group_noise(arrays: Arrays, key: list[Array], layout: AnyLayout, first_group: int) -> Array:
    """Return the noise (S, G, E) of a layout's groups, of which the first has this index; 16 bits each."""
    count = layout.samples * layout.groups
    groups = arrays.arange(first_group, first_group + count, key[0])
    shape = (layout.samples, layout.groups, 1)
    if layout.rounding is Rounding.NEAREST:
        return NEAREST + 0 * arrays.arange(0, count * GROUP, key[0]).reshape(layout.samples, layout.groups, GROUP)
    first = mix(arrays, groups * 0x9E3779B1 + key[0], key[1]).reshape(*shape)
    second = mix(arrays, groups * 0x85EBCA77 + key[2], key[3]).reshape(*shape)
    element = arrays.arange(0, GROUP, key[0])
    counter = 8 * (element >> 4) + masked(arrays, element, 7)
    mixed = mix(arrays, counter * 0x9E3779B1 + first, second)
    return masked(arrays, mixed >> (2 * masked(arrays, element, 8)), HALF)


def mix(arrays: Arrays, x: Array, key: Array) -> Array:
    """Scramble numbers, modulo 2^32, under a 32-bit key."""
    x = masked(arrays, x, WORD)
    x = x ^ (x >> 16)
    x = masked(arrays, x * 0x7FEB352D, WORD) ^ key
    x = x ^ (x >> 15)
    x = masked(arrays, x * 0x846CA68B, WORD)
    return x ^ (x >> 16)


def masked(arrays: Arrays, x: Array, mask: int) -> Array:
    """Return the bits of integers that a mask names; not every framework takes a number beside ``&``."""
    return x & arrays.arange(mask, mask + 1, x)


def divide(arrays: Arrays, x: Array, y: Array) -> Array:
    """Divide with one rounding; one of the two may be a number.

    Frameworks turn a division that involves a number into a product with a reciprocal, which rounds twice.
    """
    zero = 0.0 * (y if isinstance(x, float) else x)
    return arrays.divide(zero + x, zero + y)


def bfloat16_down(arrays: Arrays, x: Array) -> Array:
    """Round to the next bfloat16 towards minus infinity; return its 16 bits."""
    # adding zero turns -0 into 0: which of the two a minimum returns is not defined
    bits = masked(arrays, arrays.float_bits(x + 0.0), WORD)
    return arrays.where(x < 0, bits + HALF, bits) >> 16


def bfloat16_scale(arrays: Arrays, x: Array) -> Array:
    """Round the magnitude of a side to the next bfloat16 towards plus infinity, tiny ones and negative ones to 0."""
    bits = (arrays.float_bits(x) + HALF) >> 16
    bits = arrays.where(x > 0, bits, 0)
    return arrays.where(bfloat16_value(arrays, bits) >= LEAST_SCALE, bits, 0)


def bfloat16_value(arrays: Arrays, bits: Array) -> Array:
    """Return the float32 value of bfloat16 bits."""
    return arrays.bits_float(bits << 16)


def little_endian(arrays: Arrays, integers: Array, count: int) -> Array:
    """Return each integer as ``count`` bytes, least significant first, in one flat run."""
    return masked(arrays, integers[:, None] >> (8 * arrays.arange(0, count, integers)), 0xFF).reshape(-1)


def big_integers(octets: Array, count: int) -> Array:
    """Return the integers that runs of ``count`` bytes stand for."""
    rows = octets.reshape(-1, count)
    total = rows[:, 0]
    for place in range(1, count):
        total = total + (rows[:, place] << (8 * place))
    return total


def filled(arrays: Arrays, shape: Sequence[int], value: float, like: Array) -> Array:
    """Return a float32 array that holds one value throughout."""
    return 0.0 * arrays.cast(arrays.empty(shape, "uint8", like), "float32") + value
