"""Pooling.

Keeps: the position of each maximum within its window, or only shapes for an average. Shares: nothing. Reads in
backward: the positions. Noise: none, positions are lossless.
"""

from __future__ import annotations

from actnn import kernels
from actnn.errors import ShapeError
from actnn.kernels.contract import Array, Pool
from actnn.operations.kept import counted_once
from actnn.session.site import Site
from actnn.session.tensors import Order, Tensors


class Pooling:
    """What the backward of a max pooling needs besides its positions."""

    __slots__ = ("order", "pool", "pooled")

    def __init__(self, order: Order, pooled: Order, pool: Pool) -> None:
        self.order, self.pooled, self.pool = order, pooled, pool


def max_pool(tensors: Tensors, x: Array, site: Site, pooling: Pooling, exact_index_bytes: int) -> tuple[Array, Array]:
    """Return the maxima of ``x`` and what autograd is to save: the code of their positions.

    Exact training keeps the input, and an index of ``exact_index_bytes`` for each maximum.
    """
    session, pool = site.session, pooling.pool
    session.check_open()
    order, pooled, backend = pooling.order, pooling.pooled, kernels.select(tensors, x)
    y = tensors.unfilled(pooled, tensors.dtype(x), x)
    buffer = session.store.allocate(tensors, pool.nbytes, x)
    direct = backend.any_shape and order.dense(x) and len(pool.kernel) < 3
    arguments = (x, y) if direct else (order.flat(x), pooled.flat(y))
    backend.max_pool(tensors, *arguments, pool, buffer)
    samples, elements = pooled.rows
    site.keeps(pool.nbytes, counted_once(tensors, x, site) + exact_index_bytes * samples * elements)
    return y, site.store(tensors, buffer)


def max_pool_backward(saved: Array, grad: Array, site: Site, pooling: Pooling) -> Array:
    """Return the gradient of what was pooled."""
    order, pooled, pool = pooling.order, pooling.pooled, pooling.pool
    tensors = order.tensors
    backend, planes = kernels.select(tensors, grad), site.session.store.get(tensors, saved)
    if not (backend.any_shape and pooled.dense(grad) and len(pool.kernel) < 3):
        return order.shaped(backend.max_pool_backward(tensors, planes, pooled.flat(grad), pool))
    out = tensors.unfilled(order, tensors.dtype(grad), grad)
    backend.max_pool_backward(tensors, planes, grad, pool, out)
    return out


def pooled_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Return the number of windows along one axis, as the frameworks count them."""
    if not 0 <= padding <= kernel // 2 or min(kernel, stride, dilation) < 1:
        raise ShapeError(
            f"a pooling window of {kernel} with stride {stride}, dilation {dilation} and padding {padding} does not "
            "exist: expected a padding of at most half the window."
        )
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    windows = (-(-room // stride) if ceil_mode else room // stride) + 1
    # the last window must start inside the input or the padding before it
    if ceil_mode and (windows - 1) * stride >= size + padding:
        windows -= 1
    if windows < 1:
        raise ShapeError(f"an axis of {size} is too small for a pooling window of {kernel} with dilation {dilation}.")
    return windows
