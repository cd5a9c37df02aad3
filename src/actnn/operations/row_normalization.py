"""Normalisation over rows: LayerNorm, RMSNorm, GroupNorm, InstanceNorm.

Keeps: a code of the normalised input x̂, and the inverse deviation of each row.
Shares: its code with all maps and functions that read the output, through gamma and beta.
Reads in backward: the code, without a decoded copy of full size.
Noise: it comes through the readers of the output, and hardly through the own backward. That multiplies x̂ by a mean that
contains it, which gives a bias of Var(x̂) g / row; the kernel knows the variance of its code and subtracts that.
"""

from __future__ import annotations

from collections.abc import Sequence

from actnn.format import Family
from actnn.kernels.contract import AnyLayout, Array, Channels, RowNorm, Rows, Span
from actnn.operations.kept import Kept, Reading, energies_of, uncounted
from actnn.operations.rectifiers import tag_output
from actnn.planning.records import BOTH_SIDES, Observation, Passing, Record
from actnn.session.plans import CodePlan, code_plan
from actnn.session.site import Readers, Site
from actnn.session.tensors import Tensors

FLOAT_BYTES = 4
# of the gradient of an output, at least so much counts as left in that of the input
LEAST_LEFT = 1e-3
# bits that codes have more than others: all readers of the output share them
EXTRA = 3.0


class RowReading(Reading):
    """How the output of a normalisation over rows reads from its code."""

    __slots__ = ("_channels",)

    def __init__(self, plan: CodePlan, layout: AnyLayout, record: Record | None, rows: Rows) -> None:
        super().__init__(plan.order, plan.backend, layout, record, normalized=True)
        self._channels = Channels(rows.parameters, rows.inner)

    @property
    def channels(self) -> Channels:
        """Which elements of a sample have the same gamma and beta."""
        return self._channels


class RowNormalizing:
    """One call in training: ``saved``, ``kept`` and ``layout`` are there once ``normalize`` has run."""

    __slots__ = (
        *("centred", "epsilon", "exact_bytes", "kept", "layout", "plan", "readers", "record", "rows", "saved", "site"),
        "tensors",
    )

    def __init__(
        self, tensors: Tensors, site: Site, plan: CodePlan, rows: Rows, epsilon: float, centred: bool, exact_bytes: int
    ) -> None:
        self.tensors, self.site, self.plan, self.rows = tensors, site, plan, rows
        self.epsilon, self.centred, self.exact_bytes = epsilon, centred, exact_bytes
        self.readers = Readers()
        self.layout: AnyLayout | None = None
        self.record: Record | None = None
        self.kept: Kept | None = None
        self.saved: tuple[Array | None, ...] = ()

    def normalize(self, x: Array, weight: Array | None, bias: Array | None) -> Array:
        """Return the output; leave what backward and the readers of the output need."""
        tensors, plan, site = self.tensors, self.plan, self.site
        session, order = site.session, plan.order
        session.check_open()
        layout, self.record, division = plan.planned() if session.planner.active else (plan.layout, None, None)
        inverse = tensors.empty((plan.elements // max(1, self.rows.width),), "float32", x)
        buffer = session.store.allocate(tensors, layout.nbytes, x)
        y = tensors.unfilled(order, tensors.dtype(x), x)
        values, out = (x, y) if plan.direct else (order.flat(x), order.flat(y))
        parameters = self.parameters(weight, bias, inverse)
        plan.backend.row_norm(tensors, values, out, layout, parameters, session.key(site), buffer, division)
        code = site.store(tensors, buffer)
        small = FLOAT_BYTES * inverse.shape[0]
        plan.account(layout, small, self.exact_bytes + (2 * small if self.centred else small))
        self.layout, self.saved = layout, (code, weight, inverse)
        self.kept = Kept(RowReading(plan, layout, self.record, self.rows), (code, weight, bias, inverse))
        return y

    def parameters(self, weight: Array | None, bias: Array | None, inverse: Array) -> RowNorm:
        """Return what kernels take besides values."""
        tensors = self.tensors
        gamma = None if weight is None else tensors.vector(weight)
        beta = None if bias is None else tensors.vector(bias)
        return RowNorm(self.rows, self.epsilon, self.centred, gamma, beta, inverse)

    def gradients(
        self, saved: Sequence[Array | None], grad: Array, need_x: bool, need_parameters: bool
    ) -> tuple[Array | None, Array | None]:
        """Return the gradient of the input, and those of gamma and beta as (2, parameters)."""
        code, weight, inverse = saved
        assert self.layout is not None
        tensors, plan, site = self.tensors, self.plan, self.site
        store, order, backend = site.session.store, plan.order, plan.backend
        if not store.keeps_in_place:
            code = store.get(tensors, code)
        direct = backend.any_shape and order.dense(grad)
        values, grad_x, out, grads = grad if direct else order.flat(grad), None, None, None
        if need_x:
            grad_x = tensors.unfilled(order, tensors.dtype(grad), grad)
            out = grad_x if direct else order.flat(grad_x)
        if need_parameters:
            grads = tensors.empty((2, self.rows.parameters), "float32", grad)
        planner, energies, stride = site.session.planner, None, 1
        samples, elements = order.rows
        if self.record is not None and planner.observing:
            # one token may have all of a gradient
            energies = planner.statistics.span(samples)
        parameters = self.parameters(weight, None, inverse)
        backend.row_norm_backward(tensors, values, code, self.layout, parameters, grads, out, stride, energies)
        if energies is not None and self.record is not None:
            coefficient = 1 / elements if elements else 0.0
            planner.observe(Observation(self.record, site, BOTH_SIDES, coefficient, energies))
            if grads is not None and planner.weighing:
                planner.energy(site, energies_of(tensors, backend, site, grads[0], False))
            if grad_x is not None:
                self.hand_down(self.record, weight, inverse, grad_x, energies)
        return grad_x, grads

    def hand_down(self, record: Record, weight: Array | None, inverse: Array, grad_x: Array, energies: Span) -> None:
        """Tell the planner how noise in x̂ goes on: (γg - mean γg - x̂ mean(γg x̂)) / σ is the gradient of the input.

        Of γg, the part along x̂ is taken away, a share cos². The noise of x̂ comes with it, and a row-th of all of it
        through the mean. Where little is left, as behind a last LayerNorm, noise is large beside it.
        """
        tensors, site = self.tensors, self.site
        # read when the step is over: to read at once would let a backward wait for an accelerator
        slope = (inverse * inverse).mean()
        if weight is not None:
            slope = slope * tensors.cast(weight * weight, "float32").mean()
        of_slope = site.session.planner.hold(tensors, slope)
        left = energies_of(tensors, self.plan.backend, site, grad_x, False)
        width, elements = max(1, self.rows.width), max(1, self.plan.elements)

        def ratio() -> float:
            whole = float(of_slope()) * float(energies.values.sum())
            share = min(max(float(left.values.sum()) / whole, LEAST_LEFT), 1.0) if whole > 0 else 1.0
            return (1.0 - share + 1.0 / width) / (share * elements)

        site.session.planner.observe(Passing(record, site, BOTH_SIDES, ratio, left=left))


def begin(
    tensors: Tensors, x: Array, site: Site, rows: Rows, epsilon: float, centred: bool, family: Family
) -> RowNormalizing | None:
    """Return a call that keeps a code of what is normalised; None where that would not be smaller than the input."""
    form = tensors.form(x)
    plan = code_plan(tensors, site, x, form, family)
    if not plan.smaller:
        return None
    exact_bytes = uncounted(tensors, x, site.session.tags.current(tensors, x, form))
    return RowNormalizing(tensors, site, plan, rows, epsilon, centred, exact_bytes)


def tag_normalized(call: RowNormalizing, y: Array) -> None:
    """Let the readers of a normalised output find it in the code."""
    call.site.keeps(0, tag_output(call.tensors, y, call.kept, call.site, call.readers))
