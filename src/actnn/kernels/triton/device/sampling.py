"""The kernels of what widths are chosen by: ranges, energies, and the division of planes between samples.

Sums have two stages: every program leaves a number, and one program a sample adds these up in order.
"""

import triton
import triton.language as tl

from actnn.kernels.reference import sampling
from actnn.kernels.triton.device.curves import group_unit, inverse_cubic, reach_of
from actnn.kernels.triton.device.kernel import AFFINE, CUBIC, LINEAR, ROOT, TWO_SIDED, kernel
from actnn.kernels.triton.device.numbers import ends, finite, float_of, widened
from actnn.kernels.triton.device.places import load_tile, octets, tile_channels

MOST, SLOPE_STEPS = tl.constexpr(sampling.MOST_SLOPE), tl.constexpr(sampling.SLOPE_STEPS)
# where the values that are measured come from
PLAIN, BY_CHANNEL, BY_ROW = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def read_groups(groups, reads, blocks, first_group, stride, FORM: tl.constexpr):
    """Return sample and group of what a program reads, and which of them exist."""
    n = tl.program_id(0) // blocks
    lane = (tl.program_id(0) - n * blocks) * FORM.tile + tl.arange(0, FORM.tile)
    return n + 0 * lane, tl.minimum(first_group + stride * lane, groups - 1), lane < reads


@triton.jit
def counts(x, unit, FORM: tl.constexpr):
    """Return how often each element counts: the squared slope of what it is decoded by."""
    if FORM.curve == LINEAR:
        return 0.0 * x + 1.0
    else:
        if FORM.curve == ROOT:
            slope = 4.0 * x
        else:
            reach = reach_of(unit, FORM)
            factor = tl.div_rn(tl.full(unit.shape, 1.0, tl.float32), reach)[:, None, None]
            u = inverse_cubic(x * factor, SLOPE_STEPS)
            slope = (u * u * 3.0 + 1.0) * reach[:, None, None]
            slope = slope * slope
        return tl.where(slope <= MOST, slope, MOST)


@triton.jit
def of_sides(low, high, low_count, high_count, FORM: tl.constexpr):
    """Return the sums over each group of what elements of the negative and of the positive side count."""
    if FORM.kind == AFFINE:
        above = tl.sum(tl.sum(low_count + high_count, 2), 1)
        return 0.0 * above, above
    else:
        low_below, high_below = low <= 0, high <= 0
        below = tl.where(low_below, low_count, 0.0) + tl.where(high_below, high_count, 0.0)
        above = tl.where(low_below, 0.0, low_count) + tl.where(high_below, 0.0, high_count)
        return tl.sum(tl.sum(below, 2), 1), tl.sum(tl.sum(above, 2), 1)


@triton.jit
def squared_ends(smallest, largest, unit, FORM: tl.constexpr):
    """Return the squared ranges of what is coded of groups: of the negative and of the positive side."""
    if FORM.curve == CUBIC:
        inverse = tl.div_rn(tl.full(unit.shape, 1.0, tl.float32), reach_of(unit, FORM))
        smallest, largest = inverse_cubic(smallest * inverse), inverse_cubic(largest * inverse)
    elif FORM.curve == ROOT:
        smallest, largest = tl.sqrt_rn(smallest), tl.sqrt_rn(largest)
    if FORM.kind == AFFINE:
        return 0.0 * largest, (largest - smallest) * (largest - smallest)
    else:
        negative = 0.0 * smallest
        if FORM.kind == TWO_SIDED:
            negative = tl.where(smallest < 0, smallest * smallest, 0.0)
        return negative, tl.where(largest > 0, largest * largest, 0.0)


@triton.jit
def measured(x, g, e, half, n, elements, mean, inverse, threshold, weight, inner, count, magic_inner, magic_count,
             width, magic_width, FORM: tl.constexpr, CUT: tl.constexpr, ROW_CUT: tl.constexpr, SOURCE: tl.constexpr,
             SQUARED: tl.constexpr):  # fmt: skip
    """Return the values that would be coded, and the weights of their channels."""
    weighed = 0.0 * x + 1.0
    if SOURCE == BY_CHANNEL or weight is not None:
        c = tile_channels(g, e, half, elements, inner, count, magic_inner, magic_count, CUT, FORM)
        if weight is not None:
            weighed = widened(tl.load(weight + c))
            if SQUARED:
                weighed = weighed * weighed
        if SOURCE == BY_CHANNEL:
            x = (x - tl.load(mean + c)) * tl.load(inverse + c) - tl.load(threshold + c)
    if SOURCE == BY_ROW:
        rows = elements // width
        row = tile_channels(g, e, half, elements, width, rows, magic_width, 1, ROW_CUT, FORM)
        row += (n * rows)[:, None, None]
        if mean is not None:
            x = x - tl.load(mean + row)
        x = x * tl.load(inverse + row)
    return x, weighed


@kernel
def ranges_kernel(
    values, partial, mean, inverse, threshold, weight, elements, groups, reads, blocks, first_group, stride,
    inner, count, magic_inner, magic_count, width, magic_width,
    FORM: tl.constexpr, CUT: tl.constexpr, ROW_CUT: tl.constexpr, SOURCE: tl.constexpr, SQUARED: tl.constexpr,
):  # fmt: skip
    """Write four sums of squared ranges of a program's groups, all NaN where a value is not finite."""
    n, g, here = read_groups(groups, reads, blocks, first_group, stride, FORM)
    pair, bit = octets()
    e = 16 * pair + bit
    low, low_weight = measured(
        load_tile(values, n, g, here, elements, e, FORM), g, e, 0, n, elements, mean, inverse, threshold, weight,
        inner, count, magic_inner, magic_count, width, magic_width, FORM, CUT, ROW_CUT, SOURCE, SQUARED,
    )  # fmt: skip
    high, high_weight = measured(
        load_tile(values, n, g, here, elements, e + 8, FORM), g, e + 8, 1, n, elements, mean, inverse, threshold,
        weight, inner, count, magic_inner, magic_count, width, magic_width, FORM, CUT, ROW_CUT, SOURCE, SQUARED,
    )  # fmt: skip
    smallest, largest = ends(low, high)
    sound = finite(smallest) & finite(largest)
    if FORM.curve == ROOT:
        sound = sound & (smallest >= 0)
    length = tl.minimum(elements - 256 * g, 256)
    low_inside, high_inside = e < length[:, None, None], e + 8 < length[:, None, None]
    unit = 0.0 * smallest + 1.0
    if FORM.unit:
        magnitudes = tl.where(low_inside, tl.abs(low), 0.0), tl.where(high_inside, tl.abs(high), 0.0)
        unit = float_of(group_unit(magnitudes[0], magnitudes[1], length))
    negative, positive = squared_ends(smallest, largest, unit, FORM)
    low_count = tl.where(low_inside, counts(low, unit, FORM), 0.0)
    high_count = tl.where(high_inside, counts(high, unit, FORM), 0.0)
    below, above = of_sides(low, high, low_count, high_count, FORM)
    weighed_below, weighed_above = below, above
    if weight is not None:
        weighed_below, weighed_above = of_sides(low, high, low_count * low_weight, high_count * high_weight, FORM)
    poison = tl.where(tl.min(tl.where(sound | ~here, 1, 0), 0) == 1, 0.0, float("nan"))
    place = partial + 4 * tl.program_id(0)
    tl.store(place, tl.sum(tl.where(here, negative * below, 0.0), 0) + poison)
    tl.store(place + 1, tl.sum(tl.where(here, positive * above, 0.0), 0) + poison)
    tl.store(place + 2, tl.sum(tl.where(here, negative * weighed_below, 0.0), 0) + poison)
    tl.store(place + 3, tl.sum(tl.where(here, positive * weighed_above, 0.0), 0) + poison)


@kernel
def energy_kernel(values, partial, elements, groups, reads, blocks, first_group, stride, FORM: tl.constexpr):
    """Write the sum of squares of a program's groups."""
    n, g, here = read_groups(groups, reads, blocks, first_group, stride, FORM)
    pair, bit = octets()
    e = 16 * pair + bit
    rest = (elements - 256 * g)[:, None, None]
    low = load_tile(values, n, g, here, elements, e, FORM)
    high = load_tile(values, n, g, here, elements, e + 8, FORM)
    low = tl.where(here[:, None, None] & (e < rest), low * low, 0.0)
    high = tl.where(here[:, None, None] & (e + 8 < rest), high * high, 0.0)
    tl.store(partial + tl.program_id(0), tl.sum(tl.sum(tl.sum(low + high, 2), 1), 0))


@kernel
def sample_sums_kernel(partial, out, factor, blocks, COLUMNS: tl.constexpr, CHUNK: tl.constexpr):
    """Add up what the programs of one sample left, and multiply it up to the whole sample."""
    n = tl.program_id(0).to(tl.int64)
    lane, column = tl.arange(0, CHUNK)[:, None], tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((CHUNK, COLUMNS), tl.float32)
    for start in range(0, blocks, CHUNK):
        block = start + lane
        total += tl.load(partial + (n * blocks + block) * COLUMNS + column, mask=block < blocks, other=0.0)
    place = out.to(tl.pointer_type(tl.float32)) + n * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(place, tl.sum(total, 0) * factor)


@triton.jit
def double_of(low, high):
    """Return the float64 number of two words, given as int32."""
    return ((high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)).to(tl.float64, bitcast=True)


@kernel
def divide_kernel(
    ranges, relief, norms, widths, offsets, weight0, weight1, weight2, weight3, weight4, weight5, weight6, weight7,
    samples, planes, planes_offset, plane,
    LEAST: tl.constexpr, STEPS: tl.constexpr, SAMPLES: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Divide planes between samples, in one program: a threshold of gains is found bit by bit.

    ``relief`` is float64, what each plane relieves the negative and the positive side of (8 each), and so is ``norms``,
    one a sample, or None. Of the four weights, float64 as well, the low and the high words are given one by one. Among
    equal gains the lower width comes first, then the first sample.
    """
    s, t = tl.arange(0, SAMPLES), tl.arange(0, 8)
    here = s < samples
    extra = planes - LEAST * samples
    average = planes // tl.maximum(samples, 1)
    even = average + (s < planes - average * samples).to(tl.int32)
    width = even
    if not EVEN:
        place = ranges.to(tl.pointer_type(tl.float32)) + 4 * s
        a0 = tl.load(place, mask=here, other=0.0).to(tl.float64)
        a1 = tl.load(place + 1, mask=here, other=0.0).to(tl.float64)
        b0 = tl.load(place + 2, mask=here, other=0.0).to(tl.float64)
        b1 = tl.load(place + 3, mask=here, other=0.0).to(tl.float64)
        negative = double_of(weight0, weight1) * a0 + double_of(weight4, weight5) * b0
        positive = double_of(weight2, weight3) * a1 + double_of(weight6, weight7) * b1
        if norms is not None:
            norm = tl.load(norms + s, mask=here, other=0.0)
            negative, positive = negative * norm, positive * norm
        of_negative, of_positive = tl.load(relief + t)[:, None], tl.load(relief + 8 + t)[:, None]
        gain = of_positive * positive[None, :] + of_negative * negative[None, :]
        # what is not finite, and its difference to itself is not 0, teaches nothing
        wrong = tl.max(tl.max((gain - gain != 0).to(tl.int32), 1), 0)
        wrong = tl.maximum(wrong, tl.max(((a0 + a1) + (b0 + b1) - ((a0 + a1) + (b0 + b1)) != 0).to(tl.int32), 0))
        # adding zero turns -0 into 0; as unsigned integers, keys have the order of gains
        bits = (gain + 0.0).to(tl.int64, bitcast=True)
        key = (bits ^ ((bits >> 63) | (-9223372036854775807 - 1))).to(tl.uint64, bitcast=True)
        sale = here[None, :] & (t < STEPS)[:, None]
        threshold = tl.zeros((1, 1), tl.uint64)
        bit = tl.full((1, 1), 1, tl.uint64) << 63
        for _ in range(0, 64):
            candidate = threshold | bit
            bit = bit >> 1
            enough = tl.sum(tl.sum((sale & (key >= candidate)).to(tl.int32), 1), 0) >= extra
            threshold = tl.where(enough, candidate, threshold)
        above = sale & (key > threshold)
        missing = extra - tl.sum(tl.sum(above.to(tl.int32), 1), 0)
        equal = (sale & (key == threshold)).to(tl.int32)
        in_row = tl.sum(equal, 1)
        rank = tl.cumsum(equal, 1) - equal + (tl.cumsum(in_row, 0) - in_row)[:, None]
        chosen = above | ((equal != 0) & (rank < missing))
        width = tl.where(wrong == 0, LEAST + tl.sum(chosen.to(tl.int32), 0), even)
    width = tl.where(here, width, 0)
    tl.store(widths + s, width.to(tl.uint8), mask=here)
    before = (tl.cumsum(width, 0) - width).to(tl.int64)
    place = offsets.to(tl.pointer_type(tl.int64))
    tl.store(place + s, planes_offset + before * plane, mask=here)
    tl.store(place + samples, planes_offset + planes.to(tl.int64) * plane)
