"""Convolution and linear maps that keep a code of their input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from actnn.model.layers.maps import energy_of, few, normalize, transfer_of
from actnn.operations.kept import Kept
from actnn.planning.noise import Transfer, convolution_coefficient, linear_coefficient
from actnn.session.site import Site
from actnn.torch.functions.kept import first_order
from actnn.torch.tensors import ARRAYS


@dataclass(frozen=True)
class Convolution:
    """The fixed parameters of a convolution, in the order in which torch's backward takes them."""

    forward: Callable[..., Tensor]
    opposite: Callable[..., Tensor]
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

    def parameter_gradients(self, grad: Tensor, x: Tensor, weight: Tensor, bias: bool) -> list[Tensor | None]:
        """Return the gradients of weight and, where asked for, bias."""
        fixed = (self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups)
        bias_sizes = [weight.shape[1] * self.groups if self.transposed else weight.shape[0]]
        return torch.ops.aten.convolution_backward(grad, x, weight, bias_sizes, *fixed, (False, True, bias))[1:]

    def working_bytes(self, like: Tensor, shape: Sequence[int], weight: Tensor) -> tuple[int, int]:
        """Return the bytes of an input of some shape and its output together, 0 but on the host, and of the weight.

        On the host torch rearranges all of them for the convolution, and the output again afterwards.
        """
        if not ARRAYS.on_host(like):
            return 0, 0
        axes = zip(
            shape[2:], weight.shape[2:], self.stride, self.padding, self.dilation, self.output_padding, strict=True
        )
        if self.transposed:
            channels = weight.shape[1] * self.groups
            space = [(size - 1) * s - 2 * p + d * (k - 1) + o + 1 for size, k, s, p, d, o in axes]
        else:
            channels = weight.shape[0]
            space = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d, _ in axes]
        output = shape[0] * channels * math.prod(space)
        return (math.prod(shape) + output) * like.element_size(), ARRAYS.nbytes(weight)

    def coefficient(self, inputs: tuple[int, ...], outputs: tuple[int, ...], kernel: tuple[int, ...]) -> float:
        """Return how much of the input's noise the gradient of the weight takes over."""
        fixed = (self.stride, self.padding, self.dilation, self.groups, self.transposed)
        return convolution_coefficient(inputs, outputs, kernel, *fixed)

    def transfer(self, x: Tensor, y: Tensor, weight: Tensor) -> Transfer:
        """Return how noise in the gradient of ``y`` reaches that of the weight."""
        positions = math.prod(y.shape[2:])
        with exactly(y):
            x, y = (few(ARRAYS, values, positions) for values in (x, y))
            normalized = normalize(ARRAYS, y, [0, *range(2, y.dim())])
            aligned = self.parameter_gradients(normalized, x, weight.float(), False)[0]
            if self.transposed:
                aligned = aligned.unflatten(0, (self.groups, -1)).transpose(1, 2).flatten(0, 1)
            rows = aligned.flatten(1) / max(1, len(y) * positions)
        share = self.coefficient(tuple(x.shape[2:]), tuple(y.shape[2:]), tuple(weight.shape[2:]))
        return transfer_of(ARRAYS, rows, share * energy_of(x))

    def input_gradient(self, grad: Tensor, weight: Tensor, space: tuple[int, ...]) -> Tensor:
        """Return the gradient of an input that extends over ``space``: the opposite convolution, of no activation."""
        if self.transposed:
            rest = (self.stride, self.padding, self.dilation, self.groups)
            grad_x = self.opposite(grad, weight, None, *rest)
            # an output padding of a whole stride makes one position too many
            return grad_x[(..., *(slice(size) for size in space))]
        missing = [
            size - ((out - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1)
            for size, out, stride, padding, dilation, kernel in zip(
                space, grad.shape[2:], self.stride, self.padding, self.dilation, weight.shape[2:], strict=True
            )
        ]
        return self.opposite(grad, weight, None, self.stride, self.padding, missing, self.groups, self.dilation)


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
        ctx.site, ctx.convolution, ctx.shape = site, convolution, tuple(x.shape)
        save(ctx, weight, kept)
        parts = site.session.pieces(len(x), 0, *convolution.working_bytes(x, x.shape, weight))
        return in_pieces(parts, lambda part: convolution(samples_of(x, part), weight, bias))

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        weight, *saved = ctx.saved_tensors
        weight, space = weight.to(grad.dtype), ctx.shape[2:]
        decoded_bytes = math.prod(ctx.shape) * grad.element_size()
        working_bytes = ctx.convolution.working_bytes(grad, ctx.shape, weight)
        parts = ctx.site.session.pieces(len(grad), decoded_bytes, *working_bytes)
        grad_x = grad_weight = grad_bias = None
        if need_weight:
            # before the gradient of the input: the decoded activation and that gradient are never there together
            grad_weight, grad_bias = ConvolutionFunction.parameter_gradients(ctx, grad, saved, weight, need_bias, parts)
            ends = space, tuple(grad.shape[2:]), tuple(weight.shape[2:])
            ctx.reading.observe(ctx.site, grad, lambda: ctx.convolution.coefficient(*ends))
        elif need_bias:
            grad_bias = grad.sum([axis for axis in range(grad.dim()) if axis != 1])
        if need_x:
            grad_x = in_pieces(
                parts, lambda part: ctx.convolution.input_gradient(samples_of(grad, part), weight, space)
            )
        return grad_x, grad_weight, grad_bias, None, None, None

    @staticmethod
    def parameter_gradients(
        ctx: Any, grad: Tensor, saved: list[Tensor], weight: Tensor, need_bias: bool, parts: list[range]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of weight and bias, summed over parts of the batch."""
        grad_weight = grad_bias = None
        for part, x in ctx.reading.parts(ctx.site, saved, grad, parts):
            of_weight, of_bias = ctx.convolution.parameter_gradients(part, x, weight, need_bias)
            grad_weight, grad_bias = added(grad_weight, of_weight), added(grad_bias, of_bias)
        return tuple(None if total is None else total.to(grad.dtype) for total in (grad_weight, grad_bias))


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
        grad_weight = None
        if need_weight:
            grad_weight = LinearFunction.weight_gradient(ctx, grad, saved)
            ctx.reading.observe(ctx.site, grad, lambda: linear_coefficient(math.prod(grad.shape[1:-1])))
        grad_bias = rows(grad).sum(0) if need_bias else None
        grad_x = grad @ weight.to(grad.dtype) if need_x else None
        return grad_x, grad_weight, grad_bias, None, None

    @staticmethod
    def weight_gradient(ctx: Any, grad: Tensor, saved: list[Tensor]) -> Tensor:
        """Return the gradient of the weight, summed over parts of the batch."""
        grad_weight = None
        samples, elements = ctx.reading.order.rows
        parts = ctx.site.session.pieces(samples, samples * elements * grad.element_size())
        for part, x in ctx.reading.parts(ctx.site, saved, grad, parts):
            grad_weight = added(grad_weight, rows(part).T @ rows(x))
        return grad_weight.to(grad.dtype)


def transfer(x: Tensor, y: Tensor) -> Transfer:
    """Return how noise in the gradient of a linear layer's output reaches that of its weight."""
    with exactly(y):
        x, y = (rows(few(ARRAYS, values, math.prod(values.shape[1:-1]))) for values in (x, y))
        aligned = normalize(ARRAYS, y, [0]).T @ x / max(1, len(y))
    return transfer_of(ARRAYS, aligned, energy_of(x))


@contextmanager
def exactly(y: Tensor) -> Iterator[None]:
    """Measure with no gradient, and without autocast: sums may pass what half precision can hold."""
    with torch.no_grad(), torch.autocast(y.device.type, enabled=False):
        yield


def save(ctx: Any, weight: Tensor, kept: Kept | None) -> None:
    """Save the weight, and of the input what is kept of it."""
    ctx.reading = None if kept is None else kept.reading
    ctx.save_for_backward(weight, *(() if kept is None else kept.tensors))


def in_pieces(parts: list[range], compute: Callable[[range], Tensor]) -> Tensor:
    """Return what ``compute`` makes of each part of a batch, as one tensor."""
    if len(parts) == 1:
        return compute(parts[0])
    whole = None
    for part in parts:
        result = compute(part)
        if whole is None:
            whole = ARRAYS.order(result).of_samples(parts[-1].stop).unfilled(result)
        samples_of(whole, part).copy_(result)
    return whole


def samples_of(x: Tensor, part: range) -> Tensor:
    """Return some samples of a batch."""
    return x[part.start : part.stop]


def added(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    """Return a sum of which the first term may be missing; from the second on, in float32 at least."""
    if total is None or part is None:
        return part
    # half precision would lose what small parts add to a large sum
    return total.to(torch.promote_types(total.dtype, torch.float32)).add_(part)


def rows(x: Tensor) -> Tensor:
    """Return a tensor as a matrix, its last axis kept."""
    return x.reshape(-1, x.shape[-1])
