"""The kernels of BatchNorm: statistics, the arithmetic of channels, and the passes beside a code.

Statistics and sums have two stages: every program leaves one number a channel, and the program that does a channel's
arithmetic adds these up in order. A tile of those passes is (channels, positions), where position p of channel c is
the element ``p // inner * count * inner + c * inner + p % inner`` of the batch.
"""

import triton
import triton.language as tl

from actnn.kernels.triton.device.curves import reach_of
from actnn.kernels.triton.device.kernel import kernel
from actnn.kernels.triton.device.numbers import above_zero, narrowed, ordered, tile_noise, unordered, widened, word
from actnn.kernels.triton.device.places import (
    load_tile,
    octets,
    sample_planes,
    store_tile,
    tile,
    tile_channels,
)
from actnn.kernels.triton.device.values import base_at, decoded_at, decoded_tile, load_scales, whole_steps
from actnn.kernels.triton.device.variance import variance_of
from actnn.kernels.triton.device.words import negative_words, store_code, store_key

NOT_A_NUMBER = tl.constexpr(float("nan"))


@triton.jit
def channel_block(chunks, count, CHANNELS: tl.constexpr):
    """Return the channels of a program, which of them exist, and which chunk of their positions it reads."""
    block = tl.program_id(0) // chunks
    c = block * CHANNELS + tl.arange(0, CHANNELS)
    return c, c < count, tl.program_id(0) - block * chunks


@triton.jit
def merged(mean, squares, number, other_mean, other_squares, other_number):
    """Return mean, sum of squares about it and number of two sets of values together."""
    total = tl.maximum(number + other_number, 1.0)
    delta = other_mean - mean
    share = tl.div_rn(other_number + 0.0 * mean, total + 0.0 * mean)
    # an empty set has no mean that would count
    delta = tl.where(other_number > 0, delta, 0.0)
    return mean + delta * share, squares + other_squares + delta * delta * (number * share), number + other_number


@kernel
def statistics_kernel(
    values, partial, inner, count, positions, chunk, chunks, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr
):
    """Write mean, sum of squares about it, minimum and maximum of a program's channels over its positions."""
    c, here, part = channel_block(chunks, count, CHANNELS)
    mean = tl.zeros((CHANNELS,), tl.float32)
    squares = tl.zeros((CHANNELS,), tl.float32)
    number = tl.zeros((CHANNELS,), tl.float32)
    least = tl.full((CHANNELS,), 0x7FFFFFFF, tl.int32)
    most = tl.full((CHANNELS,), -0x7FFFFFFF, tl.int32)
    stop = tl.minimum((part + 1) * chunk, positions)
    for start in range(part * chunk, stop, POSITIONS):
        p = start + tl.arange(0, POSITIONS)
        q = p // inner
        place = q.to(tl.int64) * count * inner + (p - q * inner)
        inside = here[:, None] & (p < stop)[None, :]
        x = widened(tl.load(values + place[None, :] + c[:, None] * inner, mask=inside, other=0.0))
        size = tl.minimum(stop - start, POSITIONS).to(tl.float32)
        own = tl.div_rn(tl.sum(x, 1), size + 0.0 * mean)
        centred = tl.where(inside, x - own[:, None], 0.0)
        mean, squares, number = merged(mean, squares, number, own, tl.sum(centred * centred, 1), size)
        key = ordered(x)
        least = tl.minimum(least, tl.min(tl.where(inside, key, 0x7FFFFFFF), 1))
        most = tl.maximum(most, tl.max(tl.where(inside, key, -0x7FFFFFFF), 1))
    place = partial + (part * 4) * count + c
    tl.store(place, mean, mask=here)
    tl.store(place + count, squares, mask=here)
    tl.store(place + 2 * count, unordered(least), mask=here)
    tl.store(place + 3 * count, unordered(most), mask=here)


@triton.jit
def finished_statistics(partial, c, here, count, positions, chunk, chunks, CHANNELS: tl.constexpr):
    """Return mean, biased variance, minimum and maximum of channels, from what programs left of them."""
    mean = tl.zeros((CHANNELS,), tl.float32)
    squares = tl.zeros((CHANNELS,), tl.float32)
    number = tl.zeros((CHANNELS,), tl.float32)
    least = tl.full((CHANNELS,), 0x7FFFFFFF, tl.int32)
    most = tl.full((CHANNELS,), -0x7FFFFFFF, tl.int32)
    for part in range(0, chunks):
        place = partial + (part * 4) * count + c
        size = tl.maximum(tl.minimum(positions - part * chunk, chunk), 0).to(tl.float32)
        own, own_squares = tl.load(place, mask=here, other=0.0), tl.load(place + count, mask=here, other=0.0)
        mean, squares, number = merged(mean, squares, number, own, own_squares, size)
        least = tl.minimum(least, ordered(tl.load(place + 2 * count, mask=here, other=0.0)))
        most = tl.maximum(most, ordered(tl.load(place + 3 * count, mask=here, other=0.0)))
    return mean, tl.div_rn(squares, number), unordered(least), unordered(most)


@kernel
def finish_statistics_kernel(
    partial, mean_out, variance_out, low_out, high_out, count, positions, chunk, chunks, CHANNELS: tl.constexpr
):
    """Write the statistics of channels."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    here = c < count
    mean, variance, low, high = finished_statistics(partial, c, here, count, positions, chunk, chunks, CHANNELS)
    tl.store(mean_out + c, mean, mask=here)
    tl.store(variance_out + c, variance, mask=here)
    tl.store(low_out + c, low, mask=here)
    tl.store(high_out + c, high, mask=here)


@triton.jit
def channel_parameter(pointer, c, here, default):
    """Return one number of channels that may not exist, or its default."""
    if pointer is None:
        return tl.full(c.shape, default, tl.float32)
    else:
        return widened(tl.load(pointer + c, mask=here, other=1.0))


@triton.jit
def track(pointer, c, here, new, kept, momentum):
    """Update a running statistic, where there is one."""
    if pointer is not None:
        old = widened(tl.load(pointer + c, mask=here, other=0.0))
        tl.store(pointer + c, narrowed(kept * old + momentum * new, pointer), mask=here)


@triton.jit
def sign_of(gamma):
    """Return -1 where gamma is negative and 1 elsewhere."""
    return tl.where(gamma < 0, -1.0, 1.0)


@kernel
def prepare_kernel(
    partial, statistics, gamma, beta, running_mean, running_variance, prepared, saved,
    epsilon, kept, momentum, ratio, count, positions, chunk, chunks, SIDES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Do the arithmetic of channels in a forward: what values are normalised and coded with, and what is saved.

    ``prepared`` is (5, channels): slope, offset, mean, inverse and threshold. ``kept`` and ``momentum`` weigh the old
    and the new running statistics, and ``ratio`` makes of a variance what is tracked.
    """
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    here = c < count
    if statistics is None:
        mean, variance, low, high = finished_statistics(partial, c, here, count, positions, chunk, chunks, CHANNELS)
    else:
        mean, variance = tl.load(statistics + c, mask=here), tl.load(statistics + count + c, mask=here)
        low, high = tl.load(statistics + 2 * count + c, mask=here), tl.load(statistics + 3 * count + c, mask=here)
    track(running_mean, c, here, mean, kept, momentum)
    track(running_variance, c, here, variance * ratio, kept, momentum)
    inverse = tl.div_rn(tl.full((CHANNELS,), 1.0, tl.float32), tl.sqrt_rn(variance + epsilon))
    scale, shift = channel_parameter(gamma, c, here, 1.0), channel_parameter(beta, c, here, 0.0)
    slope = scale * inverse
    threshold, signed = 0.0 * inverse, inverse
    if SIDES:
        low, high = (low - mean) * inverse, (high - mean) * inverse
        crossing = tl.div_rn(-shift, tl.where(scale == 0, 1.0, scale))
        # with gamma 0 the output is beta everywhere: all of the channel lies on one side
        crossing = tl.where(scale == 0, tl.where(shift > 0, low, high), crossing)
        crossing = tl.where(crossing < low, low, crossing)
        crossing = tl.where(crossing > high, high, crossing)
        sign = sign_of(scale)
        threshold, signed = sign * crossing, sign * inverse
        tl.store(saved + count + c, threshold, mask=here)
    tl.store(saved + c, inverse, mask=here)
    tl.store(prepared + c, slope, mask=here)
    tl.store(prepared + count + c, shift - mean * slope, mask=here)
    tl.store(prepared + 2 * count + c, mean, mask=here)
    tl.store(prepared + 3 * count + c, signed, mask=here)
    tl.store(prepared + 4 * count + c, threshold, mask=here)


@triton.jit
def normalized(x, c, slope, offset, mean, inverse, threshold, SIDES: tl.constexpr):
    """Return output, coded value and side."""
    y = x * tl.load(slope + c) + tl.load(offset + c)
    v = (x - tl.load(mean + c)) * tl.load(inverse + c) - tl.load(threshold + c)
    side = above_zero(y)
    if SIDES:
        # by rounding a value may lie on the wrong side of zero
        wrong = (side & (v < 0)) | ((y <= 0) & (v > 0))
        v = tl.where(wrong, 0.0 * v, v)
    return y, v, side


@kernel
def normalize_kernel(
    values, out, code, widths, offsets, slope, offset, mean, inverse, threshold, key0, key1, key2, key3,
    samples, elements, groups, blocks, inner, count, magic_inner, magic_count,
    FORM: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    """Write the normalised output, and the code of what it was made from."""
    n, g, here = tile(samples, groups, blocks, FORM)
    store_key(code, key0, key1, key2, key3)
    bits, base = sample_planes(n, samples, groups, elements, blocks, 0, widths, offsets, FORM)
    pair, bit = octets()
    e = 16 * pair + bit
    low = load_tile(values, n, g, here, elements, e, FORM)
    high = load_tile(values, n, g, here, elements, e + 8, FORM)
    c = tile_channels(g, e, 0, elements, inner, count, magic_inner, magic_count, CUT, FORM)
    low_y, low, low_side = normalized(low, c, slope, offset, mean, inverse, threshold, FORM.kind != 0)
    c = tile_channels(g, e + 8, 1, elements, inner, count, magic_inner, magic_count, CUT, FORM)
    high_y, high, high_side = normalized(high, c, slope, offset, mean, inverse, threshold, FORM.kind != 0)
    store_tile(out, n, g, here, elements, e, low_y, FORM)
    store_tile(out, n, g, here, elements, e + 8, high_y, FORM)
    low_noise, high_noise = tile_noise(
        n * groups + g, pair, bit, word(key0), word(key1), word(key2), word(key3), FORM.rounding
    )
    store_code(
        code, low, high, low_side, high_side, low_noise, high_noise,
        n, g, here, groups, elements, bits, base, FORM,
    )  # fmt: skip


@kernel
def gradient_sums_kernel(
    code, grad, partial, widths, offsets, samples, elements, groups, inner, count, positions, chunk, chunks,
    FORM: tl.constexpr, RECTIFIED: tl.constexpr, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Write the sums of grad, and of grad times the decoded value, of a program's channels over its positions."""
    c, here, part = channel_block(chunks, count, CHANNELS)
    of_grad = tl.zeros((CHANNELS, POSITIONS), tl.float32)
    of_product = tl.zeros((CHANNELS, POSITIONS), tl.float32)
    stop = tl.minimum((part + 1) * chunk, positions)
    outer = elements // (count * inner)
    for start in range(part * chunk, stop, POSITIONS):
        p = start + tl.arange(0, POSITIONS)
        q = p // inner
        n = tl.minimum(q // outer, samples - 1)
        e = ((q - n * outer) * count * inner + (p - q * inner))[None, :] + c[:, None] * inner
        inside = here[:, None] & (p < stop)[None, :]
        x = widened(tl.load(grad + (n.to(tl.int64) * elements)[None, :] + e, mask=inside, other=0.0))
        bits, base = base_at(n[None, :] + 0 * c[:, None], samples, groups, elements, widths, offsets, FORM)
        words, v = decoded_at(
            code, n[None, :] + 0 * c[:, None], tl.where(inside, e, 0), inside, groups, elements, bits, base, FORM
        )
        if RECTIFIED:
            x = tl.where(words >= negative_words(bits, FORM).to(tl.uint32), x, x * 0.0)
        of_grad += x
        of_product += tl.where(inside, x * v, 0.0)
    tl.store(partial + (part * 2) * count + c, tl.sum(of_grad, 1), mask=here)
    tl.store(partial + (part * 2 + 1) * count + c, tl.sum(of_product, 1), mask=here)


@triton.jit
def finished_sums(partial, c, here, count, chunks, CHANNELS: tl.constexpr):
    """Return the two sums of channels, from what programs left of them."""
    of_grad = tl.zeros((CHANNELS,), tl.float32)
    of_product = tl.zeros((CHANNELS,), tl.float32)
    for part in range(0, chunks):
        of_grad += tl.load(partial + (part * 2) * count + c, mask=here, other=0.0)
        of_product += tl.load(partial + (part * 2 + 1) * count + c, mask=here, other=0.0)
    return of_grad, of_product


@kernel
def finish_sums_kernel(partial, of_grad, of_product, count, chunks, CHANNELS: tl.constexpr):
    """Write the two sums of channels."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    here = c < count
    grad, product = finished_sums(partial, c, here, count, chunks, CHANNELS)
    tl.store(of_grad + c, grad, mask=here)
    tl.store(of_product + c, product, mask=here)


@kernel
def coefficients_kernel(
    partial, sums, share, gamma, saved, grads, coefficients, total, count, chunks,
    SCHEME: tl.constexpr, NOISE: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Do the arithmetic of channels in a backward: gradients of gamma and beta, and what the input's is made with.

    SCHEME: the code is a BatchNorm's own without sides (0) or with sides (1), or one of its input (2). ``total`` is the
    number of values of a channel over all processes, or with ``share`` that is ``total / share``. NOISE asks for what
    an element's own noise is weighed by, too.
    """
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    here = c < count
    inverse = tl.load(saved + c, mask=here, other=0.0)
    scale = channel_parameter(gamma, c, here, 1.0)
    slope = scale * inverse
    factor, shift = inverse, inverse
    if SCHEME == 1:
        factor = sign_of(scale)
        shift = factor * tl.load(saved + count + c, mask=here, other=0.0)
    elif SCHEME == 2:
        shift = -inverse * tl.load(saved + count + c, mask=here, other=0.0)
    if sums is None:
        of_beta, of_gamma = finished_sums(partial, c, here, count, chunks, CHANNELS)
        if SCHEME > 0:
            of_gamma = factor * of_gamma + shift * of_beta
        tl.store(grads + c, narrowed(of_gamma, grads), mask=here)
        tl.store(grads + count + c, narrowed(of_beta, grads), mask=here)
    else:
        of_gamma = widened(tl.load(sums + c, mask=here, other=0.0))
        of_beta = widened(tl.load(sums + count + c, mask=here, other=0.0))
    part = 1.0
    if share is not None:
        part = tl.load(share)
        of_gamma, of_beta = of_gamma * part, of_beta * part
    if coefficients is not None:
        of_normalized = tl.div_rn(-slope * of_gamma, total + 0.0 * slope)
        constant = tl.div_rn(-slope * of_beta, total + 0.0 * slope)
        if SCHEME > 0:
            constant = constant + of_normalized * shift
            of_normalized = of_normalized * factor
        tl.store(coefficients + c, slope, mask=here)
        tl.store(coefficients + count + c, of_normalized, mask=here)
        tl.store(coefficients + 2 * count + c, constant, mask=here)
        if NOISE:
            square = factor * factor if SCHEME > 0 else 0.0 * slope + 1.0
            tl.store(coefficients + 3 * count + c, tl.div_rn(square * part, total + 0.0 * slope), mask=here)


@kernel
def gradient_kernel(
    code, grad, out, widths, offsets, of_grad, of_value, constant, of_noise,
    samples, elements, groups, blocks, inner, count, magic_inner, magic_count,
    FORM: tl.constexpr, CUT: tl.constexpr, RECTIFIED: tl.constexpr,
):  # fmt: skip
    """Write ``of_grad[c] grad + of_value[c] v + constant[c]``.

    With ``of_noise``, grad is multiplied by ``1 + of_noise[c] Var(v)`` before.
    """
    n, g, here = tile(samples, groups, blocks, FORM)
    bits, base = sample_planes(n, samples, groups, elements, blocks, 0, widths, offsets, FORM)
    low_words, high_words, low, high = decoded_tile(code, n, g, here, groups, elements, bits, base, FORM, False, False)
    negative = negative_words(bits, FORM).to(tl.uint32)
    low_u, high_u, below, above, reach = low, high, low, low, low
    if of_noise is not None:
        _, _, low_u, high_u = decoded_tile(code, n, g, here, groups, elements, bits, base, FORM, False, True)
        first, second, unit = load_scales(code, n.to(tl.int64) * groups + g, here, FORM)
        below, above = whole_steps(first, second, bits, FORM)
        below, above, reach = below[:, None, None], above[:, None, None], reach_of(unit, FORM)[:, None, None]
    pair, bit = octets()
    e = 16 * pair + bit
    for half in tl.static_range(2):
        words = low_words if half == 0 else high_words
        v = low if half == 0 else high
        place = e + 8 * half
        c = tile_channels(g, place, half, elements, inner, count, magic_inner, magic_count, CUT, FORM)
        x = load_tile(grad, n, g, here, elements, place, FORM)
        if RECTIFIED:
            x = tl.where(words >= negative, x, x * 0.0)
        if of_noise is not None:
            spread = variance_of(low_u if half == 0 else high_u, words, below, above, reach, negative, FORM)
            x = x * (spread * tl.load(of_noise + c) + 1.0)
        y = x * tl.load(of_grad + c) + (v * tl.load(of_value + c) + tl.load(constant + c))
        store_tile(out, n, g, here, elements, place, y, FORM)
