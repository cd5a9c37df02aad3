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
from actnn.core.format import Layout
from actnn.core.records import Record
from actnn.core.samples import Floats
from actnn.core.site import Readers, Site
from actnn.torch.functions.kept import Kept, Reading, energies_of, first_order, on_host
from actnn.torch.tensors import ARRAYS, Order, nbytes, per_channel


@dataclass(frozen=True)
class Backward:
    """What the backward of one call needs besides tensors; ``of_input`` tells that the code is one of the input."""

    site: Site
    readers: Readers
    processes: Any
    order: Order
    layout: Layout
    count: int
    record: Record | None
    of_input: bool = False


@dataclass
class Call:
    """One call of a BatchNorm layer: its constants, and what its forward leaves for the layer.

    ``readers`` will tell who read the code. ``shared`` is a code of the input that another layer made, ``processes``
    the group that shares the statistics. ``saved`` and ``kept`` hold tensors and must not outlive the forward pass.
    """

    site: Site
    epsilon: float
    readers: Readers
    shared: Kept | None = None
    processes: Any = None
    statistics: rules.Statistics | None = None
    kept: Kept | None = None
    backward: Backward | None = None
    saved: tuple[Tensor | None, ...] = ()

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, needed: bool) -> Tensor:
        """Return the output; leave the statistics and, where needed, the code and what backward needs."""
        order = Order.of(x)
        backend, flat, channels = kernels.select(ARRAYS, x), order.flat(x), order.channels
        count = x.numel() // channels.count
        statistics = rules.Statistics(*backend.channel_statistics(ARRAYS, flat, channels), count)
        if self.processes is not None:
            statistics = joined(statistics, self.processes)
        self.statistics, mean = statistics, statistics.mean
        state = (self.site, self.readers, self.processes, order)
        if self.shared is not None:
            inverse = (statistics.variance + self.epsilon).rsqrt()
            reading = self.shared.reading
            self.backward = Backward(*state, reading.layout, statistics.count, reading.record, of_input=True)
            self.saved = (self.shared.tensors[0], weight, inverse, mean)
            return F.batch_norm(x, mean, statistics.variance, weight, bias, False, 0.0, self.epsilon)
        session, family = self.site.session, self.site.family()
        gamma, beta = per_channel(weight, 1.0, mean), per_channel(bias, 0.0, mean)
        normalization, inverse = rules.prepare(ARRAYS, statistics, self.epsilon, gamma, beta, family)
        average = session.layout(self.site, *order.rows, family)

        def ranges(stride: int) -> Floats:
            # readers of the output see gamma times the noise
            weight = (channels, normalization, gamma.square())
            return on_host(backend.ranges(ARRAYS, flat, average, stride, *weight))

        layout, record = session.plan(self.site, *order.rows, family, ranges)
        y = order.unfilled(x)
        buffer = session.store.allocate(ARRAYS, layout.nbytes, flat)
        key = session.key(self.site)
        code = backend.normalize(ARRAYS, flat, order.flat(y), channels, normalization, layout, key, buffer)
        if not needed:
            return y
        code = self.site.store(ARRAYS, code)
        threshold = None if family.affine else normalization.threshold
        self.backward = Backward(*state, layout, statistics.count, record)
        self.saved = (code, weight, inverse, threshold)
        self.kept = Kept(Reading(order, layout, normalized=True, record=record), (code, weight, bias, threshold))
        return y

    def account(self) -> None:
        """Note what is kept for backward, and the statistics that exact training would keep."""
        _, _, inverse, extra = self.saved
        of_code, small = 0, nbytes(inverse)
        if self.shared is None:
            self.site.codes(self.backward.layout)
            of_code = self.backward.layout.nbytes
        self.site.keeps(of_code + small * (1 if extra is None else 2), 2 * small)


class BatchNormFunction(Function):
    """BatchNorm in training: normalises by the batch and keeps a code of the normalised input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call) -> Tensor:
        # where only beta learns no code is needed: later readers make their own
        needed = any(ctx.needs_input_grad[:2])
        y = call.normalize(x, weight, bias, needed)
        ctx.site, ctx.state = call.site, call.backward
        ctx.set_materialize_grads(False)
        if needed:
            ctx.save_for_backward(*call.saved)
            call.account()
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None
        if not any(ctx.needs_input_grad[:2]):
            return None, None, grad.sum([axis for axis in range(grad.dim()) if axis != 1]), None
        return *gradients(ctx.state, ctx.saved_tensors, grad, ctx.needs_input_grad[:3], rectified=False), None


class RectifiedBatchNormFunction(Function):
    """A ReLU that overwrites a BatchNorm's output, and takes the gradient past that layer in the same passes.

    Its graph leads to the BatchNorm's input and parameters. Other readers of the output lead there through the
    BatchNorm's own function; both are linear in the gradient, so autograd's sum of them is right.
    """

    @staticmethod
    def forward(
        ctx: Any, entrance: Tensor, weight: Tensor | None, bias: Tensor | None, y: Tensor, bypass: Bypass
    ) -> Tensor:
        ctx.site, ctx.state = bypass.state.site, bypass.state
        ctx.save_for_backward(*bypass.saved)
        ctx.mark_dirty(y)
        return F.relu_(y)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *gradients(ctx.state, ctx.saved_tensors, grad, ctx.needs_input_grad[:3], rectified=True), None, None


@dataclass(frozen=True)
class Bypass:
    """What a ReLU needs in order to take over the backward of the BatchNorm whose output it overwrites."""

    entrance: Tensor
    weight: Tensor | None
    bias: Tensor | None
    state: Backward
    saved: tuple[Tensor | None, ...]

    def rectify(self, y: Tensor) -> Tensor:
        """Return max(y, 0), written over ``y``."""
        return RectifiedBatchNormFunction.apply(self.entrance, self.weight, self.bias, y, self)


class EntranceFunction(Function):
    """A tensor without memory that stands for ``x`` in the graph: gradients given to it reach ``x`` unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.new_empty(1).expand(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def gradients(
    state: Backward, saved: tuple[Tensor | None, ...], grad: Tensor, needed: tuple[bool, ...], rectified: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, gamma and beta; with ``rectified``, behind the ReLU that read the code's sides."""
    need_x, need_weight, need_bias = needed
    code, weight, inverse, extra = saved
    code = state.site.session.store.get(ARRAYS, code)
    state.site.confirm(state.readers)
    flat, channels, backend = state.order.flat(grad), state.order.channels, kernels.select(ARRAYS, grad)
    gamma = per_channel(weight, 1.0, inverse)
    if state.of_input:
        scheme = rules.scheme_of_input(inverse, gamma, extra)
    else:
        scheme = rules.scheme_of(ARRAYS, inverse, gamma, extra)
    sums = backend.gradient_sums(ARRAYS, flat, channels, code, state.layout, rectified)
    grad_weight, grad_bias = rules.parameter_gradients(scheme, *sums)
    if state.record is not None and state.site.session.planner.observing:
        observe(state, grad, scheme, grad_weight, inverse, need_weight, rectified)
    grad_x = None
    if need_x:
        joint = (grad_weight, grad_bias)
        if state.processes is not None:
            joint = summed(torch.stack(joint), state.processes).unbind()
        coefficients = rules.input_coefficients(scheme, *joint, state.count)
        grad_x = state.order.shaped(
            backend.gradient(ARRAYS, flat, channels, code, state.layout, rectified, coefficients)
        )
    return grad_x, grad_weight if need_weight else None, grad_bias if need_bias else None


def observe(
    state: Backward,
    grad: Tensor,
    scheme: rules.Scheme,
    grad_weight: Tensor,
    inverse: Tensor,
    need_weight: bool,
    rectified: bool,
) -> None:
    """Tell the planner the gradient with which a BatchNorm read a code."""
    scale = float(inverse.square().mean()) if state.of_input else 1.0
    state.site.session.planner.observe_batch_norm(
        state.record,
        state.site,
        energies_of(state.site, grad),
        scale,
        lambda: (on_host(scheme.slope), on_host(grad_weight / state.count)),
        learns=need_weight,
        masked=rectified,
        sides=state.readers.sides,
    )


class FixedBatchNormFunction(Function):
    """BatchNorm with given statistics (evaluation): exact, and keeps its input only for the gradient of gamma."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, call: Call
    ) -> Tensor:
        ctx.site = call.site
        inverse = (variance + call.epsilon).rsqrt()
        kept = x if ctx.needs_input_grad[1] else None
        if kept is not None:
            call.site.keeps(nbytes(x))
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
