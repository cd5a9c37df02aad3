"""Max pooling by the definition: position by position within the window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from types import EllipsisType

from actnn.kernels.contract import Array, Arrays, Pool
from actnn.kernels.reference.codes import decode_index, encode_index
from actnn.kernels.reference.numbers import filled
from actnn.kernels.reference.pieces import LEAST_PIECE, PIECES


def max_pool(arrays: Arrays, values: Array, out: Array, pool: Pool, buffer: Array | None) -> Array:
    """Write the maxima; return the index code of their positions."""
    shaped, kind = in_space(values, pool, pool.input), position_kind(pool)
    positions = arrays.empty((pool.samples, pool.elements[1]), kind, values)
    for rows, channels in planes_of(pool):
        found = []
        for some in channels:
            padded = surrounded(arrays, shaped[rows][some], pool, float("-inf"))
            best = padded[next(windows(pool))]
            position = 0 * arrays.cast(best > best, "int64")
            for index, window in enumerate(windows(pool)):
                value = padded[window]
                better = (value > best) | (value != value)
                best = arrays.where(better, value, best)
                position = arrays.where(better, index + 0 * position, position)
            found.append((best, arrays.cast(position, kind)))
        for to, parts in zip((out, positions), zip(*found, strict=True), strict=True):
            to[rows] = side_by_side(arrays, parts, pool).reshape(-1, pool.elements[1])
    return encode_index(arrays, positions, pool.bits, buffer)


def max_pool_backward(arrays: Arrays, planes: Array, grad: Array, pool: Pool, out: Array | None) -> Array:
    """Return the gradient of the pooled values."""
    positions = decode_index(arrays, planes, pool.samples, pool.elements[1], pool.bits, position_kind(pool))
    positions, wide = in_space(positions, pool, pool.output), in_space(grad, pool, pool.output)
    if out is None:
        out = arrays.empty((pool.samples, pool.elements[0]), arrays.dtype(grad), grad)
    for rows, channels in planes_of(pool):
        found = []
        for some in channels:
            own, of_grad = positions[rows][some], arrays.cast(wide[rows][some], "float32")
            shape = list(own.shape)
            for axis, size in enumerate(pool.input, 1 if pool.channels_last else 2):
                shape[axis] = size
            total = surrounded(arrays, filled(arrays, shape, 0.0, grad), pool, 0.0)
            for index, window in enumerate(windows(pool)):
                total[window] = total[window] + arrays.where(own == index, of_grad, 0.0)
            found.append(arrays.cast(total[inner_places(pool)], arrays.dtype(grad)))
        out[rows] = side_by_side(arrays, found, pool).reshape(-1, pool.elements[0])
    return out


def planes_of(pool: Pool) -> Iterator[tuple[slice, list[tuple[slice | EllipsisType, ...]]]]:
    """Yield some samples after the other, and how their channels are divided, so that little is computed at once."""
    most = max(LEAST_PIECE, pool.samples * pool.elements[0] // PIECES)
    size = max(1, pool.elements[0] // max(1, pool.channels))
    samples = max(1, most // max(1, pool.elements[0]))
    step = max(1, most // size) if samples == 1 else max(1, pool.channels)
    for first in range(0, pool.samples if min(pool.elements) else 0, samples):
        some = [slice(channel, channel + step) for channel in range(0, pool.channels, step)]
        before = Ellipsis if pool.channels_last else slice(None)
        yield slice(first, first + samples), [(before, each) for each in some]


def side_by_side(arrays: Arrays, parts: Sequence[Array], pool: Pool) -> Array:
    """Return the parts of some samples, each of some channels, as one."""
    axis = 1 + len(pool.input) if pool.channels_last else 1
    return parts[0] if len(parts) == 1 else arrays.concatenate(list(parts), axis)


def position_kind(pool: Pool) -> str:
    """Return the smallest type of integers that holds a position within a window."""
    return "uint8" if pool.bits <= 8 else "int32"


def in_space(values: Array, pool: Pool, space: Sequence[int]) -> Array:
    """Return (S, elements) in its own shape."""
    shape = (*space, pool.channels) if pool.channels_last else (pool.channels, *space)
    return values.reshape(pool.samples, *shape)


def inner_places(pool: Pool) -> tuple[slice, ...]:
    """Return where in the surrounded input the input itself lies."""
    inner = tuple(slice(low, low + size) for low, size in zip(pool.padding, pool.input, strict=True))
    return (slice(None), *inner) if pool.channels_last else (slice(None), slice(None), *inner)


def surrounded(arrays: Arrays, values: Array, pool: Pool, filler: float) -> Array:
    """Return some of the input of a pooling, with ``filler`` wherever a window reaches beyond it."""
    for axis, size in enumerate(pool.input, 1 if pool.channels_last else 2):
        of = axis - (1 if pool.channels_last else 2)
        reach = (pool.output[of] - 1) * pool.stride[of] + pool.dilation[of] * (pool.kernel[of] - 1) + 1
        shape = list(values.shape)
        for count, front in ((pool.padding[of], True), (reach - pool.padding[of] - size, False)):
            if count > 0:
                shape[axis] = count
                border = arrays.cast(filled(arrays, shape, filler, values), arrays.dtype(values))
                values = arrays.concatenate([border, values] if front else [values, border], axis)
    return values


def windows(pool: Pool) -> Iterator[tuple[slice, ...]]:
    """Yield, position by position within the window, the elements of the surrounded input that lie there."""
    for position in itertools.product(*map(range, pool.kernel)):
        space = []
        for step, stride, dilation, outputs in zip(position, pool.stride, pool.dilation, pool.output, strict=True):
            start = step * dilation
            space.append(slice(start, start + (outputs - 1) * stride + 1, stride))
        yield (slice(None), *space) if pool.channels_last else (slice(None), slice(None), *space)
