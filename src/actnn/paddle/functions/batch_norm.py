"""BatchNorm that keeps a code of its normalised input, alone or joined over processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle import Tensor
from paddle import distributed as dist

from actnn.operations.normalization import Normalizing, gradients
from actnn.paddle.functions.kept import Function, Inputs, first_order, forward, save, saved
from actnn.paddle.tensors import ARRAYS, FLOATING


class Running:
    """The running statistics of a BatchNorm, of which ``momentum`` weighs the new values."""

    __slots__ = ("direct", "mean", "momentum", "variance", "written")
    unbiased, batches = False, None

    def __init__(self, mean: Tensor, variance: Tensor, momentum: float) -> None:
        self.mean, self.variance, self.momentum = mean.detach(), variance.detach(), momentum
        self.written = self.mean, self.variance
        alike = mean.dtype == variance.dtype and mean.dtype in FLOATING
        self.direct = alike and mean.is_contiguous() and variance.is_contiguous()

    def update(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Average new statistics in."""
        for running, new in ((self.mean, mean), (self.variance, variance)):
            paddle.assign(((1.0 - self.momentum) * running + self.momentum * new).astype(running.dtype), output=running)


class BatchNormFunction(Function):
    """BatchNorm in training: normalises by the batch and keeps a code of the normalised input."""

    @staticmethod
    @forward
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Normalizing) -> Tensor:
        ctx.inputs, ctx.channels_last = Inputs(x, weight, bias), call.plan.order.channels_last
        # where only beta learns no code is needed: later readers make their own
        needed = any(ctx.inputs.needed[:2])
        y: Tensor = call.normalize(x, weight, bias, needed)
        ctx.state = call
        if needed:
            save(ctx, *call.saved)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs: Inputs = ctx.inputs
        if not any(inputs.needed[:2]):
            return inputs.gradients(None, None, over_channels(grad, ctx.channels_last))
        return inputs.gradients(*gradients(ctx.state, saved(ctx), grad, inputs.needed, rectified=False))


class FixedBatchNormFunction(Function):
    """BatchNorm with given statistics (evaluation): exact, and keeps its input only for the gradient of gamma."""

    @staticmethod
    @forward
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: Running,
        exact: Callable[..., Tensor],
        epsilon: float,
        channels_last: bool,
    ) -> Tensor:
        # statistics come as one object: a tensor would count as an input
        ctx.inputs, ctx.channels_last = Inputs(x, weight, bias), channels_last
        kept = None
        if ctx.inputs.needed[1]:
            kept = x.detach()
            ctx.site.keeps(ARRAYS.nbytes(x))
        inverse = 1.0 / ARRAYS.sqrt(running.variance + epsilon)
        save(ctx, kept, weight, running.mean, inverse)
        return exact(x, running.mean, running.variance, weight, bias)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs: Inputs = ctx.inputs
        need_x, need_weight, need_bias = inputs.needed
        x, weight, mean, inverse = saved(ctx)
        slope = inverse if weight is None else weight.detach() * inverse
        last = ctx.channels_last
        grad_x = grad * along_channels(slope, grad, last) if need_x else None
        grad_weight = grad_bias = None
        if need_weight:
            normalized = (x - along_channels(mean, x, last)) * along_channels(inverse, x, last)
            grad_weight = over_channels(grad * normalized, last)
        if need_bias:
            grad_bias = over_channels(grad, last)
        return inputs.gradients(grad_x, grad_weight, grad_bias)


def along_channels(values: Tensor, x: Tensor, channels_last: bool) -> Tensor:
    """Return one value a channel in a shape and dtype that go with ``x``."""
    shape = [-1] if channels_last else [1, -1, *[1] * (len(x.shape) - 2)]
    return values.astype(x.dtype).reshape(shape)


def over_channels(values: Tensor, channels_last: bool) -> Tensor:
    """Return the sum over everything but channels."""
    channel = len(values.shape) - 1 if channels_last else 1
    return values.sum([axis for axis in range(len(values.shape)) if axis != channel])


class Processes:
    """A process group of Paddle, whose members share the statistics of a batch."""

    def __init__(self, group: Any = None) -> None:
        self._group = group

    def gathered(self, values: Tensor) -> Tensor:
        """Return the values of every process, of shape (processes, …)."""
        everyone: list[Tensor] = []
        dist.all_gather(everyone, values, group=self._group)
        return paddle.stack(everyone)

    def summed(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        dist.all_reduce(values, group=self._group)
        return values
