"""The steps of a code's groups, from which its readers know the variance of what they decode."""

from __future__ import annotations

from actnn.format import GROUP, KEY_BYTES, SCALE_BYTES
from actnn.kernels.contract import AnyLayout, Array, Arrays, DividedLayout
from actnn.kernels.reference.codes import ungroup
from actnn.kernels.reference.curves import reach_of
from actnn.kernels.reference.numbers import bfloat16_value, big_integers, divide
from actnn.kernels.reference.pieces import runs

# where the range and the unit of a group lie among its scales, in codes without sides
RANGE = 1
UNIT = 2


def group_steps(arrays: Arrays, buffer: Array, layout: AnyLayout) -> Array:
    """Return the distance (S, G) of neighbouring levels, along the family's curve, in a code without sides."""
    ranges = group_scales(arrays, buffer, layout)[..., RANGE]
    if isinstance(layout, DividedLayout) and layout.placed is not None:
        # the device that divided them knows the widths, which the host would have to wait for
        widths = arrays.cast(layout.placed[0], "int64")
        return divide(arrays, ranges, arrays.cast((1 << widths) - 1, "float32")[:, None])
    parts = [divide(arrays, ranges[start:stop], float(2**bits - 1)) for start, stop, bits in runs(layout)]
    return arrays.concatenate(parts, 0) if parts else ranges


def group_reaches(arrays: Arrays, buffer: Array, layout: AnyLayout) -> Array:
    """Return the reach (S, G) of each group along a cubic, in a code without sides."""
    scales = group_scales(arrays, buffer, layout)
    return reach_of(layout.family, scales[..., UNIT] if layout.family.unit else None, scales[..., RANGE])


def group_scales(arrays: Arrays, buffer: Array, layout: AnyLayout) -> Array:
    """Return all scales (S, G, scales) of a code."""
    stored = big_integers(arrays.cast(buffer[KEY_BYTES : layout.planes_offset], "int64"), SCALE_BYTES)
    return bfloat16_value(arrays, stored).reshape(layout.samples, layout.groups, layout.family.scales)


def of_elements(arrays: Arrays, of_groups: Array, elements: int) -> Array:
    """Return numbers of groups (S, G) as (S, elements): every element has that of its group."""
    nothing = 0.0 * arrays.cast(arrays.arange(0, GROUP, of_groups), "float32")
    return ungroup(of_groups[..., None] + nothing, elements)
