"""BatchNorm that keeps a code of its normalised input, alone or joined over processes."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from actnn.operations.normalization import Normalizing, gradients
from actnn.session.site import Site
from actnn.torch.functions.gradients import owned
from actnn.torch.functions.kept import KeepingFunction, first_order
from actnn.torch.holders import LEAST_BYTES
from actnn.torch.tensors import ARRAYS, FLOATING


class BatchNormFunction(KeepingFunction):
    """BatchNorm in training: normalises by the batch and keeps a code of the normalised input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Normalizing) -> Tensor:
        # where only beta learns no code is needed: later readers make their own
        needed = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        y: Tensor = call.normalize(x, weight, bias, needed)
        ctx.site, ctx.state = call.site, call
        if needed:
            ctx.save_for_backward(*call.saved)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[:3]
        if not (needed[0] or needed[1]):
            return None, None, grad.sum([axis for axis in range(grad.dim()) if axis != 1]), None
        over = grad.nbytes >= LEAST_BYTES and owned(ctx, grad, sys.getrefcount(grad))
        return *gradients(ctx.state, ctx.saved_tensors, grad, needed, rectified=False, overwrites=over), None


class RectifiedBatchNormFunction(KeepingFunction):
    """A ReLU that overwrites a BatchNorm's output, and takes the gradient past that layer in the same passes.

    Its graph leads to the BatchNorm's input and parameters. Readers of the output before it lead there through the
    BatchNorm's own function; both are linear in the gradient, so autograd's sum of them is right.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, y: Tensor, bypass: Bypass) -> Tensor:
        ctx.site, ctx.state = bypass.state.site, bypass.state
        ctx.save_for_backward(*bypass.saved)
        ctx.mark_dirty(y)
        return F.relu_(y)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        over = grad.nbytes >= LEAST_BYTES and owned(ctx, grad, sys.getrefcount(grad))
        needed = ctx.needs_input_grad[:3]
        return *gradients(ctx.state, ctx.saved_tensors, grad, needed, rectified=True, overwrites=over), None, None


class Bypass:
    """What a ReLU needs in order to take over the backward of the BatchNorm whose output it overwrites.

    It holds the BatchNorm's input until the ReLU comes; a site learns from step to step whether one does.
    """

    __slots__ = ("_version", "bias", "saved", "state", "weight", "x")

    def __init__(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        state: Normalizing,
        saved: tuple[Tensor | None, ...],
    ) -> None:
        self.x, self.weight, self.bias, self.state, self.saved = x, weight, bias, state, saved
        self._version = x._version

    @property
    def open(self) -> bool:
        """Whether the BatchNorm's input still is, in the graph, what the BatchNorm read."""
        return self.x._version == self._version

    def rectify(self, y: Tensor) -> Tensor:
        """Return max(y, 0), written over ``y``."""
        # detached: otherwise the BatchNorm's own function would run in backward, without any gradient
        rectified: Tensor = RectifiedBatchNormFunction.record(self.x, self.weight, self.bias, y.detach_(), self)
        return rectified


def normalized(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Normalizing
) -> tuple[Tensor, Bypass | None]:
    """Return ``x`` normalised by the batch, recorded by autograd, and a way past that where a ReLU may come."""
    y: Tensor = BatchNormFunction.record(x, weight, bias, call)
    # only a rectifier reads sides
    sides = call.kept is not None and not call.plan.family.affine
    if call.layout is None or not (sides and call.site.expected.overwrites):
        return y, None
    return y, Bypass(x, weight, bias, call, call.saved)


class FixedBatchNormFunction(KeepingFunction):
    """BatchNorm with given statistics (evaluation): exact, and keeps its input only for the gradient of gamma."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        epsilon: float,
        site: Site,
    ) -> Tensor:
        ctx.site = site
        inverse = (variance + epsilon).rsqrt()
        kept = x if ctx.needs_input_grad[1] else None
        if kept is not None:
            site.keeps(ARRAYS.nbytes(x))
        ctx.save_for_backward(kept, weight, mean, inverse)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, epsilon)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        x, weight, mean, inverse = ctx.saved_tensors
        axes = [axis for axis in range(grad.dim()) if axis != 1]
        slope = inverse if weight is None else weight * inverse
        grad_x = (grad * along_channels(slope, grad)).to(grad.dtype) if need_x else None
        grad_weight = grad_bias = None
        if need_weight:
            normalized = (x - along_channels(mean, x)) * along_channels(inverse, x)
            grad_weight = (grad * normalized).sum(axes)
        if need_bias:
            grad_bias = grad.sum(axes)
        return grad_x, grad_weight, grad_bias, None, None, None, None


def along_channels(values: Tensor, x: Tensor) -> Tensor:
    """Return one value a channel in a shape that broadcasts over ``x``."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


class Processes:
    """A process group of torch, whose members share the statistics of a batch."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def gathered(self, values: Tensor) -> Tensor:
        """Return the values of every process, of shape (processes, …)."""
        everyone = [torch.empty_like(values) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(everyone, values, group=self._group)
        return torch.stack(everyone)

    def summed(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        dist.all_reduce(values, group=self._group)
        return values


class Running:
    """The running statistics of a BatchNorm, of which ``momentum`` weighs the new values, and the number of batches."""

    __slots__ = ("batches", "direct", "mean", "momentum", "variance", "written")
    unbiased = True

    def __init__(self, mean: Tensor, variance: Tensor, momentum: float, batches: Tensor | None = None) -> None:
        self.mean, self.variance, self.momentum, self.batches = mean, variance, momentum, batches
        self.written = (mean, variance) if batches is None else (mean, variance, batches)
        alike = mean.dtype == variance.dtype and mean.dtype in FLOATING
        counted = batches is None or (batches.dtype == torch.int64 and batches.device == mean.device)
        self.direct = counted and alike and mean.is_contiguous() and variance.is_contiguous()

    def update(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Average new statistics in."""
        unbiased = variance * (count / max(1, count - 1))
        for running, new in ((self.mean, mean), (self.variance, unbiased)):
            running.copy_((1.0 - self.momentum) * running + self.momentum * new)
        if self.batches is not None:
            self.batches.add_(1)
