"""Products of two tensors, element by element or of matrices, that keep codes of their factors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from actnn.operations.kept import Kept
from actnn.operations.products import Bilinear, keep_factor, observe_factor, tag_product
from actnn.session.site import Site
from actnn.torch.functions.kept import KeepingFunction, first_order
from actnn.torch.tensors import ARRAYS, NAMES

MULTIPLY = Bilinear(torch.mul, torch.mul, torch.mul)
MATMUL = Bilinear(
    torch.matmul,
    lambda grad, second: torch.matmul(grad, second.transpose(-1, -2)),
    lambda grad, first: torch.matmul(first.transpose(-1, -2), grad),
)


class ProductFunction(KeepingFunction):
    """A product whose backward reads each factor from its code."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, bilinear: Bilinear, first: Kept | None, second: Kept | None, site: Site
    ) -> Tensor:
        ctx.site, ctx.bilinear, ctx.shapes = site, bilinear, (a.shape, b.shape)
        ctx.parameters = a.is_leaf, b.is_leaf
        ctx.readings = [None if kept is None else kept.reading for kept in (first, second)]
        ctx.split = 0 if first is None else len(first.tensors)
        saved = [tensor for kept in (first, second) if kept is not None for tensor in kept.tensors]
        ctx.save_for_backward(*saved)
        y: Tensor = bilinear.function(a, b)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_a, need_b, *_ = ctx.needs_input_grad
        saved = ctx.saved_tensors
        first, second = ctx.readings
        grad_a = grad_b = None
        if need_a:
            grad_a = ctx.bilinear.of_first(grad, read(ctx, second, saved[ctx.split :], grad)).sum_to_size(ctx.shapes[0])
            observe_factor(second, ctx.site, grad, grad_a, ctx.parameters[0])
        if need_b:
            grad_b = ctx.bilinear.of_second(grad, read(ctx, first, saved[: ctx.split], grad)).sum_to_size(ctx.shapes[1])
            observe_factor(first, ctx.site, grad, grad_b, ctx.parameters[1])
        return grad_a, grad_b, None, None, None, None


def read(ctx: Any, reading: Any, saved: Any, grad: Tensor) -> Tensor:
    """Return a factor from what was saved of it."""
    value: Tensor = reading.value(ctx.site, reading.fetched(ctx.site, saved), NAMES[grad.dtype])
    return value


def product(a: Tensor, b: Tensor, bilinear: Bilinear, site: Site, training: bool) -> Tensor:
    """Return a product of two tensors that is linear in each, at least one of which wants a gradient."""
    elements = torch.broadcast_shapes(a.shape, b.shape).numel() if bilinear is MULTIPLY else 0
    first = keep_factor(ARRAYS, a, site, training, elements) if b.requires_grad else None
    second = keep_factor(ARRAYS, b, site, training, elements) if a.requires_grad else None
    y: Tensor = ProductFunction.apply(a, b, bilinear, first, second, site)
    if training and first is not None and second is not None and bilinear is MULTIPLY:
        tag_product(ARRAYS, y, site, bilinear.function, first, second)
    return y
