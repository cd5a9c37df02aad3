"""Max pooling by the definition: position by position within the window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from actnn.kernels.contract import Array, Arrays, Pool
from actnn.kernels.reference.codes import decode_index, encode_index
from actnn.kernels.reference.numbers import filled


def max_pool(arrays: Arrays, values: Array, out: Array, pool: Pool) -> Array:
    """Write the maxima; return the index code of their positions."""
    padded = surrounded(arrays, values, pool, float("-inf"))
    best = padded[next(windows(pool))]
    position = 0 * arrays.cast(best > best, "int64")
    for index, window in enumerate(windows(pool)):
        value = padded[window]
        better = (value > best) | (value != value)
        best, position = arrays.where(better, value, best), arrays.where(better, index + 0 * position, position)
    shape = (pool.samples, pool.elements[1])
    out[:] = best.reshape(shape)
    return encode_index(arrays, position.reshape(shape), pool.bits)


def max_pool_backward(arrays: Arrays, planes: Array, grad: Array, pool: Pool) -> Array:
    """Return the gradient of the pooled values."""
    positions = decode_index(arrays, planes, pool.samples, pool.elements[1], pool.bits)
    total = surrounded(arrays, filled(arrays, (pool.samples, pool.elements[0]), 0.0, positions), pool, 0.0)
    shape = total[next(windows(pool))].shape
    positions, wide = positions.reshape(shape), arrays.cast(grad, "float32").reshape(shape)
    for index, window in enumerate(windows(pool)):
        total[window] = total[window] + arrays.where(positions == index, wide, 0.0)
    inner = tuple(slice(low, low + size) for low, size in zip(pool.padding, pool.input, strict=True))
    inside = total[(slice(None), *inner)] if pool.channels_last else total[(slice(None), slice(None), *inner)]
    return arrays.cast(inside.reshape(pool.samples, pool.elements[0]), arrays.dtype(grad))


def surrounded(arrays: Arrays, values: Array, pool: Pool, filler: float) -> Array:
    """Return the input of a pooling in its own shape, with ``filler`` wherever a window reaches beyond it."""
    space = (*pool.input, pool.channels) if pool.channels_last else (pool.channels, *pool.input)
    values = values.reshape(pool.samples, *space)
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
