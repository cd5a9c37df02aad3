"""BatchNorm that keeps a code of its normalised input, alone or joined over processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd import Function
from torch.nn import functional as F

from actnn import kernels
from actnn.core import batch_norm as rules
from actnn.core.format import AFFINE
from actnn.core.site import Site
from actnn.torch.functions.kept import first_order
from actnn.torch.tensors import ARRAYS, Order, nbytes


@dataclass(frozen=True)
class Normalized:
    """One call of a BatchNorm layer: its constants, and the processes that share its statistics."""

    site: Site
    epsilon: float
    processes: Any = None


class BatchNormFunction(Function):
    """BatchNorm in training: normalises by the batch, returns (y, mean, biased variance, count)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Normalized
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        site = ctx.site = call.site
        ctx.call, ctx.order = call, Order.of(x)
        backend, flat = kernels.select(ARRAYS, x), ctx.order.flat(x)
        channels = ctx.order.channels
        local = rules.Statistics(*backend.channel_statistics(ARRAYS, flat, channels), x.numel() // channels.count)
        joint = local if call.processes is None else joined(local, call.processes)
        gamma, beta = per_channel(weight, 1.0, joint.mean), per_channel(bias, 0.0, joint.mean)
        normalization, scheme = rules.prepare(ARRAYS, joint, call.epsilon, gamma, beta, AFFINE)
        layout = site.session.layout(site, *ctx.order.rows, AFFINE)
        y = ctx.order.unfilled(x)
        key = site.session.key(site)
        code = backend.normalize(ARRAYS, flat, ctx.order.flat(y), channels, normalization, layout, key)
        ctx.layout, ctx.count = layout, joint.count
        if any(ctx.needs_input_grad[:2]):
            ctx.save_for_backward(code, weight, scheme.inverse_deviation, scheme.threshold)
            small = nbytes(joint.mean)
            site.record(nbytes(x) + 2 * small, nbytes(code) + small * (1 if scheme.threshold is None else 2))
        ctx.mark_non_differentiable(joint.mean, joint.variance)
        return y, joint.mean, joint.variance, joint.count

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        flat, channels = ctx.order.flat(grad), ctx.order.channels
        if not (need_x or need_weight):
            axes = [axis for axis in range(grad.dim()) if axis != 1]
            return None, None, grad.sum(axes) if need_bias else None, None
        code, weight, inverse, threshold = ctx.saved_tensors
        scheme = rules.Scheme(inverse, per_channel(weight, 1.0, inverse), threshold)
        backend = kernels.select(ARRAYS, grad)
        sums = backend.gradient_sums(ARRAYS, flat, channels, code, ctx.layout, False)
        grad_weight, grad_bias = rules.parameter_gradients(ARRAYS, scheme, *sums)
        grad_x = None
        if need_x:
            joint = (grad_weight, grad_bias)
            if ctx.call.processes is not None:
                joint = summed(torch.stack(joint), ctx.call.processes).unbind()
            coefficients = rules.input_coefficients(ARRAYS, scheme, *joint, ctx.count)
            grad_x = ctx.order.shaped(
                backend.gradient(ARRAYS, flat, channels, code, ctx.layout, False, coefficients)
            )
        return grad_x, grad_weight if need_weight else None, grad_bias if need_bias else None, None


class FixedBatchNormFunction(Function):
    """BatchNorm with given statistics (evaluation): exact, and keeps its input only for the gradient of gamma."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, call: Normalized
    ) -> Tensor:
        ctx.site = call.site
        inverse = (variance + call.epsilon).rsqrt()
        kept = x if ctx.needs_input_grad[1] else None
        if kept is not None:
            call.site.record(nbytes(x), nbytes(x))
        ctx.save_for_backward(kept, weight, mean, inverse)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, call.epsilon)

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
        return grad_x, grad_weight, grad_bias, None, None, None


def per_channel(parameter: Tensor | None, default: float, like: Tensor) -> Tensor:
    """Return a parameter as float32, or its default where the layer has none."""
    if parameter is None:
        return torch.full_like(like, default)
    return parameter.detach().to(torch.float32)


def along_channels(values: Tensor, x: Tensor) -> Tensor:
    """Return one value a channel in a shape that broadcasts over ``x``."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def joined(local: rules.Statistics, processes: Any) -> rules.Statistics:
    """Return the statistics of the joined batch of all processes."""
    count = torch.full_like(local.mean[:1], local.count)
    mine = torch.cat([local.mean, local.variance, local.low, local.high, count])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(processes))]
    dist.all_gather(everyone, mine, group=processes)
    table = torch.stack(everyone)
    counts = table[:, -1:]
    means, variances, lows, highs = table[:, :-1].chunk(4, dim=1)
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    variance = ((variances + (means - mean) ** 2) * counts).sum(0) / total
    return rules.Statistics(mean, variance, lows.amin(0), highs.amax(0), int(total))


def summed(values: Tensor, processes: Any) -> Tensor:
    """Return the sum over all processes."""
    dist.all_reduce(values, group=processes)
    return values
