"""Convolution and linear maps that keep a code of their input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from actnn.core.site import Site
from actnn.torch.functions.kept import Kept, first_order
from actnn.torch.tensors import Order


@dataclass(frozen=True)
class Convolution:
    """The fixed parameters of a convolution, in the order in which torch's backward takes them."""

    forward: Callable[..., Tensor]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution."""
        if self.transposed:
            rest = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        else:
            rest = (self.stride, self.padding, self.dilation, self.groups)
        return self.forward(x, weight, bias, *rest)

    def backward(self, grad: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]) -> list[Tensor | None]:
        """Return the gradients of input, weight and bias that are wanted."""
        fixed = (self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups)
        bias_sizes = [weight.shape[1] * self.groups if self.transposed else weight.shape[0]]
        return torch.ops.aten.convolution_backward(grad, x, weight, bias_sizes, *fixed, wanted)


class ConvolutionFunction(Function):
    """A convolution that keeps a code of its input."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kept: Kept | None,
        site: Site,
        convolution: Convolution,
    ) -> Tensor:
        ctx.site, ctx.convolution, ctx.order = site, convolution, Order.of(x)
        save(ctx, weight, kept)
        return convolution(x, weight, bias)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        weight, *saved = ctx.saved_tensors
        weight = weight.to(grad.dtype)
        grad_x = grad_weight = grad_bias = None
        if need_weight:
            # before the gradient of the input: the decoded activation and that gradient are never there together
            x = ctx.reading.value(ctx.site, saved, grad.dtype)
            _, grad_weight, grad_bias = ctx.convolution.backward(grad, x, weight, (False, True, need_bias))
            del x
        elif need_bias:
            grad_bias = grad.sum([axis for axis in range(grad.dim()) if axis != 1])
        if need_x:
            # needs only the shape of the activation
            grad_x = ctx.convolution.backward(grad, ctx.order.unfilled(grad), weight, (True, False, False))[0]
        return grad_x, grad_weight, grad_bias, None, None, None


class LinearFunction(Function):
    """``F.linear`` that keeps a code of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kept: Kept | None, site: Site) -> Tensor:
        ctx.site = site
        save(ctx, weight, kept)
        return F.linear(x, weight, bias)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        weight, *saved = ctx.saved_tensors
        grad_x = grad @ weight.to(grad.dtype) if need_x else None
        grad_weight = rows(grad).T @ rows(ctx.reading.value(ctx.site, saved, grad.dtype)) if need_weight else None
        grad_bias = rows(grad).sum(0) if need_bias else None
        return grad_x, grad_weight, grad_bias, None, None


def save(ctx: Any, weight: Tensor, kept: Kept | None) -> None:
    """Save the weight, and of the input what is kept of it."""
    ctx.reading = None if kept is None else kept.reading
    ctx.save_for_backward(weight, *(() if kept is None else kept.tensors))


def rows(x: Tensor) -> Tensor:
    """Return a tensor as a matrix, its last axis kept."""
    return x.reshape(-1, x.shape[-1])
