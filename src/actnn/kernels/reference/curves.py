"""The curves of docs/format.md, section 10: single float32 operations, so that every backend has the same bits."""

from __future__ import annotations

from actnn.format import GROUP, Family
from actnn.kernels.contract import Array, Arrays
from actnn.kernels.reference.numbers import bfloat16_scale, bfloat16_value

# up to where levels lie almost evenly: a number for normalised values, else so many units; twice as many where zero is
# exact, since about half of the values are zero, and no level is for these
REACH = 2.0
UNITS_OF_REACH = 3.0
UNITS_ABOVE_ZERO = 6.0
# what lies further out poisons its group: nothing that is decoded then overflows
MOST_BENT = 2.0**60
# what lies on the positive side is at least that
LEAST_BENT = 2.0**-126
# added to the bits of a number divided by 3, some seven eighths of its cube root
CUBE_ROOT = 0x2A3788E6
# more than ``inverse_cubic`` can be off by, relatively
MARGIN = 2.0**-18
TWELFTH = float.fromhex("0x1.555556p-4")


def cubic(u: Array) -> Array:
    """Return u + u u u."""
    return u * (u * u + 1.0)


def inverse_cubic(arrays: Arrays, y: Array, steps: int = 3) -> Array:
    """Return the u of which y, at most MOST_BENT, is the cubic, by so many steps of Newton's method."""
    magnitude = abs(y)
    magnitude = arrays.where(magnitude < MOST_BENT, magnitude, MOST_BENT)
    root = arrays.bits_float(arrays.float_bits(magnitude) // 3 + CUBE_ROOT)
    u = arrays.where(magnitude < root, magnitude, root)
    for _ in range(steps):
        square = u * u
        u = arrays.divide((square * u) * 2.0 + magnitude, square * 3.0 + 1.0)
    return arrays.where(y < 0, -u, u)


def cubic_ends(arrays: Arrays, low: Array, high: Array) -> tuple[Array, Array]:
    """Return numbers between which every u lies whose cubic is from ``low`` to ``high``."""
    first, last = inverse_cubic(arrays, low), inverse_cubic(arrays, high)
    return first - abs(first) * MARGIN, last + abs(last) * MARGIN


def reach_of(family: Family, unit: Array | None, like: Array) -> Array:
    """Return the reach of groups, whose units are given where they store any."""
    if unit is None:
        return 0.0 * like + REACH
    return unit * (UNITS_OF_REACH if family.affine else UNITS_ABOVE_ZERO)


def group_unit(arrays: Arrays, x: Array, inside: Array) -> Array:
    """Return the unit (S, G, 1) of groups (S, G, E): their mean magnitude, summed in halves and rounded to bfloat16.

    ``inside`` (G, E) is 1 for elements and 0 for what a group is padded with.
    """
    total, width = arrays.where(inside > 0, abs(x), 0.0), GROUP
    while width > 1:
        width //= 2
        total = total[..., :width] + total[..., width:]
    unit = bfloat16_value(arrays, bfloat16_scale(arrays, arrays.divide(total, inside.sum(-1)[:, None])))
    return arrays.where(unit > 0, unit, 1.0)
