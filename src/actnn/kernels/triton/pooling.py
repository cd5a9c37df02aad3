"""The rows of max pooling, by Triton."""

from __future__ import annotations

from actnn.format import GROUP
from actnn.kernels.contract import Array, Arrays, Pool
from actnn.kernels.triton.device.pooling import max_pool_backward_kernel, max_pool_kernel
from actnn.kernels.triton.launching import INTERPRETED, Launching, blocks_of, check_elements, space

AXES = 3
# groups of a program's outputs, and inputs of a program of the backward
POOL_TILE = 16 if INTERPRETED else 4
BLOCK = 8192 if INTERPRETED else 512


class PoolRows(Launching):
    """The rows of max pooling."""

    def max_pool(self, arrays: Arrays, values: Array, out: Array, pool: Pool, buffer: Array | None = None) -> Array:
        planes = space(arrays, values, pool.nbytes, buffer)
        check_elements(pool.elements[0])
        blocks = blocks_of(pool.elements[1], GROUP * POOL_TILE)
        self.launch(
            *(arrays, values, max_pool_kernel, pool.samples * blocks, values, out, planes),
            *(*shape_of(pool), pool.bits, max(1, blocks), *padded(pool.kernel, 1), pool.channels_last, POOL_TILE),
        )
        return planes

    def max_pool_backward(
        self, arrays: Arrays, planes: Array, grad: Array, pool: Pool, out: Array | None = None
    ) -> Array:
        if out is None:
            out = arrays.empty((pool.samples, pool.elements[0]), arrays.dtype(grad), grad)
        blocks = blocks_of(pool.elements[0], BLOCK)
        self.launch(
            *(arrays, grad, max_pool_backward_kernel, pool.samples * blocks, planes, grad, out),
            *(*shape_of(pool), pool.bits, max(1, blocks), *padded(pool.kernel, 1), pool.channels_last, BLOCK),
        )
        return out


def shape_of(pool: Pool) -> tuple[int, ...]:
    """Return channels, sizes, strides, paddings and dilations, three of each."""
    sizes = padded(pool.input, 1), padded(pool.output, 1), padded(pool.stride, 1), padded(pool.padding, 0)
    return pool.channels, *(number for each in (*sizes, padded(pool.dilation, 1)) for number in each)


def padded(numbers: tuple[int, ...], filler: int) -> tuple[int, ...]:
    """Return one number for each of three axes, the last ones being those that there are."""
    return (filler,) * (AXES - len(numbers)) + numbers
