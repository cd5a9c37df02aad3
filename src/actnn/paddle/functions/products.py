"""Products of two tensors, element by element or of matrices, that keep codes of their factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import paddle
from paddle import Tensor

from actnn.operations.kept import Kept
from actnn.operations.products import Bilinear, keep_factor, observe_factor, tag_product
from actnn.paddle.functions.kept import Function, Inputs, first_order, forward, save, saved
from actnn.paddle.tensors import ARRAYS, NAMES
from actnn.session.site import Site

MULTIPLY = Bilinear(paddle.multiply, paddle.multiply, paddle.multiply)


@cache
def matmul_of(transpose_x: bool, transpose_y: bool) -> Bilinear:
    """Return a product of matrices, either of which may be transposed first."""
    return Bilinear(
        partial(paddle.matmul, transpose_x=transpose_x, transpose_y=transpose_y),
        (lambda grad, y: paddle.matmul(y, grad, transpose_y, True))
        if transpose_x
        else (lambda grad, y: paddle.matmul(grad, y, False, not transpose_y)),
        (lambda grad, x: paddle.matmul(grad, x, True, transpose_x))
        if transpose_y
        else (lambda grad, x: paddle.matmul(x, grad, not transpose_x, False)),
    )


class ProductFunction(Function):
    """A product whose backward reads each factor from its code."""

    @staticmethod
    @forward
    def forward(ctx: Any, a: Tensor, b: Tensor, bilinear: Bilinear, first: Kept | None, second: Kept | None) -> Tensor:
        ctx.inputs, ctx.bilinear, ctx.shapes = Inputs(a, b), bilinear, (a.shape, b.shape)
        ctx.parameters = a.is_leaf, b.is_leaf
        ctx.readings = [None if kept is None else kept.reading for kept in (first, second)]
        ctx.split = 0 if first is None else len(first.tensors)
        save(ctx, *(tensor for kept in (first, second) if kept is not None for tensor in kept.tensors))
        y: Tensor = bilinear.function(a, b)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_a, need_b = ctx.inputs.needed
        kept = saved(ctx)
        first, second = ctx.readings
        grad_a = grad_b = None
        if need_a:
            grad_a = summed(ctx.bilinear.of_first(grad, read(ctx, second, kept[ctx.split :], grad)), ctx.shapes[0])
            observe_factor(second, ctx.site, grad, grad_a, ctx.parameters[0])
        if need_b:
            grad_b = summed(ctx.bilinear.of_second(grad, read(ctx, first, kept[: ctx.split], grad)), ctx.shapes[1])
            observe_factor(first, ctx.site, grad, grad_b, ctx.parameters[1])
        gradients: tuple[Tensor | None, ...] = ctx.inputs.gradients(grad_a, grad_b)
        return gradients


def read(ctx: Any, reading: Any, kept: Sequence[Any], grad: Tensor) -> Tensor:
    """Return a factor from what was saved of it."""
    value: Tensor = reading.value(ctx.site, reading.fetched(ctx.site, kept), NAMES[grad.dtype])
    return value.detach()


def summed(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the sum over the axes along which a tensor of some shape was spread out."""
    added = len(x.shape) - len(shape)
    axes = [*range(added), *(axis + added for axis, size in enumerate(shape) if size == 1 != x.shape[axis + added])]
    return x.sum(axes).reshape(shape) if axes else x


def product(a: Tensor, b: Tensor, bilinear: Bilinear, site: Site, training: bool) -> Tensor:
    """Return a product of two tensors that is linear in each, at least one of which wants a gradient."""
    elements = math.prod(paddle.broadcast_shape(a.shape, b.shape)) if bilinear is MULTIPLY else 0
    first = None if b.stop_gradient else keep_factor(ARRAYS, a, site, training, elements)
    second = None if a.stop_gradient else keep_factor(ARRAYS, b, site, training, elements)
    y = ProductFunction.record(site, a, b, bilinear, first, second)
    if training and first is not None and second is not None and bilinear is MULTIPLY:
        tag_product(ARRAYS, y, site, bilinear.function, first, second)
    return y
