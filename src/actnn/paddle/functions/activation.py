"""Rectifiers and dropout, which keep one bit an element or less."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.nn import functional as F

from actnn.operations.dropout import keep_chosen
from actnn.operations.rectifiers import Rectifier
from actnn.paddle.functions.kept import Function, first_order, forward, save, saved
from actnn.paddle.tensors import ARRAYS, widened


class RectifierFunction(Function):
    """A rectifier that reads its mask from a code: its own, or that of whoever produced its input."""

    @staticmethod
    @forward
    def forward(ctx: Any, x: Tensor, rectifier: Rectifier) -> Tensor:
        y: Tensor = rectifier.function(x)
        if rectifier.kept is None:
            rectifier.kept = rectifier.keep_output(ARRAYS, y)
        kept = rectifier.kept
        ctx.below, ctx.reading, ctx.readers = rectifier.below, kept.reading, rectifier.readers
        save(ctx, kept.tensors[0])
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (mask,) = saved(ctx)
        if ctx.readers is not None:
            ctx.site.confirm(ctx.readers)
        grad_x: Tensor = ctx.reading.masked(ctx.site, mask, grad, 1.0, ctx.below)
        return grad_x


def rectified(x: Tensor, rectifier: Rectifier) -> Tensor:
    """Return a rectifier of ``x``, recorded by autograd."""
    return RectifierFunction.record(rectifier.site, x, rectifier)


class DropoutFunction(Function):
    """``F.dropout`` in training that keeps one bit an element; draws exactly what Paddle's own would."""

    @staticmethod
    @forward
    def forward(ctx: Any, x: Tensor, probability: float, axis: Any, upscale: bool, inplace: bool) -> Tensor:
        chosen = F.dropout(paddle.ones_like(x), probability, axis, mode="downscale_in_infer")
        # exact training keeps a byte an element
        mask = keep_chosen(ARRAYS, chosen, ctx.site, math.prod(x.shape))
        ctx.reading, ctx.scale = mask.reading, scaling(probability, axis, upscale, x.dtype)
        save(ctx, *mask.tensors)
        y: Tensor = ctx.scale(remaining(x, chosen, axis)).astype(x.dtype)
        return paddle.assign(y, output=x) if inplace else y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (mask,) = saved(ctx)
        grad_x: Tensor = ctx.scale(widened(ctx.reading.masked(ctx.site, mask, grad, 1.0, 0.0)))
        return grad_x.astype(grad.dtype)


def remaining(x: Tensor, chosen: Tensor, axis: Any) -> Tensor:
    """Return what is not dropped, in float32 at least; as in Paddle, elements are left out and slices multiplied."""
    x = widened(x)
    return ARRAYS.where(chosen.astype(paddle.bool), x, 0.0) if axis is None else x * widened(chosen)


def scaling(probability: float, axis: Any, upscale: bool, dtype: Any) -> Callable[[Tensor], Tensor]:
    """Return what makes up for dropped elements, in place, rounded as Paddle rounds it for an input of some type.

    That is a quotient where any element may be dropped, and a product where whole slices are.
    """
    if not upscale or probability == 1.0:
        return lambda y: y

    def number(value: float, like: Tensor) -> Tensor:
        return widened(paddle.full([], value, dtype, device=like.place))

    if axis is not None:
        return lambda y: y.multiply_(number(1.0 / (1.0 - probability), y))
    rest = float(np.float32(1.0) - np.float32(probability))
    return lambda y: y.divide_(number(rest, y))
