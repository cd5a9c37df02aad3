"""Piecewise linear activations and dropout, which keep one bit an element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from actnn.core.site import Site
from actnn.torch.functions.kept import apply_mask, encode_mask, first_order
from actnn.torch.tensors import nbytes


@dataclass(frozen=True)
class Activation:
    """A piecewise linear activation: its slope is 1 where ``inside(x) > 0`` and ``below`` elsewhere."""

    function: Callable[[Tensor], Tensor]
    inside: Callable[[Tensor], Tensor]
    below: float
    inplace: bool


class ActivationFunction(Function):
    """An activation that keeps one bit an element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, site: Site, activation: Activation) -> Tensor:
        ctx.site, ctx.below = site, activation.below
        mask, ctx.order = encode_mask(activation.inside(x), site)
        ctx.save_for_backward(mask)
        site.record(nbytes(x), nbytes(mask))
        if activation.inplace:
            ctx.mark_dirty(x)
        return activation.function(x)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (mask,) = ctx.saved_tensors
        return apply_mask(mask, ctx.order, grad, 1.0, ctx.below), None, None


class DropoutFunction(Function):
    """``F.dropout`` in training that keeps one bit an element; draws exactly what torch's own would."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, site: Site, probability: float, inplace: bool) -> Tensor:
        ctx.site = site
        factors = F.dropout(torch.ones_like(x), probability, training=True)
        mask, ctx.order = encode_mask(factors, site)
        ctx.factor = 0.0 if probability == 1.0 else 1.0 / (1.0 - probability)
        ctx.save_for_backward(mask)
        site.record(nbytes(x), nbytes(mask))
        if inplace:
            ctx.mark_dirty(x)
            return x.mul_(factors)
        return x * factors

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (mask,) = ctx.saved_tensors
        return apply_mask(mask, ctx.order, grad, ctx.factor, 0.0), None, None, None
