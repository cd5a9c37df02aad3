"""The kernels of normalisations over rows: LayerNorm, RMSNorm, GroupNorm and InstanceNorm.

Rows are summed up in the order of ``reference.row_norm``, so that every backend has the same bits. A part is what of a
row lies in one group: its elements go to 32 lanes in turn, the lanes are folded by halves, and so are the parts, whose
number need not be a power of two. Leaves are the parts of a row in an order in which plain halves add up the same
pairs; where there is no such part, a leaf is 0. A sum of two numbers is the same in any order, and no other is taken.
"""

import triton
import triton.language as tl

from actnn.kernels.triton.device.curves import REACH, reach_of
from actnn.kernels.triton.device.kernel import CUBIC, kernel
from actnn.kernels.triton.device.numbers import tile_noise, widened, word
from actnn.kernels.triton.device.places import (
    load_tile,
    octets,
    parameter,
    sample_planes,
    store_tile,
    tile,
    tile_channels,
)
from actnn.kernels.triton.device.values import (
    base_at,
    decoded_at,
    decoded_tile,
    load_scales,
    mended,
    unbent,
    whole_steps,
)
from actnn.kernels.triton.device.variance import noise_terms
from actnn.kernels.triton.device.words import store_code, store_key


@triton.jit
def leaf_parts(parts, LEVELS: tl.constexpr):
    """Return which part of a row each of 2^LEVELS leaves is, and whether there is one.

    A fold of m numbers leaves ``(m + 1) // 2``, of which number i has added ``i + (m + 1) // 2`` to itself, where that
    is there. The first fold adds the halves of all leaves.
    """
    leaf = tl.arange(0, 1 << LEVELS)
    part, there = 0 * leaf, leaf >= 0
    for level in tl.static_range(LEVELS):
        # of the last fold first: how many numbers the fold before it left
        before = folded_count(parts, LEVELS - 1 - level)
        part = part + ((leaf >> level) & 1) * ((before + 1) >> 1)
        there = there & (part < before)
    return part, there


@triton.jit
def folded_count(parts, FOLDS: tl.constexpr):
    """Return how many numbers so many folds leave."""
    for _ in tl.static_range(FOLDS):
        parts = (parts + 1) >> 1
    return parts


@triton.jit
def halves(x, LENGTH: tl.constexpr, REST: tl.constexpr):
    """Add the halves of the first axis of (length, rest)."""
    return tl.sum(tl.reshape(x, (2, LENGTH // 2, REST)), 0)


@triton.jit
def folded_leaves(x, LEVELS: tl.constexpr):
    """Add up 2^LEVELS leaves by halves."""
    x = tl.reshape(x, (1 << LEVELS, 1))
    for level in tl.static_range(LEVELS):
        x = halves(x, 1 << (LEVELS - level), 1)
    return tl.sum(tl.reshape(x, (1,)), 0)


@triton.jit
def folded_lanes(x, LEAVES: tl.constexpr):
    """Add up the lanes of (leaves, 32) by halves."""
    for level in tl.static_range(5):
        x = tl.sum(tl.reshape(x, (LEAVES, 2, 16 >> level)), 1)
    return tl.reshape(x, (LEAVES,))


@triton.jit
def part_ends(first, width, part, there):
    """Return where in a sample parts of a row begin, and where they end."""
    group = first // 256 + part
    start = tl.maximum(256 * group, first)
    stop = tl.minimum(256 * group + 256, first + width)
    return start, tl.where(there, stop, start)


@triton.jit
def row_place(width, elements, row):
    """Return the sample of a row, and where in it the row begins."""
    rows = elements // width
    n = row // rows
    return n, (row - n * rows) * width


@triton.jit
def element_sums(values, grad, gamma, code, widths, offsets, n, start, stop, mean, samples, elements, groups,
                 inner, parameters, FORM: tl.constexpr, WHAT: tl.constexpr, LEAVES: tl.constexpr):  # fmt: skip
    """Return the sums of parts. WHAT: values (0), squares about a mean (1), grad times gamma (2) and that times v (3).

    The last two are returned together.
    """
    total = tl.zeros((LEAVES, 32), tl.float32)
    product = tl.zeros((LEAVES, 32), tl.float32)
    lane = tl.arange(0, 32)[None, :]
    base_place = n.to(tl.int64) * elements
    for turn in range(0, 8):
        e = start[:, None] + 32 * turn + lane
        inside = e < stop[:, None]
        if WHAT < 2:
            x = widened(tl.load(values + base_place + e, mask=inside, other=0.0))
            if WHAT == 1:
                x = x - mean
                x = x * x
            total += tl.where(inside, x, 0.0)
        else:
            x = widened(tl.load(grad + base_place + e, mask=inside, other=0.0))
            c = tl.where(inside, e // inner % parameters, 0)
            x = x * parameter(gamma, c, 1.0)
            total += tl.where(inside, x, 0.0)
            bits, base = base_at(n + 0 * e, samples, groups, elements, widths, offsets, FORM)
            _, v = decoded_at(code, n + 0 * e, tl.where(inside, e, 0), inside, groups, elements, bits, base, FORM)
            product += tl.where(inside, x * v, 0.0)
    return folded_lanes(total, LEAVES), folded_lanes(product, LEAVES)


@kernel
def row_statistics_kernel(
    values, mean_out, inverse_out, epsilon, elements, width, parts,
    FORM: tl.constexpr, CENTRED: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Write mean and inverse deviation of one row."""
    row = tl.program_id(0)
    n, first = row_place(width, elements, row)
    part, there = leaf_parts(parts, LEVELS)
    start, stop = part_ends(first, width, part, there)
    number = width.to(tl.float32)
    mean = 0.0 * number
    if CENTRED:
        sums, _ = element_sums(
            values, values, None, values, None, None, n, start, stop, mean, 1, elements, 1, 1, 1, FORM, 0, 1 << LEVELS
        )
        mean = tl.div_rn(folded_leaves(sums, LEVELS), number)
        tl.store(mean_out + row, mean)
    sums, _ = element_sums(
        values, values, None, values, None, None, n, start, stop, mean, 1, elements, 1, 1, 1, FORM, 1, 1 << LEVELS
    )
    variance = tl.div_rn(folded_leaves(sums, LEVELS), number)
    tl.store(inverse_out + row, tl.div_rn(0.0 * variance + 1.0, tl.sqrt_rn(variance + epsilon)))


@kernel
def row_products_kernel(
    code, grad, gamma, widths, offsets, mean_out, product_out, samples, elements, groups, inner, parameters, width,
    parts, FORM: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Write the means over one row of ``w = grad gamma``, and of w times the decoded value."""
    row = tl.program_id(0)
    n, first = row_place(width, elements, row)
    part, there = leaf_parts(parts, LEVELS)
    start, stop = part_ends(first, width, part, there)
    sums, products = element_sums(
        grad, grad, gamma, code, widths, offsets, n, start, stop, 0.0, samples, elements, groups, inner, parameters,
        FORM, 2, 1 << LEVELS,
    )  # fmt: skip
    number = width.to(tl.float32)
    tl.store(mean_out + row, tl.div_rn(folded_leaves(sums, LEVELS), number))
    tl.store(product_out + row, tl.div_rn(folded_leaves(products, LEVELS), number))


@kernel
def part_sums_kernel(
    values, mean, partial, code, gamma, widths, offsets, samples, elements, groups, inner, parameters, width, parts,
    blocks, FORM: tl.constexpr, WHAT: tl.constexpr, LEAVES: tl.constexpr,
):  # fmt: skip
    """Write the sums of some parts of one row that is too long for one program; the means are those of rows."""
    row = tl.program_id(0) // blocks
    part = (tl.program_id(0) - row * blocks) * LEAVES + tl.arange(0, LEAVES)
    n, first = row_place(width, elements, row)
    start, stop = part_ends(first, width, part, part < parts)
    about = 0.0 * width.to(tl.float32)
    if mean is not None:
        about = tl.load(mean + row)
    sums, products = element_sums(
        values, values, gamma, code, widths, offsets, n, start, stop, about, samples, elements, groups, inner,
        parameters, FORM, WHAT, LEAVES,
    )  # fmt: skip
    place = partial + row.to(tl.int64) * parts + part
    tl.store(place, sums, mask=part < parts)
    if WHAT == 2:
        rows = (tl.num_programs(0) // blocks).to(tl.int64)
        tl.store(place + rows * parts, products, mask=part < parts)


@kernel
def row_means_kernel(partial, out, epsilon, width, parts, INVERSE: tl.constexpr, LEVELS: tl.constexpr):
    """Write the mean of one row from the sums of its parts, or the inverse deviation of such a variance."""
    row = tl.program_id(0)
    part, there = leaf_parts(parts, LEVELS)
    sums = tl.load(partial + row.to(tl.int64) * parts + part, mask=there, other=0.0)
    mean = tl.div_rn(folded_leaves(sums, LEVELS), width.to(tl.float32))
    if INVERSE:
        mean = tl.div_rn(0.0 * mean + 1.0, tl.sqrt_rn(mean + epsilon))
    tl.store(out + row, mean)


@triton.jit
def row_of(n, g, e, half, elements, width, magic_width, ROW_CUT: tl.constexpr, FORM: tl.constexpr):
    """Return the row of the batch that each element of a tile belongs to."""
    rows = elements // width
    row = tile_channels(g, e, half, elements, width, rows, magic_width, 1, ROW_CUT, FORM)
    return row + (n * rows)[:, None, None]


@kernel
def row_normalize_kernel(
    values, out, code, widths, offsets, mean, inverse, gamma, beta, key0, key1, key2, key3,
    samples, elements, groups, blocks, inner, count, magic_inner, magic_count, width, magic_width,
    FORM: tl.constexpr, CUT: tl.constexpr, ROW_CUT: tl.constexpr,
):  # fmt: skip
    """Write ``v gamma + beta`` and the code of v."""
    n, g, here = tile(samples, groups, blocks, FORM)
    store_key(code, key0, key1, key2, key3)
    bits, base = sample_planes(n, samples, groups, elements, blocks, 0, widths, offsets, FORM)
    pair, bit = octets()
    e = 16 * pair + bit
    low = load_tile(values, n, g, here, elements, e, FORM)
    high = load_tile(values, n, g, here, elements, e + 8, FORM)
    row = row_of(n, g, e, 0, elements, width, magic_width, ROW_CUT, FORM)
    if mean is not None:
        low = low - tl.load(mean + row)
    low = low * tl.load(inverse + row)
    row = row_of(n, g, e + 8, 1, elements, width, magic_width, ROW_CUT, FORM)
    if mean is not None:
        high = high - tl.load(mean + row)
    high = high * tl.load(inverse + row)
    c = tile_channels(g, e, 0, elements, inner, count, magic_inner, magic_count, CUT, FORM)
    store_tile(out, n, g, here, elements, e, low * parameter(gamma, c, 1.0) + parameter(beta, c, 0.0), FORM)
    c = tile_channels(g, e + 8, 1, elements, inner, count, magic_inner, magic_count, CUT, FORM)
    store_tile(out, n, g, here, elements, e + 8, high * parameter(gamma, c, 1.0) + parameter(beta, c, 0.0), FORM)
    low_noise, high_noise = tile_noise(
        n * groups + g, pair, bit, word(key0), word(key1), word(key2), word(key3), FORM.rounding
    )
    store_code(
        code, low, high, low > 0, high > 0, low_noise, high_noise, n, g, here, groups, elements, bits, base, FORM
    )


@triton.jit
def noise_variance(step, width, FORM: tl.constexpr):
    """Return (a, b, c) of groups: a + b u² + c u⁴ is the variance of what is decoded by u, over the width of a row."""
    number = width.to(tl.float32) + 0.0 * step
    constant, quadratic, quartic = noise_terms(step, REACH + 0.0 * step, FORM)
    constant, quadratic = tl.div_rn(constant, number)[:, None, None], tl.div_rn(quadratic, number)[:, None, None]
    return constant, quadratic, tl.div_rn(quartic, number)[:, None, None]


@kernel
def row_gradient_kernel(
    code, grad, out, widths, offsets, mean, product, inverse, gamma,
    samples, elements, groups, blocks, inner, count, magic_inner, magic_count, width, magic_width,
    FORM: tl.constexpr, CUT: tl.constexpr, ROW_CUT: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the input of a normalisation over rows."""
    n, g, here = tile(samples, groups, blocks, FORM)
    bits, base = sample_planes(n, samples, groups, elements, blocks, 0, widths, offsets, FORM)
    _, _, low, high = decoded_tile(code, n, g, here, groups, elements, bits, base, FORM, False, True)
    first, second, unit = load_scales(code, n.to(tl.int64) * groups + g, here, FORM)
    _, step = whole_steps(first, second, bits, FORM)
    constant, quadratic, quartic = noise_variance(step, width, FORM)
    mended_mean, reach = mended(step, FORM)[:, None, None], reach_of(unit, FORM)[:, None, None]
    pair, bit = octets()
    for half in tl.static_range(2):
        u = low if half == 0 else high
        v = unbent(u, mended_mean, reach, FORM, False)
        e = 16 * pair + bit + 8 * half
        c = tile_channels(g, e, half, elements, inner, count, magic_inner, magic_count, CUT, FORM)
        w = load_tile(grad, n, g, here, elements, e, FORM) * parameter(gamma, c, 1.0)
        row = row_of(n, g, e, half, elements, width, magic_width, ROW_CUT, FORM)
        noise = constant
        if FORM.curve == CUBIC:
            square = u * u
            noise = (quartic * square + quadratic) * square + constant
        own = w * (1.0 + noise)
        others = v * tl.load(product + row)
        if mean is not None:
            others = others + tl.load(mean + row)
        else:
            others = others + 0.0
        store_tile(out, n, g, here, elements, e, (own - others) * tl.load(inverse + row), FORM)
