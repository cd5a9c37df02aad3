"""One call of a BatchNorm in training: what its forward makes of the batch, and how its backward reads the code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from actnn import kernels
from actnn.format import Layout
from actnn.kernels.contract import Array
from actnn.operations import batch_norm_rules as rules
from actnn.operations.kept import Kept, Reading, energies_of, on_host
from actnn.planning.records import Record
from actnn.planning.samples import Floats
from actnn.session.site import Readers, Site
from actnn.session.tensors import Order, Tensors


class Processes(Protocol):
    """The processes that share the statistics of a batch."""

    def gathered(self, values: Array) -> Array:
        """Return the values of every process, of shape (processes, …)."""

    def summed(self, values: Array) -> Array:
        """Return the sum over all processes."""


@dataclass(frozen=True)
class Backward:
    """What the backward of one call needs besides tensors; ``of_input`` tells that the code is one of the input."""

    site: Site
    readers: Readers
    processes: Processes | None
    order: Order
    layout: Layout
    count: int
    record: Record | None
    of_input: bool = False


@dataclass
class Call:
    """One call of a BatchNorm layer: its constants, and what its forward leaves for the layer.

    ``exact`` normalises by a given mean and variance. ``readers`` will tell who read the code. ``shared`` is a code of
    the input that another layer made, ``processes`` those that share the statistics. ``saved`` and ``kept`` hold
    tensors and must not outlive the forward pass.
    """

    site: Site
    order: Order
    epsilon: float
    readers: Readers
    exact: Callable[..., Array]
    shared: Kept | None = None
    processes: Processes | None = None
    statistics: rules.Statistics | None = None
    kept: Kept | None = None
    backward: Backward | None = None
    saved: tuple[Array | None, ...] = ()

    def normalize(self, x: Array, weight: Array | None, bias: Array | None, needed: bool) -> Array:
        """Return the output; leave the statistics and, where needed, the code and what backward needs."""
        order, tensors = self.order, self.order.tensors
        backend, flat, channels = kernels.select(tensors, x), order.flat(x), order.channels
        samples, elements = order.rows
        count = samples * elements // channels.count
        mean, variance, low, high = backend.channel_statistics(tensors, flat, channels)
        statistics = rules.Statistics(mean, variance, low, high, count)
        if self.processes is not None:
            statistics = joined(tensors, statistics, self.processes)
        self.statistics, mean = statistics, statistics.mean
        if not needed:
            return self.exact(x, mean, statistics.variance, weight, bias)
        state = (self.site, self.readers, self.processes, order)
        if self.shared is not None:
            return self._normalize_shared(self.shared, state, x, weight, bias)
        session, family = self.site.session, self.site.family()
        gamma, beta = tensors.per_channel(weight, 1.0, mean), tensors.per_channel(bias, 0.0, mean)
        normalization, inverse = rules.prepare(tensors, statistics, self.epsilon, gamma, beta, family)
        average = session.layout(self.site, samples, elements, family)

        def ranges(stride: int) -> Floats:
            # readers of the output see gamma times the noise
            weight = (channels, normalization, gamma * gamma)
            return on_host(tensors, backend.ranges(tensors, flat, average, stride, *weight))

        layout, record = session.plan(self.site, samples, elements, family, ranges)
        y = order.unfilled(x)
        buffer = session.store.allocate(tensors, layout.nbytes, flat)
        key = session.key(self.site)
        code = backend.normalize(tensors, flat, order.flat(y), channels, normalization, layout, key, buffer)
        code = self.site.store(tensors, code)
        threshold = None if family.affine else normalization.threshold
        self.backward = Backward(*state, layout, statistics.count, record)
        self.saved = (code, weight, inverse, threshold)
        self.kept = Kept(Reading(order, layout, normalized=True, record=record), (code, weight, bias, threshold))
        return y

    def _normalize_shared(
        self,
        shared: Kept,
        state: tuple[Site, Readers, Processes | None, Order],
        x: Array,
        weight: Array | None,
        bias: Array | None,
    ) -> Array:
        """Return the output; let backward read a code of the input that is there already."""
        statistics, reading = self.statistics, shared.reading
        assert statistics is not None
        assert reading.layout is not None
        inverse = rules.inverse_deviation(self.order.tensors, statistics.variance, self.epsilon)
        self.backward = Backward(*state, reading.layout, statistics.count, reading.record, of_input=True)
        self.saved = (shared.tensors[0], weight, inverse, statistics.mean)
        return self.exact(x, statistics.mean, statistics.variance, weight, bias)

    def account(self) -> None:
        """Note what is kept for backward, and the statistics that exact training would keep."""
        _, _, inverse, extra = self.saved
        of_code, small = 0, self.order.tensors.nbytes(inverse)
        if self.shared is None and self.backward is not None:
            self.site.codes(self.backward.layout)
            of_code = self.backward.layout.nbytes
        self.site.keeps(of_code + small * (1 if extra is None else 2), 2 * small)


def gradients(
    state: Backward, saved: Sequence[Array | None], grad: Array, needed: Sequence[bool], rectified: bool
) -> tuple[Array | None, Array | None, Array | None]:
    """Return the gradients of input, gamma and beta; with ``rectified``, behind the ReLU that read the code's sides."""
    need_x, need_weight, need_bias = needed
    code, weight, inverse, extra = saved
    tensors = state.order.tensors
    code = state.site.session.store.get(tensors, code)
    state.site.confirm(state.readers)
    flat, channels, backend = state.order.flat(grad), state.order.channels, kernels.select(tensors, grad)
    gamma = tensors.per_channel(weight, 1.0, inverse)
    if state.of_input:
        scheme = rules.scheme_of_input(inverse, gamma, extra)
    else:
        scheme = rules.scheme_of(tensors, inverse, gamma, extra)
    sums = backend.gradient_sums(tensors, flat, channels, code, state.layout, rectified)
    grad_weight, grad_bias = rules.parameter_gradients(scheme, *sums)
    if state.record is not None and state.site.session.planner.observing:
        observe(state, state.record, grad, scheme, grad_weight, inverse, need_weight, rectified)
    grad_x = None
    if need_x:
        joint = (grad_weight, grad_bias)
        if state.processes is not None:
            both = state.processes.summed(tensors.stack(joint, 0))
            joint = both[0], both[1]
        coefficients = rules.input_coefficients(scheme, *joint, state.count)
        grad_x = state.order.shaped(
            backend.gradient(tensors, flat, channels, code, state.layout, rectified, coefficients)
        )
    return grad_x, grad_weight if need_weight else None, grad_bias if need_bias else None


def observe(
    state: Backward,
    record: Record,
    grad: Array,
    scheme: rules.Scheme,
    grad_weight: Array,
    inverse: Array,
    need_weight: bool,
    rectified: bool,
) -> None:
    """Tell the planner the gradient with which a BatchNorm read a code."""
    tensors = state.order.tensors
    scale = float((inverse * inverse).mean()) if state.of_input else 1.0
    state.site.session.planner.observe_batch_norm(
        record,
        state.site,
        energies_of(tensors, state.site, grad),
        scale,
        lambda: (on_host(tensors, scheme.slope), on_host(tensors, grad_weight / state.count)),
        learns=need_weight,
        masked=rectified,
        sides=state.readers.sides,
    )


def joined(tensors: Tensors, local: rules.Statistics, processes: Processes) -> rules.Statistics:
    """Return the statistics of the joined batch of all processes."""
    count = tensors.per_channel(None, float(local.count), local.mean[:1])
    mine = tensors.concatenate([local.mean, local.variance, local.low, local.high, count], 0)
    table = processes.gathered(mine)
    channels = len(local.mean)
    counts = table[:, -1:]
    means, variances, lows, highs = (table[:, part * channels : (part + 1) * channels] for part in range(4))
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    variance = ((variances + (means - mean) ** 2) * counts).sum(0) / total
    low, high = tensors.amin(tensors.transpose(lows, (1, 0))), tensors.amax(tensors.transpose(highs, (1, 0)))
    return rules.Statistics(mean, variance, low, high, int(total))
