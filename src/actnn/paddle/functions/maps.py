"""Convolution and linear maps that keep a code of their input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor

# Paddle has no public function for the gradients of a convolution alone; its own PyLayers call these
from paddle import _C_ops as operators
from paddle.nn import functional as F

from actnn.model.layers.maps import energy_of, few, normalize, transfer_of
from actnn.operations.kept import Kept
from actnn.paddle.functions.batch_norm import over_channels
from actnn.paddle.functions.kept import Function, Inputs, first_order, forward, save, saved
from actnn.paddle.padding import Padding
from actnn.paddle.tensors import ARRAYS, NAMES, widened
from actnn.planning.noise import Transfer, convolution_coefficient, linear_coefficient

# by rank, and whether channels are last
FORMATS = {(2, False): "NCHW", (2, True): "NHWC", (3, False): "NCDHW", (3, True): "NDHWC"}


@dataclass(frozen=True)
class Convolution:
    """A convolution: its forward, and the fixed parameters that Paddle's backward takes."""

    forward: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    stride: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]
    groups: int
    channels_last: bool
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def space(self, x: Tensor) -> tuple[int, ...]:
        """Return the axes of a tensor that are neither samples nor channels."""
        return tuple(x.shape[1:-1] if self.channels_last else x.shape[2:])

    def gradients(self, grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of input and weight."""
        if len(self.stride) > 1:
            return self.operator(weight)(x, weight, grad, *self.parameters(weight))
        # Paddle computes one axis as two, the first of size 1
        axis = 1 if self.channels_last else 2
        flat = Convolution(
            self.forward,
            (1, *self.stride),
            Padding((0,) * len(self.padding.numbers) + self.padding.numbers, self.padding.algorithm),
            (1, *self.dilation),
            self.groups,
            self.channels_last,
            self.transposed,
            (0, *self.output_padding),
        )
        grad_x, grad_weight = flat.gradients(grad.unsqueeze(axis), x.unsqueeze(axis), weight.unsqueeze(2))
        return grad_x.squeeze(axis), grad_weight.squeeze(2)

    def operator(self, weight: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
        """Return Paddle's operator for both gradients."""
        name = f"conv{len(self.stride)}d" + "_transpose" * self.transposed
        return getattr(operators, f"{'depthwise_' * self.depthwise(weight)}{name}_grad")

    def depthwise(self, weight: Tensor) -> bool:
        """Tell whether Paddle takes this for a depthwise convolution."""
        if len(self.stride) != 2 or self.groups == 1:
            return False
        if self.transposed:
            return weight.shape[0] == self.groups and weight.shape[1] == 1
        return weight.shape[1] == 1 and weight.shape[0] % self.groups == 0

    def parameters(self, weight: Tensor) -> tuple[Any, ...]:
        """Return the fixed parameters in the order in which the operator takes them."""
        stride, numbers, dilation = list(self.stride), list(self.padding.numbers), list(self.dilation)
        # transposed convolutions have one name for either rank
        form = FORMATS[2 if self.transposed else len(stride), self.channels_last]
        if self.transposed:
            output = list(self.output_padding), []
            return stride, numbers, *output, self.padding.algorithm, self.groups, dilation, form
        if len(stride) == 2 and not self.depthwise(weight):
            return stride, numbers, self.padding.algorithm, dilation, self.groups, form
        return stride, numbers, self.padding.algorithm, self.groups, dilation, form

    def coefficient(self, inputs: tuple[int, ...], outputs: tuple[int, ...], kernel: tuple[int, ...]) -> float:
        """Return how much of the input's noise the gradient of the weight takes over."""
        padding = self.padding.around(outputs if self.transposed else inputs, kernel, self.stride)
        before = tuple(pair[0] for pair in padding)
        fixed = (self.stride, before, self.dilation, self.groups, self.transposed)
        return convolution_coefficient(inputs, outputs, kernel, *fixed)

    def transfer(self, x: Tensor, y: Tensor, weight: Tensor) -> Transfer:
        """Return how noise in the gradient of ``y`` reaches that of the weight."""
        positions = math.prod(self.space(y))
        with paddle.no_grad():
            x, y = (few(ARRAYS, values, positions) for values in (x, y))
            channel = len(y.shape) - 1 if self.channels_last else 1
            normalized = normalize(ARRAYS, y, [axis for axis in range(len(y.shape)) if axis != channel])
            aligned = self.gradients(normalized, x, weight.detach().astype(y.dtype))[1]
            if self.transposed:
                inputs, outputs = weight.shape[0] // self.groups, weight.shape[1]
                aligned = aligned.reshape([self.groups, inputs, outputs, -1]).transpose([0, 2, 1, 3])
            rows = aligned.reshape([y.shape[channel], -1]) / max(1, len(y) * positions)
            share = self.coefficient(self.space(x), self.space(y), tuple(weight.shape[2:]))
            return transfer_of(ARRAYS, rows, share * energy_of(x))


class ConvolutionFunction(Function):
    """A convolution that keeps a code of its input."""

    @staticmethod
    @forward
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kept: Kept | None, convolution: Convolution
    ) -> Tensor:
        ctx.convolution, ctx.shape, ctx.inputs = convolution, tuple(x.shape), Inputs(x, weight, bias)
        save_map(ctx, weight, kept)
        return convolution.forward(x, weight, bias)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_x, need_weight, need_bias = ctx.inputs.needed
        weight, *kept = saved(ctx)
        weight, convolution = weight.detach().astype(grad.dtype), ctx.convolution
        grad_x = grad_weight = None
        if need_weight:
            found = []
            for part, x in ctx.reading.parts(ctx.site, kept, grad, parts_of(ctx, grad)):
                of_x, of_weight = convolution.gradients(part, x, weight)
                found.append(of_x if need_x else None)
                grad_weight = added(grad_weight, of_weight)
            grad_x = joined(found) if need_x else None
            ctx.reading.observe(ctx.site, grad, lambda: ConvolutionFunction.coefficient(ctx, grad, weight))
        elif need_x:
            # the gradient of the input depends on the shape of the input alone
            like = ARRAYS.empty(ctx.shape, NAMES[grad.dtype], grad)
            grad_x, _ = convolution.gradients(grad, like, weight)
        grad_bias = over_channels(grad, convolution.channels_last) if need_bias else None
        return ctx.inputs.gradients(grad_x, grad_weight, grad_bias)

    @staticmethod
    def coefficient(ctx: Any, grad: Tensor, weight: Tensor) -> float:
        """Return how much of the input's noise the gradient of the weight takes over."""
        convolution = ctx.convolution
        inputs = ctx.shape[1:-1] if convolution.channels_last else ctx.shape[2:]
        return convolution.coefficient(inputs, convolution.space(grad), tuple(weight.shape[2:]))


class LinearFunction(Function):
    """``F.linear`` that keeps a code of its input; the weight has shape (inputs, outputs)."""

    @staticmethod
    @forward
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kept: Kept | None) -> Tensor:
        ctx.inputs = Inputs(x, weight, bias)
        save_map(ctx, weight, kept)
        return F.linear(x, weight, bias)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_x, need_weight, need_bias = ctx.inputs.needed
        weight, *kept = saved(ctx)
        grad_weight = None
        if need_weight:
            for part, x in ctx.reading.parts(ctx.site, kept, grad, parts_of(ctx, grad)):
                grad_weight = added(grad_weight, paddle.matmul(rows(x), rows(part), transpose_x=True))
            ctx.reading.observe(ctx.site, grad, lambda: linear_coefficient(math.prod(grad.shape[1:-1])))
        grad_bias = rows(grad).sum(0) if need_bias else None
        grad_x = paddle.matmul(grad, weight.detach().astype(grad.dtype), transpose_y=True) if need_x else None
        return ctx.inputs.gradients(grad_x, grad_weight, grad_bias)


def transfer(x: Tensor, y: Tensor) -> Transfer:
    """Return how noise in the gradient of a linear layer's output reaches that of its weight."""
    with paddle.no_grad():
        x, y = (rows(few(ARRAYS, values, math.prod(values.shape[1:-1]))) for values in (x, y))
        aligned = paddle.matmul(normalize(ARRAYS, y, [0]), x, transpose_x=True) / max(1, len(y))
        return transfer_of(ARRAYS, aligned, energy_of(x))


def save_map(ctx: Any, weight: Tensor, kept: Kept | None) -> None:
    """Save the weight, and of the input what is kept of it."""
    ctx.reading = None if kept is None else kept.reading
    save(ctx, weight, *(() if kept is None else kept.tensors))


def parts_of(ctx: Any, grad: Tensor) -> list[range]:
    """Return the parts of the batch in which a map decodes its input."""
    samples, elements = ctx.reading.order.rows
    return ctx.site.session.pieces(samples, samples * elements * grad.element_size())


def added(total: Tensor | None, part: Tensor) -> Tensor:
    """Return a sum of which the first term may be missing; from the second on, in float32 at least."""
    # half precision would lose what small parts add to a large sum
    return part if total is None else widened(total).add_(widened(part))


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the parts of a batch as one tensor."""
    return parts[0] if len(parts) == 1 else paddle.concat(list(parts), 0)


def rows(x: Tensor) -> Tensor:
    """Return a tensor as a matrix, its last axis kept."""
    return x.reshape([-1, x.shape[-1]])
