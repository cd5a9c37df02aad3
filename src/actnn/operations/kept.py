"""What autograd keeps of an activation: tensors to save, and how to read them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from actnn import kernels
from actnn.errors import UnsupportedError
from actnn.format import AFFINE, Family, Part
from actnn.kernels.contract import AnyLayout, Array, Arrays, Backend, Channels, OutputAffine, Span
from actnn.planning.noise import Floats
from actnn.planning.records import OUTPUT, POSITIVE_OUTPUT, Observation, Passing, Record
from actnn.session.plans import CodePlan, code_plan, mask_plan
from actnn.session.site import Readers, Site
from actnn.session.tags import Tag
from actnn.session.tensors import Form, Order, Tensors, check_floating

# the positions of what is saved for a BatchNorm's output: its code, gamma, beta, and what the kernels saved
THRESHOLD_ROW = 1
# parts of a batch whose gradients tell how those of batches differ
SAMPLING_PARTS = 4
# axes of a batch of images
IMAGE_RANK = 4


class Reading:
    """How to read an activation from saved tensors; holds no tensor itself, so it may stay on a context.

    ``layout`` None: the one saved tensor is the activation. Otherwise it is the buffer of a code; with ``normalized``,
    that of a BatchNorm's coded value, and gamma, beta and what its forward saved are saved behind it. ``record`` is
    there where widths are planned.
    """

    __slots__ = ("_positive", "backend", "layout", "normalized", "order", "part", "record")

    def __init__(
        self,
        order: Order,
        backend: Backend,
        layout: AnyLayout | None = None,
        record: Record | None = None,
        normalized: bool = False,
        part: Part = Part.WHOLE,
    ) -> None:
        self.order, self.backend, self.layout, self.record = order, backend, layout, record
        self.normalized, self.part = normalized, part
        self._positive: Reading | None = None

    @property
    def positive(self) -> Reading:
        """How the positive part of the activation is read from the same code."""
        if self._positive is None:
            own = (self.order, self.backend, self.layout, self.record, self.normalized)
            self._positive = Reading(*own, Part.POSITIVE)
        return self._positive

    @property
    def channels(self) -> Channels:
        """Which elements of a sample have the same gamma and beta."""
        return self.order.channels

    @property
    def signed(self) -> bool:
        """Whether ``word >= N`` tells exactly where the activation is positive."""
        return self.layout is not None and not self.layout.family.affine

    @property
    def direct(self) -> bool:
        """Whether the code's values are those of the activation, with nothing between."""
        return self.layout is not None and not self.normalized and self.part is Part.WHOLE

    def value(self, site: Site, saved: Sequence[Array], dtype: str, samples: range | None = None) -> Array:
        """Return the activation, or some samples of it, ``saved`` beginning with the buffer itself."""
        layout = self.layout
        if layout is None:
            x = saved[0] if samples is None or not self.order.batched else saved[0][samples.start : samples.stop]
            return self.order.tensors.cast(x, dtype)
        watch = site.session.watch
        if watch is None:
            return self._decoded(layout, saved, dtype, samples)
        # whoever watches sees the memory of what is decoded, too
        return watch(site, "decode", partial(self._decoded, layout, saved, dtype, samples))

    def _decoded(self, layout: AnyLayout, saved: Sequence[Array], dtype: str, samples: range | None) -> Array:
        order, affine = self.order, None
        tensors = order.tensors
        if self.normalized:
            _, gamma, beta, constants = saved
            threshold = None if layout.family.affine else constants
            # not as an array of its own: to index a tensor takes longer than the call of a kernel
            affine = OutputAffine(self.channels, gamma, beta, threshold, THRESHOLD_ROW)
        if samples is not None:
            order = order.of_samples(len(samples))
        out = tensors.unfilled(order, dtype, saved[0])
        values = out if self.backend.any_shape else order.flat(out)
        self.backend.decode(tensors, saved[0], layout, self.part, dtype, affine, samples, values)
        return out

    def masked(
        self, site: Site, saved: Array, grad: Array, above: float, below: float, overwrites: bool = False
    ) -> Array:
        """Return ``grad`` times ``above`` where the mask holds and ``below`` elsewhere.

        The mask is the code's side, or a plain mask where there is no layout. With ``overwrites`` nobody else will read
        ``grad``, whose place the result may take.
        """
        order = self.order
        tensors, store = order.tensors, site.session.store
        mask = saved if store.keeps_in_place else store.get(tensors, saved)
        if self.backend.any_shape and order.dense(grad):
            out = grad if overwrites else tensors.alike(grad)
            self.backend.apply_mask(tensors, mask, self.layout, grad, above, below, order.rows, out)
            return out
        masked = self.backend.apply_mask(tensors, mask, self.layout, order.flat(grad), above, below)
        return order.shaped(masked)

    def fetched(self, site: Site, saved: Sequence[Array]) -> Sequence[Array]:
        """Return what was saved with the buffers of codes in the place of what stands for them."""
        store = site.session.store
        return saved if store.keeps_in_place else [store.get(self.order.tensors, saved[0]), *saved[1:]]

    def whole(self, site: Site, saved: Sequence[Array], grad: Array) -> Array:
        """Return this activation, in the precision of the gradient of a map's output that read it."""
        if not site.session.store.keeps_in_place:
            saved = self.fetched(site, saved)
        return self.value(site, saved, self.order.tensors.dtype(grad))

    def parts(
        self, site: Site, saved: Sequence[Array], grad: Array, parts: Sequence[range]
    ) -> Iterator[tuple[Array, Array]]:
        """Yield the gradient of a map's output and this activation, which it read, part by part of the batch."""
        if len(parts) == 1:
            yield grad, self.whole(site, saved, grad)
            return
        # once, not for each part: it may have to come from afar
        saved, dtype = self.fetched(site, saved), self.order.tensors.dtype(grad)
        for part in parts:
            of_part = grad[part.start : part.stop] if self.order.batched else grad
            yield of_part, self.value(site, saved, dtype, part)

    def observe(self, site: Site, grad: Array, coefficient: float, scale: Callable[[], float] | None = None) -> None:
        """Tell the planner the gradient with which a map at ``site`` read this activation.

        ``scale`` returns, once the step is over, how often its noise counts, where that is not once.
        """
        planner = site.session.planner
        if self.record is None or not planner.observing:
            return
        of_code = self.record.layout.samples
        if self.order.batched and of_code and len(grad) != of_code:
            # another shape of what was coded: all its energy counts, whichever sample has it
            coefficient *= of_code / len(grad)
            grad = grad.reshape((of_code, -1))
        energies = self.energies(site, grad, self.order.batched)
        columns = POSITIVE_OUTPUT if self.part is Part.POSITIVE else OUTPUT
        planner.observe(Observation(self.record, site, columns, coefficient, energies, scale))

    def observe_weight(
        self,
        site: Site,
        of_weight: Array | None,
        compute: Callable[[Array, Array], Array] | None = None,
        saved: Sequence[Array] = (),
        grad: Array | None = None,
    ) -> None:
        """Tell the planner the gradient of the weight with which a map at ``site`` read this activation.

        ``compute`` returns it from ``grad``, the gradient of the map's output, and this activation, or from some
        samples of both: seldom, how those of parts of the batch differ tells how it varies from batch to batch.
        """
        planner = site.session.planner
        if of_weight is None or not (planner.active and planner.weighing):
            return
        whole = self.energies(site, of_weight, False)
        planner.energy(site, whole)
        if compute is None or grad is None or not self.order.batched or not planner.wants_sampling(site):
            return
        parts = parts_of(len(grad), SAMPLING_PARTS)
        if len(parts) > 1:
            of_parts = (compute(*part) for part in self.parts(site, saved, grad, parts))
            planner.sampled(site, whole, [self.energies(site, of_part, False) for of_part in of_parts])

    def energies(self, site: Site, values: Array, batched: bool) -> Span:
        """Return where a kernel wrote the sum of squares of each sample."""
        return energies_of(self.order.tensors, self.backend, site, values, batched)

    def hand_down(self, site: Site, ratio: float | Callable[[], float], square: float | None = None) -> None:
        """Tell the planner that a gradient which goes on from ``site`` to layers below is read from this activation.

        ``ratio`` times the noise of the activation, relative to its own square or the given one, is that of the
        gradient, relative to the gradient's.
        """
        record, planner = self.record, site.session.planner
        if record is None or not planner.observing:
            return

        def relative() -> float:
            whole = record.values if square is None else square
            felt = ratio if isinstance(ratio, float) else ratio()
            return felt / whole if whole > 0 else 0.0

        planner.observe(Passing(record, site, OUTPUT, relative))

    @property
    def power(self) -> float:
        """The mean square of the activation, as its ranges tell once the step is over; 1 where there are none."""
        if self.record is None:
            return 1.0
        layout = self.record.layout
        return self.record.values / max(1, layout.samples * layout.elements)


class Derived(Reading):
    """A reading that computes the activation from what others read."""

    __slots__ = ("bases",)

    def __init__(self, order: Order, *bases: tuple[Reading, int]) -> None:
        super().__init__(order, bases[0][0].backend)
        # each with the number of tensors that are saved for it
        self.bases = bases

    def fetched(self, site: Site, saved: Sequence[Array]) -> Sequence[Array]:
        """Return what was saved with the buffers of codes in the place of what stands for them."""
        parts: list[Array] = []
        for (base, _), own in zip(self.bases, self.of_bases(saved), strict=True):
            parts += base.fetched(site, own)
        return parts

    def of_bases(self, saved: Sequence[Array]) -> list[Sequence[Array]]:
        """Return what was saved for each reading that this one reads."""
        parts, start = [], 0
        for _, count in self.bases:
            parts.append(saved[start : start + count])
            start += count
        return parts

    @property
    def by_sample(self) -> bool:
        """Whether samples of the activation are computed from the same samples of what is read."""
        return False

    def spans(self, base: Reading) -> bool:
        """Whether a base has the samples of the activation."""
        return base.order.batched and base.order.shape[:1] == self.order.shape[:1]

    def value(self, site: Site, saved: Sequence[Array], dtype: str, samples: range | None = None) -> Array:
        """Return the activation, or some samples of it."""
        if samples is None or not self.order.batched or self.by_sample:
            parts = zip(self.bases, self.of_bases(saved), strict=True)
            return self.compute(
                *(base.value(site, own, dtype, samples if self.spans(base) else None) for (base, _), own in parts)
            )
        return self.value(site, saved, dtype)[samples.start : samples.stop]

    def parts(
        self, site: Site, saved: Sequence[Array], grad: Array, parts: Sequence[range]
    ) -> Iterator[tuple[Array, Array]]:
        """Yield the gradient of a map's output and this activation, which it read, part by part of the batch."""
        if self.by_sample or len(parts) == 1 or not self.order.batched:
            yield from super().parts(site, saved, grad, parts)
            return
        whole = self.whole(site, saved, grad)
        for part in parts:
            yield grad[part.start : part.stop], whole[part.start : part.stop]

    def compute(self, *values: Array) -> Array:
        """Return the activation from the values of the bases."""
        raise NotImplementedError

    def observe(self, site: Site, grad: Array, coefficient: float, scale: Callable[[], float] | None = None) -> None:
        """Tell the planner of the gradient as if each of the codes had been read by itself."""
        for base, _ in self.bases:
            base.observe(site, grad, coefficient, scale)

    def hand_down(self, site: Site, ratio: float | Callable[[], float], square: float | None = None) -> None:
        """Tell the planner of a gradient that goes on, for each of the codes."""
        for base, _ in self.bases:
            base.hand_down(site, ratio, square)

    @property
    def power(self) -> float:
        """The mean square of the activation: that of the first code, whatever is made of it."""
        return self.bases[0][0].power


class Reshaped(Derived):
    """Another shape of the same elements."""

    __slots__ = ()

    @property
    def by_sample(self) -> bool:
        """Whether both shapes count the same samples."""
        return self.spans(self.bases[0][0])

    def compute(self, *values: Array) -> Array:
        """Return the one value in this shape."""
        shape = self.order.shape
        return values[0].reshape((len(values[0]), *shape[1:]) if self.by_sample else shape)


class Kept:
    """An activation in the form in which it is kept: tensors for autograd to save, and how to read them.

    Autograd frees saved tensors when their backward is done; nothing else may hold them.
    """

    __slots__ = ("reading", "tensors")

    def __init__(self, reading: Reading, tensors: tuple[Array | None, ...]) -> None:
        self.reading, self.tensors = reading, tensors

    def reshaped(self, tensors: Tensors, x: Array) -> Kept:
        """Return how a tensor of another shape, which holds the same elements in the same order, reads."""
        reading, count = self.reading, len(self.tensors)
        order = tensors.order(x, batched=len(x.shape) > 1)
        if isinstance(reading, Reshaped):
            return Kept(Reshaped(order, *reading.bases), self.tensors)
        return Kept(Reshaped(order, (reading, count)), self.tensors)


def encode(
    tensors: Tensors, x: Array, form: Form, site: Site, family: Family | None = None, exact_bytes: int = 0
) -> Kept | None:
    """Return a code of ``x``; None where that would not be smaller than ``x`` itself.

    ``exact_bytes`` are what exact training would keep for it, where nobody has counted that yet.
    """
    # within a group of an image or of other data values lie evenly: levels along a curve would add to the noise
    family = family or (site.of_values if tensors.recorded(x) else AFFINE)
    plan = code_plan(tensors, site, x, form, family)
    if not plan.smaller:
        site.session.check_open()
        return None
    buffer, layout, record = plan.encode(tensors, x)
    plan.account(layout, 0, exact_bytes)
    reading = reading_of(plan, layout, record) if record is not None or plan.reading is None else plan.reading
    return Kept(reading, (buffer if site.session.store.keeps_in_place else site.store(tensors, buffer),))


def reading_of(plan: CodePlan, layout: AnyLayout, record: Record | None, normalized: bool = False) -> Reading:
    """Return how a code that a plan made is read: one object for all codes of fixed width."""
    if record is not None:
        return Reading(plan.order, plan.backend, layout, record, normalized)
    if plan.reading is None:
        plan.reading = Reading(plan.order, plan.backend, layout, None, normalized)
    reading: Reading = plan.reading
    return reading


def energies_of(tensors: Tensors, backend: Backend, site: Site, values: Array, batched: bool) -> Span:
    """Return where a kernel wrote, for the planner, the sum of squares of each sample, or of all that there is."""
    planner, order = site.session.planner, tensors.order(values, batched)
    samples, elements = order.rows
    found = planner.statistics.span(samples)
    flat = values if backend.any_shape and order.dense(values) else order.flat(values)
    # one token may have all of a gradient: only images are alike wherever one looks
    stride = planner.stride(elements) if len(values.shape) >= IMAGE_RANK else 1
    backend.energy(tensors, flat, stride, found, order.rows)
    return found


def itself(tensors: Tensors, x: Array, site: Site, exact_bytes: int = 0) -> Kept:
    """Return the activation as it is."""
    check_floating(tensors, x, site.name)
    site.keeps(tensors.nbytes(x), exact_bytes)
    return exactly(tensors, tensors.detach(x))


def exactly(tensors: Tensors, x: Array) -> Kept:
    """Return a tensor as it is, which nobody has to account for."""
    return Kept(Reading(tensors.order(x, batched=len(x.shape) > 1), kernels.select(tensors, x)), (x,))


def encode_mask(tensors: Tensors, x: Array, site: Site, upper: float | None = None, form: Form | None = None) -> Kept:
    """Return one bit an element, ``not (x <= 0)``, and below ``upper`` where that is given; it reads as a mask only."""
    session, plan = site.session, mask_plan(tensors, site, x, tensors.form(x) if form is None else form)
    if session.closed:
        session.check_open()
    store = session.store
    buffer = store.allocate(tensors, plan.nbytes, x) if store.allocates else None
    buffer = plan.backend.encode_mask(tensors, x if plan.direct else plan.order.flat(x), buffer, plan.rows, upper)
    site.keeps(plan.nbytes)
    if plan.reading is None:
        plan.reading = Reading(plan.order, plan.backend)
    return Kept(plan.reading, (buffer if store.keeps_in_place else site.store(tensors, buffer),))


def keep(
    tensors: Tensors, x: Array, site: Site, training: bool, form: Form | None = None, family: Family | None = None
) -> Kept:
    """Return how a map keeps its input: as a code, somebody's or its own, or itself in evaluation."""
    session = site.session
    if form is None:
        form = tensors.form(x)
    tag = session.tags.current(tensors, x, form)
    exact_bytes = 0 if tag.counted else uncounted(tensors, x, tag)
    if training and tag.owner is not None and tag.readers is not None:
        tag.readers.values = True
        if tag.kept is not None:
            tag.owner.read_by(site, exact_bytes)
            shared: Kept = tag.kept
            return shared
    kept = encode(tensors, x, form, site, family, exact_bytes) if training else None
    if kept is None:
        return itself(tensors, x, site, exact_bytes)
    if session.policy.share_codes and tensors.recorded(x):
        tag.kept, tag.owner, tag.readers, tag.bypass = kept, site, Readers(), None
    return kept


def uncounted(tensors: Tensors, x: Array, tag: Tag) -> int:
    """Return the bytes that exact training keeps for a tensor, 0 where another reader counted it already."""
    if tag.counted:
        return 0
    tag.counted = True
    return tensors.nbytes(x)


def counted_once(tensors: Tensors, x: Array, site: Site) -> int:
    """Return the bytes that exact training keeps for a tensor, 0 where another reader counted it already."""
    return uncounted(tensors, x, site.session.tags.current(tensors, x, tensors.form(x)))


def parts_of(samples: int, count: int) -> list[range]:
    """Return a batch in so many parts, as equal as they can be, or in single samples where there are fewer."""
    ends = [samples * part // min(samples, count) for part in range(1, min(samples, count) + 1)]
    return [range(first, last) for first, last in zip([0, *ends[:-1]], ends, strict=True)]


def on_host(arrays: Arrays, x: Array) -> Floats:
    """Return a small tensor as an array of doubles."""
    return arrays.numpy(x).astype(np.float64)


def backward_begins(site: Site, recording: bool) -> None:
    """Note that a backward reads what a site keeps; raise UnsupportedError where it is recorded for another one."""
    if recording:
        raise UnsupportedError(
            f"the gradient of a gradient was asked for at {site.name!r}, where only a code of the activation is kept. "
            f"Call backward without create_graph, or leave it exact with QModule(model, exact=[{site.layer!r}])."
        )
    if not site.session.backward_noted:
        site.session.backward_begins()
