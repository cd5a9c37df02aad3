"""BatchNorm.

Keeps: a code of the normalised input x̂, and the inverse deviations; only the latter where somebody has a code of the
input itself.
Shares: its code with the rectifier behind it, which reads sides, and with the maps that read the output, through gamma
and beta.
Reads in backward: the code, once for the sums and once for the gradient, without a decoded copy of full size.
Noise: gamma's gradient takes over 1 / elements of |g_n|² E_n, and the input gradient hands noise down to the map below
(docs/design.md, section 9).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from actnn.kernels.contract import AnyLayout, Array, BatchNorm, Span
from actnn.operations.kept import Kept, reading_of
from actnn.planning.noise import Floats, batch_norm_coefficient
from actnn.planning.records import BOTH_SIDES, POSITIVE_SIDE, Handing, Record
from actnn.session import families
from actnn.session.plans import CodePlan, code_plan
from actnn.session.site import Readers, Site
from actnn.session.tags import Noted, Tag
from actnn.session.tensors import Order, Tensors

FLOAT_BYTES = 4
# the rows of a channel's statistics, and of what the forward saves
MEAN, VARIANCE, LOWEST, HIGHEST = range(4)
INVERSE, EXTRA = range(2)


class Processes(Protocol):
    """The processes that share the statistics of a batch."""

    def gathered(self, values: Array) -> Array:
        """Return the values of every process, of shape (processes, …)."""

    def summed(self, values: Array) -> Array:
        """Return the sum over all processes."""


class Running(Protocol):
    """The running statistics of a layer, of which ``momentum`` weighs the new values.

    ``unbiased`` tells that the variance averaged is that of a sample. ``direct`` tells that kernels can write to
    ``mean`` and ``variance``, and to ``batches``, where somebody counts them; ``written`` are all of these.
    """

    mean: Array
    variance: Array
    batches: Array | None
    written: tuple[Array, ...]
    momentum: float
    unbiased: bool
    direct: bool

    def update(self, mean: Array, variance: Array, count: int) -> None:
        """Average new statistics in, and count their batch, where no kernel did."""


def batch_norm(
    tensors: Tensors,
    x: Array,
    order: Order | None,
    site: Site,
    epsilon: float,
    running: Running | None,
    processes: Processes | None,
    exact: Callable[..., Array],
    apply: Callable[[Array, Array | None, Array | None, Normalizing], tuple[Array, Any]],
    parameters: tuple[Array | None, Array | None],
    check: Callable[[Array], None] | None = None,
    overwrites: bool = False,
) -> Array | None:
    """Return ``x`` normalised by the batch; None where the plain layer serves, whose input is then kept.

    ``order`` says where the channels are, where the tensor does not tell itself. ``exact`` normalises by a given mean
    and variance. ``apply`` calls ``Normalizing.normalize`` with the ``parameters`` gamma and beta, recorded by
    autograd, and returns the output and, where an in-place ReLU may come, a shorter way for its gradient. ``check``
    raises an error for a tensor that the layer does not take; it sees the first of each form. With ``overwrites``
    nobody else will read ``x``.
    """
    session = site.session
    plan = code_plan(tensors, site, x, tensors.form(x), site.family(), order, families.of_normalized, check)
    # one object for all tensors of this form: the garbage collector walks through what lives through a forward
    form = plan.form
    tag = session.tags.current(tensors, x, form)
    exact_bytes = 0 if tag.counted else plan.exact_bytes
    tag.counted = True
    shared = None if tag.owner is None else shared_code(tag, site)
    if shared is None and processes is None and not plan.smaller:
        site.keeps(exact_bytes, exact_bytes)
        return None
    if session.closed:
        session.check_open()
    if session.planner.traces:
        site.below = tag.source
    call = Normalizing(tensors, site, plan, epsilon, exact, exact_bytes, running, shared, processes, overwrites)
    y, bypass = apply(x, *parameters, call)
    if call.kept is not None and session.policy.share_codes and tensors.recorded(y):
        # what kernels wrote directly has the form of the input
        form = form if plan.direct and shared is None else tensors.form(y)
        tag = session.tags.put(tensors, y, tensors.pointer(y), form)
        tag.kept, tag.owner, tag.readers, tag.bypass = call.kept, site, call.readers, bypass
        tag.result = Noted(y)
    # autograd holds what backward needs, and nothing else may
    call.kept = call.shared = None
    call.saved = ()
    return y


def shared_code(tag: Tag, site: Site) -> Kept | None:
    """Return a code of the input itself that another layer made."""
    if tag.readers is None:
        return None
    tag.readers.values = True
    kept: Kept | None = tag.kept
    if kept is None or not kept.reading.direct:
        return None
    assert tag.owner is not None
    tag.owner.read_by(site, 0)
    return kept


class Normalizing:
    """One call of a BatchNorm in training: what its forward is given, and what it leaves for layer and backward.

    ``exact`` normalises by a given mean and variance. ``exact_bytes`` are what exact training would keep of the input,
    where nobody has counted that yet. ``shared`` is a code of the input that another layer made, ``processes`` those
    that share the statistics. The code that backward reads has ``layout``, None where it reads none, and ``record``; it
    is one ``of_input``, or of the normalised input, and ``count`` values made each channel's statistics; where only an
    accelerator knows their number, ``joint`` is a number there, ``count`` over that of all processes. ``shared``,
    ``saved`` and ``kept`` hold tensors as long as the forward runs. ``overwrites`` lets the output take the
    place of the input.
    """

    # what most calls leave as it is here
    kept: Kept | None = None
    layout: AnyLayout | None = None
    record: Record | None = None
    of_input, count = False, 0
    joint: Array | None = None
    saved: tuple[Array | None, ...] = ()

    def __init__(
        self,
        tensors: Tensors,
        site: Site,
        plan: CodePlan,
        epsilon: float,
        exact: Callable[..., Array],
        exact_bytes: int,
        running: Running | None = None,
        shared: Kept | None = None,
        processes: Processes | None = None,
        overwrites: bool = False,
    ) -> None:
        self.tensors = tensors
        self.site = site
        self.plan = plan
        self.epsilon = epsilon
        self.exact = exact
        self.exact_bytes = exact_bytes
        self.running = running
        self.shared = shared
        self.processes = processes
        self.overwrites = overwrites
        self.readers = Readers()

    def normalize(self, x: Array, weight: Array | None, bias: Array | None, needed: bool) -> Array:
        """Return the output, and average the running statistics; leave what backward needs where that is needed."""
        if not needed or self.shared is not None:
            return self._exactly(x, weight, bias, needed)
        tensors, plan, site, running = self.tensors, self.plan, self.site, self.running
        session, order = site.session, plan.order
        layout, record, division = plan.planned() if session.planner.active else (plan.layout, None, None)
        channels, store = order.channels, session.store
        count, statistics = plan.elements // channels.count, None
        if self.processes is not None or not (running is None or running.direct):
            statistics, count = self._statistics(x)
        rows = 1 if plan.family.affine else 2
        constants = tensors.empty((rows, channels.count), "float32", x)
        averages = batches = None
        if statistics is None and running is not None:
            averages, batches = (running.mean, running.variance), running.batches
        parameters = BatchNorm(
            channels,
            self.epsilon,
            count,
            None if weight is None else tensors.vector(weight),
            None if bias is None else tensors.vector(bias),
            averages,
            0.0 if running is None else running.momentum,
            statistics,
            constants,
            running is None or running.unbiased,
            batches=batches,
        )
        nbytes = layout.nbytes
        buffer = store.allocate(tensors, nbytes, x) if store.allocates else tensors.bytes(nbytes, x)
        if plan.direct:
            values, y = x, tensors.over(x) if self.overwrites else tensors.alike(x)
            out = y
        else:
            values, y = order.flat(x), tensors.unfilled(order, tensors.dtype(x), x)
            out = order.flat(y)
        plan.backend.batch_norm(tensors, values, out, layout, parameters, session.key(site), buffer, division)
        if averages is not None and running is not None:
            tensors.touch(running.written)
        saved = buffer if store.keeps_in_place else site.store(tensors, buffer)
        small = FLOAT_BYTES * channels.count
        plan.account(layout, rows * small, self.exact_bytes + 2 * small)
        self.layout, self.count, self.record = layout, count, record
        self.saved = (saved, weight, constants)
        known = record is None and plan.reading is not None
        reading = plan.reading if known else reading_of(plan, layout, record, normalized=True)
        self.kept = Kept(reading, (saved, weight, bias, constants))
        return y

    def _statistics(self, x: Array) -> tuple[Array, int]:
        """Return mean, variance, lowest and highest value of each channel of the whole batch, and its count.

        Averages the running statistics.
        """
        tensors, plan = self.tensors, self.plan
        local = plan.backend.channel_statistics(tensors, plan.order.flat(x), plan.order.channels)
        statistics, count = tensors.stack(local, 0), plan.elements // plan.order.channels.count
        correction = None
        if self.processes is not None:
            statistics, total, processes = joined(tensors, statistics, count, self.processes)
            if tensors.on_host(total):
                count = int(total)
            else:
                # as if all had as many values as this one: the host would have to wait for their number
                count *= processes
                self.joint = float(count) / total
                correction = (1.0 - 1.0 / max(2, count)) * total / (total - 1.0)
        if self.running is not None:
            variance = statistics[VARIANCE]
            if correction is not None and self.running.unbiased:
                variance = variance * correction
            self.running.update(statistics[MEAN], variance, count)
        return statistics, count

    def _exactly(self, x: Array, weight: Array | None, bias: Array | None, needed: bool) -> Array:
        """Return the output, of which nobody needs a code, or a code of the input serves."""
        statistics, count = self._statistics(x)
        mean, variance = statistics[MEAN], statistics[VARIANCE]
        self.site.keeps(0, self.exact_bytes)
        if needed and self.shared is not None:
            tensors, reading = self.tensors, self.shared.reading
            assert reading.layout is not None
            inverse = 1.0 / tensors.sqrt(variance + self.epsilon)
            constants = tensors.stack((inverse, mean), 0)
            self.layout, self.count, self.record, self.of_input = reading.layout, count, reading.record, True
            self.saved = (self.shared.tensors[0], weight, constants)
            small = FLOAT_BYTES * self.plan.order.channels.count
            self.site.keeps(2 * small, 2 * small)
        return self.exact(x, mean, variance, weight, bias)


def gradients(
    state: Normalizing,
    saved: Sequence[Array | None],
    grad: Array,
    needed: Sequence[bool],
    rectified: bool,
    overwrites: bool = False,
) -> tuple[Array | None, Array | None, Array | None]:
    """Return the gradients of input, gamma and beta; with ``rectified``, behind the ReLU that read the code's sides.

    With ``overwrites`` nobody else will read ``grad``, whose place the gradient of the input may take.
    """
    need_x, need_weight, need_bias = needed
    code, weight, constants = saved
    tensors, plan, site = state.tensors, state.plan, state.site
    assert state.layout is not None
    store, order, backend = site.session.store, plan.order, plan.backend
    if not store.keeps_in_place:
        code = store.get(tensors, code)
    site.confirm(state.readers)
    channels = order.channels
    gamma = None if weight is None else tensors.vector(weight)
    parameters = BatchNorm(
        channels, state.epsilon, state.count, gamma, None, None, 0.0, None, constants, share=state.joint
    )
    grads = tensors.empty((2, channels.count), "float32", grad)
    energies, stride = (None, 1) if state.record is None else observed(state)
    direct = backend.any_shape and order.dense(grad)
    values, grad_x, out = grad if direct else order.flat(grad), None, None
    if need_x:
        if direct:
            out = grad_x = grad if overwrites else tensors.alike(grad)
        else:
            grad_x = tensors.unfilled(order, tensors.dtype(grad), grad)
            out = order.flat(grad_x)
    fixed = tensors, values, code, state.layout, parameters, rectified, state.of_input
    if state.processes is None:
        backend.batch_norm_backward(*fixed, grads, out, None, stride, energies)
    else:
        backend.batch_norm_backward(*fixed, grads, None, None, stride, energies)
        if need_x:
            # an own copy: summing works in place
            sums = state.processes.summed(grads + 0.0)
            backend.batch_norm_backward(*fixed, grads, out, sums)
    if energies is not None:
        observe(state, weight, constants, grads, energies, need_weight, rectified)
    return grad_x, grads[0] if need_weight else None, grads[1] if need_bias else None


def observed(state: Normalizing) -> tuple[Span | None, int]:
    """Return room for the gradient's energies where the planner wants them, and which groups tell them."""
    planner = state.site.session.planner
    if not planner.observing:
        return None, 1
    samples, elements = state.plan.order.rows
    return planner.statistics.span(samples), planner.stride(elements)


def observe(
    state: Normalizing,
    weight: Array | None,
    constants: Array,
    grads: Array,
    energies: Span,
    learns: bool,
    rectified: bool,
) -> None:
    """Tell the planner the gradient with which a BatchNorm read a code.

    Behind a ReLU only the positive side has a gradient. Where one backward serves both, the energies still hold what
    the ReLU takes away.
    """
    tensors, record, sides, site = state.tensors, state.record, state.readers.sides, state.site
    assert record is not None
    planner, handing, scale = site.session.planner, None, None
    if planner.wants_handing(site):
        # copies: until they are read, an optimizer may change weights and gradients in place
        inverse, mean_product = constants[INVERSE], grads[0] / state.count
        slope = inverse if weight is None else tensors.cast(tensors.detach(weight), "float32") * inverse

        of_slope, of_product = planner.hold(tensors, slope), planner.hold(tensors, mean_product)

        def handing() -> tuple[Floats, Floats]:
            return of_slope(), of_product()

    if state.of_input:
        squared = planner.hold(tensors, (constants[INVERSE] * constants[INVERSE]).mean())

        def scale() -> float:
            return float(squared())

    coefficient = batch_norm_coefficient(record.layout.elements, rectified=sides and not rectified)
    columns = POSITIVE_SIDE if sides else BOTH_SIDES
    planner.observe(Handing(record, site, columns, coefficient, energies, handing, scale, learns))


def joined(tensors: Tensors, local: Array, count: int, processes: Processes) -> tuple[Array, Array, int]:
    """Return the statistics of the joined batch of all processes, its count as an array, and their number."""
    # not from the values, which may have overflowed
    counted = 0.0 * tensors.cast(tensors.isfinite(local[:1]), "float32") + float(count)
    table: Any = processes.gathered(tensors.concatenate([local, counted], 0))
    counts = table[:, -1]
    means, variances = table[:, MEAN], table[:, VARIANCE]
    total = counts.sum(0)
    mean = (means * counts).sum(0) / total
    variance = ((variances + (means - mean) ** 2) * counts).sum(0) / total
    low = tensors.amin(tensors.transpose(table[:, LOWEST], (1, 0)))
    high = tensors.amax(tensors.transpose(table[:, HIGHEST], (1, 0)))
    return tensors.stack((mean, variance, low, high), 0), total[0], len(table)
