"""Pooling that keeps positions within windows (max) or only shapes (average)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from actnn.kernels.contract import Pool
from actnn.operations.kept import counted_once
from actnn.operations.pooling import Pooling, max_pool, max_pool_backward, pooled_size
from actnn.session.site import Site
from actnn.torch.functions.kept import KeepingFunction, first_order
from actnn.torch.tensors import ARRAYS, NAMES, TorchOrder

# exact training keeps an index of 64 bits for each maximum
INDEX_BYTES = 8


class MaxPoolFunction(KeepingFunction):
    """Max pooling that keeps each maximum's position within its window."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, site: Site, pooling: Pooling) -> Tensor:
        ctx.site, ctx.pooling = site, pooling
        y: Tensor
        y, saved = max_pool(ARRAYS, x, site, pooling, INDEX_BYTES)
        ctx.save_for_backward(saved)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (saved,) = ctx.saved_tensors
        return max_pool_backward(saved, grad, ctx.site, ctx.pooling), None, None


class AveragePoolFunction(KeepingFunction):
    """Average pooling: exact, and keeps only shapes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, site: Site, pool: Callable[[Tensor], Tensor], geometry: tuple[Any, ...]) -> Tensor:
        ctx.site, ctx.order, ctx.geometry = site, ARRAYS.order(x), geometry
        return pool(x)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        like = ARRAYS.unfilled(ctx.order, NAMES[grad.dtype], grad)
        return torch.ops.aten.avg_pool2d_backward(grad, like, *ctx.geometry), None, None, None


class ShapedFunction(KeepingFunction):
    """A linear function whose gradient needs the shape of its input alone: exact, and keeps nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, site: Site, function: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.site, ctx.order, ctx.function = site, ARRAYS.order(x), function
        return function(x)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # the gradient of a linear function is the same everywhere: whatever lies in this memory will do
        anywhere = ARRAYS.unfilled(ctx.order, NAMES[grad.dtype], grad).requires_grad_()
        with torch.enable_grad():
            y = ctx.function(anywhere)
        (found,) = torch.autograd.grad(y, anywhere, grad)
        return found, None, None


class IndexAddFunction(KeepingFunction):
    """Rows of one tensor added to those of another: exact, and keeps the indices."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, source: Tensor, index: Tensor, dim: int, alpha: float, site: Site, in_place: bool
    ) -> Tensor:
        ctx.site, ctx.dim, ctx.alpha = site, dim, alpha
        ctx.save_for_backward(index)
        if not in_place:
            return x.index_add(dim, index, source, alpha=alpha)
        ctx.mark_dirty(x)
        return x.index_add_(dim, index, source, alpha=alpha)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        of_source = grad.index_select(ctx.dim, index)
        return grad, of_source if ctx.alpha == 1 else of_source * ctx.alpha, None, None, None, None, None


def shaped(x: Tensor, site: Site, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a linear function of a tensor, which keeps a shape."""
    site.keeps(0, counted_once(ARRAYS, x, site))
    y: Tensor = ShapedFunction.apply(x, site, function)
    return y


def max_pooling(x: Tensor, rank: int, sizes: Sequence[int | tuple[int, ...]], ceil_mode: bool) -> Pooling:
    """Return the geometry of a max pooling of ``x`` by kernel, stride, padding and dilation."""
    *batch, channels = x.shape[:-rank]
    space = tuple(x.shape[-rank:])
    kernel, stride, padding, dilation = (each_axis(size, rank) for size in sizes)
    axes = zip(space, kernel, stride, padding, dilation, strict=True)
    output = tuple(pooled_size(*axis, ceil_mode) for axis in axes)
    order = ARRAYS.order(x, bool(batch))
    pool = Pool(math.prod(batch), channels, space, output, kernel, stride, padding, dilation, order.channels_last)
    return Pooling(order, TorchOrder((*batch, channels, *output), order.channels_last, bool(batch)), pool)


def each_axis(size: int | tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return a size as one number an axis."""
    return (size,) * rank if isinstance(size, int) else tuple(size)
