"""The kernels of max pooling: against a loop that anyone can check, and against each other."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from code_cases import NUMPY, REFERENCE, PoisonedArrays

from actnn.format import index_bytes
from actnn.kernels.contract import Pool

# (input, kernel, stride, padding, dilation, ceil_mode)
GEOMETRIES = {
    "two by two": ((6, 8), (2, 2), (2, 2), (0, 0), (1, 1), False),
    "overlapping": ((7, 9), (3, 3), (2, 2), (1, 1), (1, 1), False),
    "dilated": ((9, 11), (3, 2), (1, 2), (1, 0), (2, 3), False),
    "ceiling": ((8, 8), (3, 3), (2, 2), (1, 1), (1, 1), True),
    "single": ((5, 4), (1, 1), (1, 1), (0, 0), (1, 1), False),
    "wide": ((20, 21), (17, 17), (7, 7), (8, 8), (1, 1), True),
    "one axis": ((33,), (4,), (3,), (2,), (2,), True),
    "three axes": ((5, 6, 7), (2, 3, 2), (2, 1, 2), (1, 1, 0), (1, 2, 1), False),
    "gaps between windows": ((11, 11), (2, 2), (4, 3), (0, 0), (1, 1), False),
}

geometries = pytest.mark.parametrize("geometry", GEOMETRIES)
orders = pytest.mark.parametrize("channels_last", [False, True], ids=["planes", "channels last"])


def pool_of(geometry: str, channels_last: bool, samples: int = 3, channels: int = 5) -> Pool:
    size, kernel, stride, padding, dilation, ceiling = GEOMETRIES[geometry]
    output = []
    for axis, length in enumerate(size):
        room = length + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1
        steps = -(-room // stride[axis]) if ceiling else room // stride[axis]
        # a window may not begin in the padding behind the input
        if steps * stride[axis] >= length + padding[axis]:
            steps -= 1
        output.append(steps + 1)
    return Pool(samples, channels, size, tuple(output), kernel, stride, padding, dilation, channels_last)


def values_of(pool: Pool, seed: int = 0, size: int | None = None):
    """Return values with ties, infinities and NaN among them."""
    generator = np.random.default_rng(seed)
    values = generator.integers(-4, 4, (pool.samples, size or pool.elements[0])).astype(np.float32)
    values[0, ::7] = -np.inf
    values[-1, 3] = np.nan
    values[-1, 5] = np.inf
    return values


def shaped(values, pool: Pool, space: tuple[int, ...]):
    """Return (samples, channels, *space) whatever the order in memory."""
    if pool.channels_last:
        return np.moveaxis(values.reshape(pool.samples, *space, pool.channels), -1, 1)
    return values.reshape(pool.samples, pool.channels, *space)


def by_hand(values, pool: Pool):
    """Return maxima, positions and input coordinates of every window, each found by a loop."""
    x = shaped(values, pool, pool.input)
    maxima = np.empty((pool.samples, pool.channels, *pool.output), np.float32)
    positions = np.empty(maxima.shape, np.int32)
    places = np.empty((*maxima.shape, len(pool.input)), np.int64)
    for index in np.ndindex(*maxima.shape):
        best = None
        for position, inside in enumerate(product(*(range(size) for size in pool.kernel))):
            place = tuple(
                index[2 + axis] * pool.stride[axis] - pool.padding[axis] + inside[axis] * pool.dilation[axis]
                for axis in range(len(pool.input))
            )
            if any(not 0 <= at < length for at, length in zip(place, pool.input, strict=True)):
                continue
            value = x[(*index[:2], *place)]
            if best is None or value > best[0] or (np.isnan(value) and not np.isnan(best[0])):
                best = value, position, place
        maxima[index], positions[index], places[index] = best
    return maxima, positions, places


def flat(values, pool: Pool):
    """Return (samples, elements) in the order of the pool."""
    return (np.moveaxis(values, 1, -1) if pool.channels_last else values).reshape(pool.samples, -1)


@geometries
@orders
def test_maxima_are_those_of_each_window(backend, geometry, channels_last):
    pool = pool_of(geometry, channels_last)
    values, out = values_of(pool), np.empty((pool.samples, pool.elements[1]), np.float32)
    backend.max_pool(NUMPY, values, out, pool)
    np.testing.assert_array_equal(shaped(out, pool, pool.output), by_hand(values, pool)[0])


@geometries
@orders
def test_positions_are_those_of_the_first_maximum(backend, geometry, channels_last):
    pool = pool_of(geometry, channels_last)
    values, out = values_of(pool), np.empty((pool.samples, pool.elements[1]), np.float32)
    planes = backend.max_pool(NUMPY, values, out, pool)
    found = REFERENCE.decode_index(NUMPY, planes, pool.samples, pool.elements[1], pool.bits)
    # NaN has no order: which of several is first is tested by agreement of the backends
    sound = ~np.isnan(out)
    expected = flat(by_hand(values, pool)[1], pool)
    assert np.array_equal(found[sound], expected[sound])


@geometries
@orders
def test_the_gradient_goes_to_the_maximum(backend, geometry, channels_last):
    pool = pool_of(geometry, channels_last)
    values, out = np.nan_to_num(values_of(pool)), np.empty((pool.samples, pool.elements[1]), np.float32)
    planes = backend.max_pool(NUMPY, values, out, pool)
    grad = np.random.default_rng(1).standard_normal(out.shape).astype(np.float32)
    found = shaped(backend.max_pool_backward(NUMPY, planes, grad, pool), pool, pool.input)
    expected = np.zeros(found.shape)
    places, incoming = by_hand(values, pool)[2], shaped(grad, pool, pool.output)
    for index in np.ndindex(*incoming.shape):
        expected[(*index[:2], *places[index])] += incoming[index]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@geometries
@orders
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_compiled_kernel_gives_the_bytes_of_the_reference(native, geometry, channels_last, dtype, threads):
    pool = pool_of(geometry, channels_last)
    values, lender = values_of(pool).astype(dtype), PoisonedArrays(threads)
    out = [lender.empty((pool.samples, pool.elements[1]), dtype, values) for _ in range(2)]
    planes = [
        each.max_pool(lender, values, target, pool) for each, target in zip((native, REFERENCE), out, strict=True)
    ]
    np.testing.assert_array_equal(*planes)
    np.testing.assert_array_equal(*out)
    lender.check_guards()


@geometries
@orders
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_compiled_gradient_is_that_of_the_reference(native, geometry, channels_last, dtype, threads):
    pool = pool_of(geometry, channels_last)
    values, lender = values_of(pool), PoisonedArrays(threads)
    planes = REFERENCE.max_pool(NUMPY, values, np.empty((pool.samples, pool.elements[1]), np.float32), pool)
    grad = np.random.default_rng(1).standard_normal((pool.samples, pool.elements[1])).astype(dtype)
    found, expected = (each.max_pool_backward(lender, planes, grad, pool) for each in (native, REFERENCE))
    assert found.dtype == expected.dtype
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    lender.check_guards()


def test_positions_take_the_bits_that_a_window_needs(backend):
    pool = pool_of("two by two", False)
    planes = backend.max_pool(NUMPY, values_of(pool), np.empty((3, pool.elements[1]), np.float32), pool)
    assert (pool.bits, planes.nbytes) == (2, index_bytes(3, pool.elements[1], 2))
