"""What the reference measures on some groups of each sample, to choose widths by.

Shapes: S samples, R groups of a sample that are read, E = 256 elements of a group.
"""

from __future__ import annotations

from collections.abc import Iterator

from actnn.errors import FormatError
from actnn.format import GROUP, Curve
from actnn.kernels.contract import AnyLayout, Array, Arrays, Channels, Normalization
from actnn.kernels.reference.curves import group_unit, inverse_cubic, reach_of
from actnn.kernels.reference.numbers import divide, filled
from actnn.kernels.reference.pieces import stretches

# where a slope is larger than that, its square, sums of it would not be finite
MOST_SLOPE = 2.0**118
# of Newton's method for the slope of an element: its square is too large by a seventh at most, which hardly counts in
# a sum
SLOPE_STEPS = 1


def ranges(
    arrays: Arrays,
    values: Array,
    layout: AnyLayout,
    stride: int,
    channels: Channels | None,
    normalization: Normalization | None,
    weight: Array | None,
) -> Array:
    """Return the sums of squared ranges of ``Backend.ranges``."""
    samples, elements = layout.samples, layout.elements
    total, finite = filled(arrays, (samples, 4), 0.0, values), filled(arrays, (samples,), 1.0, values)
    for rows, places, inside in read_pieces(arrays, samples, elements, stride, values):
        x = arrays.cast(values[rows][:, places], "float32")
        channel = None if channels is None else places // channels.inner % channels.count
        if normalization is not None:
            x = (x - normalization.mean[channel]) * normalization.inverse[channel] - normalization.threshold[channel]
        if layout.family.curve is Curve.ROOT:
            x = arrays.where(x >= 0, x, float("nan"))
        squares, sides = squared_ranges(arrays, x, inside, layout)
        columns = [
            (square * (side * counted).sum(-1)).sum(-1)
            for counted in (inside, inside if weight is None else inside * weight[channel])
            for square, side in zip(squares, sides, strict=True)
        ]
        total[rows] = total[rows] + arrays.stack(columns, -1)
        sound = arrays.amin(arrays.amin(arrays.cast(arrays.isfinite(x), "float32")))
        finite[rows] = finite[rows] * sound
    return arrays.where(finite[:, None] == 1, total * groups_read(elements, stride)[2], float("nan"))


def squared_ranges(
    arrays: Arrays, x: Array, inside: Array, layout: AnyLayout
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the squared range (S, R) of the negative and of the positive side, and what elements (S, R, E) count.

    Affine codes know one range only; it counts as that of the positive side.
    """
    ends, slopes = bent_ends(arrays, x, inside, layout)
    count = arrays.where(slopes <= MOST_SLOPE, slopes, MOST_SLOPE)
    low, high = ends[..., 0], ends[..., 1]
    above = 1.0 - arrays.cast(x <= 0, "float32")
    if layout.family.affine:
        return (0.0 * high, (high - low) * (high - low)), (0.0 * above, count)
    # zero is exact where the negative side has no scale of its own
    negative = arrays.where(low < 0, low * low, 0.0) if layout.family.sides == 2 else 0.0 * low
    return (negative, arrays.where(high > 0, high * high, 0.0)), ((1.0 - above) * count, above * count)


def bent_ends(arrays: Arrays, x: Array, inside: Array, layout: AnyLayout) -> tuple[Array, Array]:
    """Return the ends (S, R, 2) of what is coded, and the squared slopes (S, R, E): by how much noise in that grows."""
    ends = arrays.stack([arrays.amin(x), arrays.amax(x)], -1)
    if layout.family.curve is Curve.LINEAR:
        return ends, 0.0 * x + 1.0
    if layout.family.curve is Curve.ROOT:
        return arrays.sqrt(ends), 4.0 * x
    reach = reach_of(layout.family, group_unit(arrays, x, inside) if layout.family.unit else None, x[..., :1])
    factor = divide(arrays, 1.0, reach)
    u = inverse_cubic(arrays, x * factor, SLOPE_STEPS)
    slope = (u * u * 3.0 + 1.0) * reach
    return inverse_cubic(arrays, ends * factor), slope * slope


def energy(arrays: Arrays, values: Array, stride: int) -> Array:
    """Return the sums of squares of ``Backend.energy``."""
    samples, elements = values.shape
    total = filled(arrays, (samples,), 0.0, values)
    for rows, places, inside in read_pieces(arrays, samples, elements, stride, values):
        x = arrays.cast(values[rows][:, places], "float32")
        total[rows] = total[rows] + (x * x * inside).sum(-1).sum(-1)
    return total * groups_read(elements, stride)[2]


def groups_read(elements: int, stride: int) -> tuple[int, int, float]:
    """Return the first group of a sample that is read, how many are, and by what their sums are multiplied up."""
    if stride < 1:
        raise FormatError(f"every {stride}th group of a sample cannot be read: expected a stride of at least 1.")
    groups = -(-elements // GROUP)
    first = stride // 2 if stride // 2 < groups else 0
    read = range(first, groups, stride)
    if not read:
        return first, 0, 0.0
    inside = GROUP * len(read) - (-elements % GROUP if read[-1] == groups - 1 else 0)
    return first, len(read), elements / inside


def read_pieces(
    arrays: Arrays, samples: int, elements: int, stride: int, like: Array
) -> Iterator[tuple[slice, Array, Array]]:
    """Yield some samples, the places (R, E) of groups of theirs to read, and 1.0 for each of these, piece by piece.

    A short last group repeats its last element, which then counts 0.0.
    """
    first, read, _ = groups_read(elements, stride)
    for rows, few in stretches(samples, GROUP * read):
        number = arrays.arange(few.start // GROUP, -(-few.stop // GROUP), like)[:, None]
        places = GROUP * (first + stride * number) + arrays.arange(0, GROUP, like)
        inside = places < elements
        yield rows, arrays.where(inside, places, elements - 1), arrays.cast(inside, "float32")
