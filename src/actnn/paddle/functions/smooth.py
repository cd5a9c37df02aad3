"""Smooth functions that keep a code of their input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paddle import Tensor

from actnn.kernels.contract import Smooth
from actnn.operations.kept import Kept
from actnn.operations.smooth import keep_input, keep_slope, tag_value
from actnn.paddle.functions.kept import Function, first_order, forward, save, saved
from actnn.paddle.tensors import ARRAYS
from actnn.session.site import Site


class SmoothFunction(Function):
    """A smooth function whose slope is read from a code of its input."""

    @staticmethod
    @forward
    def forward(ctx: Any, x: Tensor, compute: Callable[[Tensor], Tensor], slope: Kept) -> Tensor:
        ctx.reading = slope.reading
        save(ctx, *slope.tensors)
        return compute(x)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        shape = grad.shape
        within: Tensor = ctx.reading.gradient(ctx.site, saved(ctx), grad.reshape(ctx.reading.order.shape))
        return within.reshape(shape)


def smooth(x: Tensor, compute: Callable[[Tensor], Tensor], function: Smooth, site: Site) -> Tensor | None:
    """Return, in training, what ``compute`` computes, a smooth function of ``x``; None where ``x`` can have no code."""
    kept = keep_input(ARRAYS, x, site)
    if kept is None:
        return None
    y = SmoothFunction.record(site, x, compute, keep_slope(ARRAYS, x, kept, function, site))
    site.keeps(0, tag_value(ARRAYS, y, kept, function, site))
    return y
