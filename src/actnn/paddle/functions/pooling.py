"""Pooling that keeps positions within windows (max) or only shapes (average)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paddle import Tensor
from paddle import _C_ops as operators

from actnn import kernels
from actnn.kernels.contract import Pool
from actnn.paddle.functions.kept import Function, first_order, forward, save, saved
from actnn.paddle.tensors import ARRAYS, NAMES, PaddleOrder


class MaxPoolFunction(Function):
    """Max pooling that keeps each maximum's position within its window."""

    @staticmethod
    @forward
    def forward(ctx: Any, x: Tensor, pool: Pool) -> Tensor:
        ctx.site.session.check_open()
        ctx.pool, ctx.order = pool, ARRAYS.order(x)
        space = (*pool.output, pool.channels) if pool.channels_last else (pool.channels, *pool.output)
        ctx.pooled = PaddleOrder((pool.samples, *space), pool.channels_last)
        y = ctx.pooled.unfilled(x)
        buffer = ctx.site.session.store.allocate(ARRAYS, pool.nbytes, x)
        planes = kernels.select(ARRAYS, x).max_pool(ARRAYS, ctx.order.flat(x), ctx.pooled.flat(y), pool, buffer)
        save(ctx, ctx.site.store(ARRAYS, planes))
        ctx.site.keeps(ARRAYS.nbytes(planes))
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (planes,) = saved(ctx)
        backend, planes = kernels.select(ARRAYS, grad), ctx.site.session.store.get(ARRAYS, planes)
        return ctx.order.shaped(backend.max_pool_backward(ARRAYS, planes, ctx.pooled.flat(grad), ctx.pool))


class AveragePoolFunction(Function):
    """Average pooling: exact, and keeps only shapes."""

    @staticmethod
    @forward
    def forward(
        ctx: Any, x: Tensor, pool: Callable[[Tensor], Tensor], geometry: tuple[Any, ...], factor: float
    ) -> Tensor:
        ctx.order, ctx.geometry, ctx.factor = ARRAYS.order(x), geometry, factor
        return pool(x)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if ctx.factor != 1.0:
            grad = grad * ctx.factor
        like = ctx.order.unfilled(grad)
        y = ARRAYS.empty(tuple(grad.shape), NAMES[grad.dtype], grad)
        return operators.pool2d_grad(like, y, grad, *ctx.geometry)
