"""Rectifiers and dropout, which keep one bit an element or less."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.operations.dropout import code_to_share, keep_chosen, share_dropped
from actnn.operations.kept import Kept
from actnn.operations.rectifiers import Rectifier
from actnn.session.site import Site
from actnn.session.tags import Tag
from actnn.torch.functions.gradients import note_waiting, owned
from actnn.torch.functions.kept import KeepingFunction, first_order
from actnn.torch.holders import LARGE_BYTES, LEAST_BYTES
from actnn.torch.tensors import ARRAYS


class RectifierFunction(KeepingFunction):
    """A rectifier that reads its mask from a code: its own, or that of whoever produced its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rectifier: Rectifier) -> Tensor:
        y: Tensor = rectifier.function(x)
        if rectifier.kept is None:
            rectifier.kept = rectifier.keep_output(ARRAYS, y)
        kept = rectifier.kept
        ctx.site, ctx.below, ctx.reading, ctx.readers = rectifier.site, rectifier.below, kept.reading, rectifier.readers
        ctx.save_for_backward(kept.tensors[0])
        if rectifier.inplace:
            ctx.mark_dirty(x)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (mask,) = ctx.saved_tensors
        if ctx.readers is not None:
            ctx.site.confirm(ctx.readers)
        over = grad.nbytes >= LEAST_BYTES and owned(ctx, grad, sys.getrefcount(grad))
        grad_x: Tensor = ctx.reading.masked(ctx.site, mask, grad, 1.0, ctx.below, over)
        if ARRAYS.nbytes(grad_x) >= LARGE_BYTES:
            note_waiting(ctx, grad_x)
        return grad_x, None


def dropout(site: Site, x: Tensor, probability: float, inplace: bool = False) -> Tensor:
    """Return ``F.dropout`` in training, which keeps one bit an element; readers of it find the code of ``x``."""
    tag = code_to_share(ARRAYS, x, site)
    made: list[Kept] = []
    y: Tensor = DropoutFunction.apply(x, site, probability, inplace, made)
    if tag is not None:
        share_dropped(ARRAYS, y, tag, made[0], factor_of(probability))
    return y


def factor_of(probability: float) -> float:
    """Return by what dropout multiplies the elements that stay."""
    return 0.0 if probability == 1.0 else 1.0 / (1.0 - probability)


class DropoutFunction(KeepingFunction):
    """``F.dropout`` in training that keeps one bit an element, which it adds to ``made``.

    It draws exactly what torch's own would.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, site: Site, probability: float, inplace: bool, made: list[Kept]) -> Tensor:
        ctx.site = site
        factors = F.dropout(torch.ones_like(x), probability, training=True, inplace=True)
        mask = keep_chosen(ARRAYS, factors, site, ARRAYS.nbytes(x))
        made.append(mask)
        ctx.factor, ctx.reading = factor_of(probability), mask.reading
        ctx.save_for_backward(*mask.tensors)
        if inplace:
            ctx.mark_dirty(x)
            return x.mul_(factors)
        return x * factors

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (mask,) = ctx.saved_tensors
        over = grad.nbytes >= LEAST_BYTES and owned(ctx, grad, sys.getrefcount(grad))
        return ctx.reading.masked(ctx.site, mask, grad, ctx.factor, 0.0, over), None, None, None, None


def bypassed(x: Tensor, tag: Tag) -> Tensor | None:
    """Return max(x, 0) written over a BatchNorm's output, unless somebody wants to see the gradient of that itself."""
    if tag.result is None or tag.result() is not x or x.retains_grad or x._backward_hooks or not tag.bypass.open:
        return None
    y: Tensor = tag.bypass.rectify(x)
    return y
