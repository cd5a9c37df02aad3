"""The passes of BatchNorm over whole activations, beside a code."""

from __future__ import annotations

from actnn.format import Part
from actnn.kernels.contract import AnyLayout, Array, Arrays, Channels, Key, Normalization
from actnn.kernels.reference import codes, variance
from actnn.kernels.reference.numbers import filled
from actnn.kernels.reference.pieces import Piece, pieces, stretches


def units(arrays: Arrays, x: Array, places: slice, channels: Channels, filler: float) -> Array:
    """Return what of each channel (S, places) has side by side, filled up: (S, number, inner)."""
    inner = channels.inner
    whole = filled_up(arrays, x, places.start % inner, -places.stop % inner, filler)
    return whole.reshape(x.shape[0], -1, inner)


def turns(arrays: Arrays, x: Array, places: slice, channels: Channels, filler: float) -> Array:
    """Return one number for each of ``units`` as (channels, S times how often a channel comes), filled up."""
    first = places.start // channels.inner
    whole = filled_up(arrays, x, first % channels.count, -(first + x.shape[1]) % channels.count, filler)
    return arrays.transpose(whole.reshape(-1, channels.count), (1, 0))


def filled_up(arrays: Arrays, x: Array, front: int, back: int, filler: float) -> Array:
    """Return (S, any number) with so many numbers more at both ends."""
    ends = [filled(arrays, (x.shape[0], count), filler, x) if count else None for count in (front, back)]
    parts = [part for part in (ends[0], x, ends[1]) if part is not None]
    return x if len(parts) == 1 else arrays.concatenate(parts, 1)


def channel_sums(arrays: Arrays, x: Array, places: slice, channels: Channels) -> Array:
    """Return the sum over each channel of some places of samples."""
    return turns(arrays, units(arrays, x, places, channels, 0.0).sum(-1), places, channels, 0.0).sum(-1)


def channel_statistics(arrays: Arrays, values: Array, channels: Channels) -> tuple[Array, ...]:
    """Return mean, biased variance, minimum and maximum of each channel; all 0 where there are no values."""
    samples, elements = values.shape
    count = samples * elements // max(1, channels.count)
    total, squares = (filled(arrays, (channels.count,), 0.0, values) for _ in range(2))
    if count == 0:
        return total, squares, 0.0 * total, 0.0 * total
    low, high = total + float("inf"), total - float("inf")
    for rows, places in stretches(samples, elements):
        x = arrays.cast(values[rows, places], "float32")
        total = total + channel_sums(arrays, x, places, channels)
        ends = []
        for reduce, filler in ((arrays.amin, float("inf")), (arrays.amax, float("-inf"))):
            parts = reduce(units(arrays, x, places, channels, filler))
            ends.append(reduce(turns(arrays, parts, places, channels, filler)))
        # what is not a number stays, and comparisons with it are false
        low = arrays.where((ends[0] >= low) | (low != low), low, ends[0])
        high = arrays.where((ends[1] <= high) | (high != high), high, ends[1])
    mean = total / count
    for rows, places in stretches(samples, elements):
        centred = arrays.cast(values[rows, places], "float32") - mean[channel_of(arrays, places, channels, values)]
        squares = squares + channel_sums(arrays, centred * centred, places, channels)
    return mean, squares / count, low, high


def channel_of(arrays: Arrays, places: slice, channels: Channels, like: Array) -> Array:
    """Return the channel of each place."""
    return arrays.arange(places.start, places.stop, like) // channels.inner % channels.count


def normalize(
    arrays: Arrays,
    values: Array,
    out: Array,
    channels: Channels,
    normalization: Normalization,
    layout: AnyLayout,
    key: Key,
    buffer: Array | None = None,
) -> Array:
    """Write the output; return the code of what it was made from."""
    each = normalization
    buffer = codes.header(arrays, values, layout, key, buffer)
    for piece in pieces(layout):
        channel = piece.channels(arrays, channels, values)
        x = arrays.cast(values[piece.samples, piece.places], "float32")
        output = x * each.slope[channel] + each.offset[channel]
        coded, sides = (x - each.mean[channel]) * each.inverse[channel] - each.threshold[channel], None
        if not layout.family.affine:
            sides = codes.above_zero(arrays, output)
            wrong = arrays.where(sides == 1, coded < 0, coded > 0)
            coded = arrays.where(wrong, 0.0 * coded, coded)
        codes.encode_piece(arrays, coded, sides, piece, key, buffer)
        out[piece.samples, piece.places] = arrays.cast(output, arrays.dtype(values))
    return buffer


def gradient_sums(
    arrays: Arrays, grad: Array, channels: Channels, code: Array, layout: AnyLayout, rectified: bool
) -> tuple[Array, Array]:
    """Return the sums over each channel of the gradient and of its product with the decoded value."""
    total, products = (filled(arrays, (channels.count,), 0.0, grad) for _ in range(2))
    for piece in pieces(layout):
        own, value = gradient_and_value(arrays, grad, code, piece, rectified)
        total = total + channel_sums(arrays, own, piece.places, channels)
        products = products + channel_sums(arrays, own * value, piece.places, channels)
    return total, products


def gradient(
    arrays: Arrays,
    grad: Array,
    channels: Channels,
    code: Array,
    layout: AnyLayout,
    rectified: bool,
    coefficients: tuple[Array, Array, Array],
    of_noise: Array | None = None,
    out: Array | None = None,
) -> Array:
    """Return ``a[c] * grad + b[c] * v + d[c]``, grad being multiplied by ``1 + of_noise[c] * Var(v)`` where asked."""
    of_grad, of_value, constant = coefficients
    dtype = arrays.dtype(grad)
    if out is None:
        out = arrays.empty(grad.shape, dtype, grad)
    for piece in pieces(layout):
        noise = None if of_noise is None else variance.of_piece(arrays, code, piece)
        own, value = gradient_and_value(arrays, grad, code, piece, rectified)
        channel = piece.channels(arrays, channels, grad)
        if of_noise is not None:
            own = own * (noise * of_noise[channel] + 1.0)
        result = own * of_grad[channel] + (value * of_value[channel] + constant[channel])
        out[piece.samples, piece.places] = arrays.cast(result, dtype)
    return out


def gradient_and_value(arrays: Arrays, grad: Array, code: Array, piece: Piece, rectified: bool) -> tuple[Array, Array]:
    """Return the gradient of a piece, rectified or not, and its decoded value, float32."""
    own = arrays.cast(grad[piece.samples, piece.places], "float32")
    if rectified:
        own = chosen_times(arrays, codes.sides_of_piece(arrays, code, piece), own, 1.0, 0.0)
    return own, codes.decode_piece(arrays, code, piece, Part.WHOLE)


def apply_mask(
    arrays: Arrays,
    mask: Array,
    layout: AnyLayout | None,
    grad: Array,
    above: float,
    below: float,
    out: Array | None,
) -> Array:
    """Return ``grad`` times one of two factors."""
    samples, elements = grad.shape
    dtype = arrays.dtype(grad)
    if out is None:
        out = arrays.empty((samples, elements), dtype, grad)
    if layout is None:
        for rows, places in stretches(samples, elements):
            chosen = codes.index_piece(arrays, mask, rows, places, elements, 1) > 0
            own = arrays.cast(grad[rows, places], "float32")
            out[rows, places] = arrays.cast(chosen_times(arrays, chosen, own, above, below), dtype)
        return out
    for piece in pieces(layout):
        chosen = codes.sides_of_piece(arrays, mask, piece)
        own = arrays.cast(grad[piece.samples, piece.places], "float32")
        out[piece.samples, piece.places] = arrays.cast(chosen_times(arrays, chosen, own, above, below), dtype)
    return out


def chosen_times(arrays: Arrays, chosen: Array, x: Array, above: float, below: float) -> Array:
    """Return values times one of two factors."""
    return arrays.where(chosen, x * above, x * below)
