"""Pooling that keeps positions within windows (max) or only shapes (average)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paddle import Tensor
from paddle import _C_ops as operators

from actnn.operations.pooling import Pooling, max_pool, max_pool_backward
from actnn.paddle.functions.kept import Function, first_order, forward, save, saved
from actnn.paddle.tensors import ARRAYS, NAMES


class MaxPoolFunction(Function):
    """Max pooling that keeps each maximum's position within its window."""

    @staticmethod
    @forward
    def forward(ctx: Any, x: Tensor, pooling: Pooling) -> Tensor:
        ctx.pooling = pooling
        # exact training keeps no index, but the output
        y: Tensor
        y, planes = max_pool(ARRAYS, x, ctx.site, pooling, exact_index_bytes=0)
        save(ctx, planes)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (planes,) = saved(ctx)
        grad_x: Tensor = max_pool_backward(planes, grad, ctx.site, ctx.pooling)
        return grad_x


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
        like, y = (ARRAYS.unfilled(order, NAMES[grad.dtype], grad) for order in (ctx.order, ARRAYS.order(grad)))
        grad_x: Tensor = operators.pool2d_grad(like, y, grad, *ctx.geometry)
        return grad_x
