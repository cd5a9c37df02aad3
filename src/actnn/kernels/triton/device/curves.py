"""The curves of docs/format.md, section 10, operation by operation as the reference has them."""

import triton
import triton.language as tl

from actnn.kernels.reference import curves
from actnn.kernels.triton.device.kernel import AFFINE
from actnn.kernels.triton.device.numbers import float_of, scale_up

REACH, UNITS_OF_REACH = tl.constexpr(curves.REACH), tl.constexpr(curves.UNITS_OF_REACH)
UNITS_ABOVE_ZERO = tl.constexpr(curves.UNITS_ABOVE_ZERO)
MOST_BENT, LEAST_BENT = tl.constexpr(curves.MOST_BENT), tl.constexpr(curves.LEAST_BENT)
CUBE_ROOT, MARGIN = tl.constexpr(curves.CUBE_ROOT), tl.constexpr(curves.MARGIN)
TWELFTH = tl.constexpr(curves.TWELFTH)


@triton.jit
def cubic(u):
    """Return u + u u u."""
    return u * (u * u + 1.0)


@triton.jit
def inverse_cubic(y, STEPS: tl.constexpr = 3):
    """Return the u of which y, at most MOST_BENT, is the cubic, by so many steps of Newton's method."""
    magnitude = tl.abs(y)
    magnitude = tl.where(magnitude < MOST_BENT, magnitude, MOST_BENT)
    root = (magnitude.to(tl.uint32, bitcast=True) // 3 + CUBE_ROOT).to(tl.float32, bitcast=True)
    u = tl.where(magnitude < root, magnitude, root)
    for _ in tl.static_range(STEPS):
        square = u * u
        u = tl.div_rn((square * u) * 2.0 + magnitude, square * 3.0 + 1.0)
    return tl.where(y < 0, -u, u)


@triton.jit
def reach_of(unit, FORM: tl.constexpr):
    """Return the reach of groups that have these units."""
    if FORM.unit:
        if FORM.kind == AFFINE:
            return unit * UNITS_OF_REACH
        else:
            return unit * UNITS_ABOVE_ZERO
    else:
        return tl.full(unit.shape, REACH, tl.float32)


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
