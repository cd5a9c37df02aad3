"""The passes of BatchNorm over whole activations, beside a code."""

from __future__ import annotations

from actnn.format import Part
from actnn.kernels.contract import AnyLayout, Array, Arrays, Channels, Key, Normalization
from actnn.kernels.reference import codes
from actnn.kernels.reference.numbers import filled
from actnn.kernels.reference.pieces import pieces


def by_channel(values: Array, channels: Channels) -> Array:
    """Cut (S, elements) into (S, outer, channels, inner)."""
    samples, elements = values.shape
    outer = elements // max(1, channels.count * channels.inner)
    return values.reshape(samples, outer, channels.count, channels.inner)


def channel_statistics(arrays: Arrays, values: Array, channels: Channels) -> tuple[Array, ...]:
    """Return mean, biased variance, minimum and maximum of each channel; all 0 where there are no values."""
    split = by_channel(arrays.cast(values, "float32"), channels)
    count = split.shape[0] * split.shape[1] * split.shape[3]
    if count == 0:
        return tuple(filled(arrays, (channels.count,), 0.0, values) for _ in range(4))
    mean = split.sum((0, 1, 3)) / count
    centred = split - mean[:, None]
    rows = arrays.transpose(split, (2, 0, 1, 3)).reshape(channels.count, -1)
    return mean, (centred * centred).sum((0, 1, 3)) / count, arrays.amin(rows), arrays.amax(rows)


def scaled(values: Array, channels: Channels, scale: Array, shift: Array) -> Array:
    """Return ``values * scale[c] + shift[c]``."""
    return (by_channel(values, channels) * scale[:, None] + shift[:, None]).reshape(values.shape)


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
    split, value = gradient_and_value(arrays, grad, channels, code, layout, rectified)
    return split.sum((0, 1, 3)), (split * value).sum((0, 1, 3))


def gradient(
    arrays: Arrays,
    grad: Array,
    channels: Channels,
    code: Array,
    layout: AnyLayout,
    rectified: bool,
    coefficients: tuple[Array, Array, Array],
) -> Array:
    """Return ``a[c] * grad + b[c] * v + d[c]``."""
    split, value = gradient_and_value(arrays, grad, channels, code, layout, rectified)
    of_grad, of_value, constant = (coefficient[:, None] for coefficient in coefficients)
    result = split * of_grad + (value * of_value + constant)
    return arrays.cast(result.reshape(grad.shape), arrays.dtype(grad))


def gradient_and_value(
    arrays: Arrays, grad: Array, channels: Channels, code: Array, layout: AnyLayout, rectified: bool
) -> tuple[Array, Array]:
    """Return the gradient, rectified or not, and the decoded value, float32 and cut by channel."""
    if rectified:
        grad = apply_mask(arrays, codes.split_mask(arrays, code, layout), grad, 1.0, 0.0)
    value = codes.decode(arrays, code, layout, Part.WHOLE)
    return by_channel(arrays.cast(grad, "float32"), channels), by_channel(value, channels)


def apply_mask(arrays: Arrays, chosen: Array, grad: Array, above: float, below: float) -> Array:
    """Return ``grad`` times one of two factors."""
    wide = arrays.cast(grad, "float32")
    return arrays.cast(arrays.where(chosen, wide * above, wide * below), arrays.dtype(grad))
