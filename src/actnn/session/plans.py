"""Plans: what is decided once for each form of tensor that a site codes, so that a step only looks it up."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from actnn import kernels
from actnn.format import Family, Layout, index_bytes, uniform_layout
from actnn.kernels.contract import AnyLayout, Array, Backend, Division
from actnn.planning.learnt import signs
from actnn.planning.records import Record
from actnn.session.site import Site
from actnn.session.tensors import Form, Order, Tensors, check_floating
from actnn.settings import Policy


class CodePlan:
    """How one site codes tensors of one form: their order, the kernels that serve them, and the size of a code.

    ``smaller`` tells that a code, of the family ``smallest``, is smaller than the tensor itself. ``direct`` tells that
    kernels read the tensor as it lies; otherwise it is flattened first. ``planes`` holds for the planner's ``epoch``,
    and so does ``division`` where all samples weigh the same.
    """

    __slots__ = (
        *("backend", "direct", "division", "elements", "epoch", "exact_bytes", "family", "form", "layout"),
        *("order", "planes", "reading", "signs", "site", "smaller"),
    )

    def __init__(
        self, tensors: Tensors, site: Site, x: Array, form: Form, order: Order, family: Family, smallest: Family
    ) -> None:
        check_floating(tensors, x, site.name)
        samples, elements = order.rows
        self.site, self.form, self.order, self.family = site, form, order, family
        self.backend: Backend = kernels.select(tensors, x)
        self.direct = self.backend.any_shape and order.dense(x)
        self.exact_bytes = tensors.nbytes(x)
        self.elements = samples * elements
        self.signs = signs(family, site.bits) * self.elements
        self.layout = self._average(family)
        self.smaller = self._average(smallest).nbytes < self.exact_bytes
        self.epoch, self.planes = -1, self.layout.planes
        self.division: Division | None = None
        # how codes of the fixed width are read, made by whoever makes the first one
        self.reading: Any = None

    def _average(self, family: Family) -> Layout:
        """Return the layout of a code at the average width, of which planning may make another."""
        width, rounding = math.ceil(self.site.asked(family)), self.site.session.policy.rounding
        return uniform_layout(*self.order.rows, family, width, rounding)

    def planned(self) -> tuple[AnyLayout, Record | None, Division | None]:
        """Return the layout of the next code where widths are planned, its record and how its planes are divided."""
        planner, layout = self.site.session.planner, self.layout
        if self.epoch != planner.epoch or planner.budget is not None:
            self.planes = planner.planes(self.site, layout.samples, layout.elements, self.family)
            self.epoch, self.division = planner.epoch, None
        record = planner.record(self.site, layout, self.planes)
        if record.indices is not None:
            return record.layout, record, planner.division(record)
        if self.division is None:
            self.division = planner.division(record)
        return record.layout, record, self.division

    def encode(self, tensors: Tensors, x: Array) -> tuple[Array, AnyLayout, Record | None]:
        """Return a code of ``x``, its layout, and its record where widths are planned."""
        session = self.site.session
        if session.closed:
            session.check_open()
        layout, record, division = self.planned() if session.planner.active else (self.layout, None, None)
        return self._written(tensors, x, layout, division), layout, record

    def encode_fixed(self, tensors: Tensors, x: Array) -> Array:
        """Return a code of ``x`` at the width that the site was made with, of which no planner knows."""
        self.site.session.check_open()
        return self._written(tensors, x, self.layout, None)

    def _written(self, tensors: Tensors, x: Array, layout: AnyLayout, division: Division | None) -> Array:
        site, session = self.site, self.site.session
        store = session.store
        buffer = store.allocate(tensors, layout.nbytes, x) if store.allocates else None
        values = x if self.direct else self.order.flat(x)
        if session.watch is None:
            buffer = self.backend.encode(tensors, values, layout, session.key(site), buffer, division)
        else:
            work = partial(self.backend.encode, tensors, values, layout, session.key(site), buffer, division)
            buffer = session.watch(site, "encode", work)
        return buffer

    def account(self, layout: AnyLayout, more_bytes: int = 0, exact_bytes: int = 0) -> None:
        """Add a code, and what is kept beside it, to the account of the site."""
        site, kept_bytes = self.site, layout.nbytes + more_bytes
        account = site.current_account()
        account.elements += self.elements
        account.planes += layout.planes * layout.elements
        account.signs += self.signs
        account.kept_bytes += kept_bytes
        account.exact_bytes += exact_bytes
        if site.session.policy.log_memory:
            site.session.log_kept(site, kept_bytes, exact_bytes)


class MaskPlan:
    """How one site keeps one bit for each element of tensors of one form."""

    __slots__ = ("backend", "direct", "nbytes", "order", "reading", "rows")

    def __init__(self, tensors: Tensors, site: Site, x: Array) -> None:
        check_floating(tensors, x, site.name)
        self.order = tensors.order(x, batched=len(x.shape) > 1)
        self.backend: Backend = kernels.select(tensors, x)
        self.direct = self.backend.any_shape and self.order.dense(x)
        self.rows = self.order.rows
        self.nbytes = index_bytes(*self.rows, 1)
        self.reading: Any = None


def mask_plan(tensors: Tensors, site: Site, x: Array, form: Form) -> MaskPlan:
    """Return the plan of a site's masks of tensors of a form."""
    key = form, "mask"
    plan: MaskPlan | None = site.plans.get(key)
    return plan or site.remember(key, MaskPlan(tensors, site, x))


def code_plan(
    tensors: Tensors,
    site: Site,
    x: Array,
    form: Form,
    family: Family,
    order: Order | None = None,
    smallest: Callable[[Policy], Family] | None = None,
    check: Callable[[Array], None] | None = None,
) -> CodePlan:
    """Return the plan of a site's codes of tensors of a form; ``order`` says what the tensor does not tell itself.

    ``smallest`` is the family that a code must be smaller in than the tensor, where it is not ``family``. ``check``
    raises an error for a tensor that the site does not take; it sees the first of each form.
    """
    key = form, family.name, order is not None and order.channels_last
    plan: CodePlan | None = site.plans.get(key)
    if plan is None:
        if check is not None:
            check(x)
        order = order or tensors.order(x, batched=len(x.shape) > 1)
        least = family if smallest is None else smallest(site.session.policy)
        plan = site.remember(key, CodePlan(tensors, site, x, form, order, family, least))
    return plan
