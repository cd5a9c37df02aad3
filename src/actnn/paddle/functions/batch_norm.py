"""BatchNorm that keeps a code of its normalised input, alone or joined over processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle import Tensor
from paddle import distributed as dist

from actnn.operations.normalization import Call, gradients
from actnn.paddle.functions.kept import Function, Inputs, first_order, forward, save, saved
from actnn.paddle.tensors import ARRAYS


class BatchNormFunction(Function):
    """BatchNorm in training: normalises by the batch and keeps a code of the normalised input."""

    @staticmethod
    @forward
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call) -> Tensor:
        ctx.inputs, ctx.channels_last = Inputs(x, weight, bias), call.order.channels_last
        # where only beta learns no code is needed: later readers make their own
        needed = any(ctx.inputs.needed[:2])
        y = call.normalize(x, weight, bias, needed)
        ctx.state = call.backward
        if needed:
            save(ctx, *call.saved)
            call.account()
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if not any(ctx.inputs.needed[:2]):
            return ctx.inputs.gradients(None, None, over_channels(grad, ctx.channels_last))
        found = gradients(ctx.state, saved(ctx), grad, ctx.inputs.needed, rectified=False)
        return ctx.inputs.gradients(*found)


class FixedBatchNormFunction(Function):
    """BatchNorm with given statistics (evaluation): exact, and keeps its input only for the gradient of gamma."""

    @staticmethod
    @forward
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        exact: Callable[..., Tensor],
        statistics: Callable[[], tuple[Tensor, Tensor]],
        channels_last: bool,
    ) -> Tensor:
        ctx.inputs, ctx.channels_last = Inputs(x, weight, bias), channels_last
        mean, inverse = statistics()
        kept = x if ctx.inputs.needed[1] else None
        if kept is not None:
            ctx.site.keeps(ARRAYS.nbytes(x))
        save(ctx, None if kept is None else kept.detach(), weight, mean, inverse)
        return exact(x)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_x, need_weight, need_bias = ctx.inputs.needed
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
        return ctx.inputs.gradients(grad_x, grad_weight, grad_bias)


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
