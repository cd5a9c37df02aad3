"""Smooth functions that keep a code of their input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from actnn.kernels.contract import Smooth
from actnn.operations.kept import Kept
from actnn.operations.smooth import keep_input, keep_slope, tag_value
from actnn.session.site import Site
from actnn.torch.functions.kept import KeepingFunction, first_order
from actnn.torch.tensors import ARRAYS


class SmoothFunction(KeepingFunction):
    """A smooth function whose slope is read from a code of its input."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, compute: Callable[[Tensor], Tensor], slope: Kept, site: Site, inplace: bool
    ) -> Tensor:
        ctx.site, ctx.reading = site, slope.reading
        ctx.save_for_backward(*slope.tensors)
        if inplace:
            ctx.mark_dirty(x)
        return compute(x)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        shape = grad.shape
        within: Tensor = ctx.reading.gradient(ctx.site, ctx.saved_tensors, grad.reshape(ctx.reading.order.shape))
        return within.reshape(shape), None, None, None, None


def smooth(
    x: Tensor, compute: Callable[[Tensor], Tensor], function: Smooth, site: Site, inplace: bool = False
) -> Tensor | None:
    """Return, in training, a smooth function of ``x``; None where ``x`` can have no code.

    ``compute`` computes it, over ``x`` itself with ``inplace``.
    """
    kept = keep_input(ARRAYS, x, site)
    if kept is None:
        return None
    slope = keep_slope(ARRAYS, x, kept, function, site)
    y: Tensor = SmoothFunction.apply(x, compute, slope, site, inplace)
    site.keeps(0, tag_value(ARRAYS, y, kept, function, site))
    return y
