"""Pooling that keeps positions within windows (max) or only shapes (average)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from actnn import kernels
from actnn.kernels.contract import Pool
from actnn.session.site import Site
from actnn.torch.functions.kept import first_order
from actnn.torch.tensors import ARRAYS, TorchOrder


class MaxPoolFunction(Function):
    """Max pooling that keeps each maximum's position within its window."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, site: Site, pool: Pool) -> Tensor:
        site.session.check_open()
        batched = x.dim() == len(pool.kernel) + 2
        ctx.site, ctx.pool, ctx.order = site, pool, ARRAYS.order(x, batched)
        ctx.pooled = TorchOrder((*x.shape[: -len(pool.kernel)], *pool.output), pool.channels_last, batched)
        y = ctx.pooled.unfilled(x)
        buffer = site.session.store.allocate(ARRAYS, pool.nbytes, x)
        planes = kernels.select(ARRAYS, x).max_pool(ARRAYS, ctx.order.flat(x), ctx.pooled.flat(y), pool, buffer)
        ctx.save_for_backward(site.store(ARRAYS, planes))
        # exact training keeps its input, and an index of 64 bits for each maximum
        site.keeps(ARRAYS.nbytes(planes), 8 * y.numel())
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (planes,) = ctx.saved_tensors
        backend, planes = kernels.select(ARRAYS, grad), ctx.site.session.store.get(ARRAYS, planes)
        values = backend.max_pool_backward(ARRAYS, planes, ctx.pooled.flat(grad), ctx.pool)
        return ctx.order.shaped(values), None, None


class AveragePoolFunction(Function):
    """Average pooling: exact, and keeps only shapes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, site: Site, pool: Callable[[Tensor], Tensor], geometry: tuple[Any, ...]) -> Tensor:
        ctx.site, ctx.order, ctx.geometry = site, ARRAYS.order(x), geometry
        return pool(x)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        like = ctx.order.unfilled(grad)
        return torch.ops.aten.avg_pool2d_backward(grad, like, *ctx.geometry), None, None, None
