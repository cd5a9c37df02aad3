"""What autograd keeps of an activation: tensors to save, and how to read them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from actnn import kernels
from actnn.errors import UnsupportedError
from actnn.format import AFFINE, Family, Layout, Part, index_bytes
from actnn.kernels.contract import Array, Arrays, ChannelAffine
from actnn.operations import batch_norm_rules as rules
from actnn.planning.records import OUTPUT, POSITIVE_OUTPUT, Record
from actnn.planning.samples import Floats
from actnn.session.session import Code
from actnn.session.site import Site
from actnn.session.tensors import Order, Tensors, check_floating


@dataclass(frozen=True)
class Reading:
    """How to read an activation from saved tensors; holds no tensor itself, so it may stay on a context.

    ``layout`` None: the one saved tensor is the activation. Otherwise it is the buffer of a code; with ``normalized``,
    that of a BatchNorm's coded value, and gamma, beta and the threshold are saved behind it. ``record`` is there where
    widths are planned.
    """

    order: Order
    layout: Layout | None = None
    part: Part = Part.WHOLE
    normalized: bool = False
    record: Record | None = None

    @property
    def signed(self) -> bool:
        """Whether ``word >= N`` tells exactly where the activation is positive."""
        return self.layout is not None and not self.layout.family.affine

    @property
    def direct(self) -> bool:
        """Whether the code's values are those of the activation, with nothing between."""
        return self.layout is not None and not self.normalized and self.part is Part.WHOLE

    def value(self, site: Site, saved: Sequence[Array], dtype: str, samples: range) -> Array:
        """Return some samples of the activation, ``saved`` beginning with the buffer itself."""
        tensors = self.order.tensors
        if self.layout is None:
            return tensors.cast(saved[0][samples.start : samples.stop] if self.order.batched else saved[0], dtype)
        affine = self._affine(*saved) if self.normalized else None
        code, part = Code(saved[0], self.layout), self.order.of_samples(len(samples))
        return part.shaped(site.session.decode(tensors, site, code, dtype, self.part, affine, samples))

    def masked(self, site: Site, saved: Array, grad: Array, above: float, below: float) -> Array:
        """Return ``grad`` times ``above`` where the mask holds and ``below`` elsewhere.

        The mask is the code's side, or a plain mask where there is no layout.
        """
        tensors = self.order.tensors
        backend, mask = kernels.select(tensors, grad), site.session.store.get(tensors, saved)
        return self.order.shaped(backend.apply_mask(tensors, mask, self.layout, self.order.flat(grad), above, below))

    def parts(
        self, site: Site, saved: Sequence[Array], grad: Array, parts: Sequence[range]
    ) -> Iterator[tuple[Array, Array]]:
        """Yield the gradient of a map's output and this activation, which it read, part by part of the batch."""
        tensors = self.order.tensors
        # once, not for each part: it may have to come from afar
        saved = [site.session.store.get(tensors, saved[0]), *saved[1:]]
        for part in parts:
            of_part = grad[part.start : part.stop] if self.order.batched else grad
            yield of_part, self.value(site, saved, tensors.dtype(grad), part)

    def observe(self, site: Site, grad: Array, coefficient: Callable[[], float]) -> None:
        """Tell the planner the gradient with which a map at ``site`` read this activation."""
        if self.record is not None and site.session.planner.observing:
            columns = POSITIVE_OUTPUT if self.part is Part.POSITIVE else OUTPUT
            energies = energies_of(self.order.tensors, site, grad, self.order.batched)
            site.session.planner.observe(self.record, site, columns, coefficient(), energies)

    def _affine(self, code: Array, gamma: Array | None, beta: Array | None, threshold: Array | None) -> ChannelAffine:
        tensors, channels = self.order.tensors, self.order.channels
        # on the device of the code: a layer without parameters saves nothing else
        like = tensors.empty((channels.count,), "float32", code)
        gamma, beta = tensors.per_channel(gamma, 1.0, like), tensors.per_channel(beta, 0.0, like)
        scale, shift = rules.output_affine(tensors, gamma, beta, threshold, self.part)
        return ChannelAffine(channels, scale, shift)


@dataclass(frozen=True)
class Kept:
    """An activation in the form in which it is kept: tensors for autograd to save, and how to read them.

    Autograd frees saved tensors when their backward is done; nothing else may hold them.
    """

    reading: Reading
    tensors: tuple[Array | None, ...]

    def rectified(self) -> Kept:
        """Return how the positive part of this activation reads from the same code."""
        return replace(self, reading=replace(self.reading, part=Part.POSITIVE))


def encode(tensors: Tensors, x: Array, site: Site, family: Family = AFFINE, batched: bool = True) -> Kept | None:
    """Return a code of ``x``; None where that would not be smaller than ``x`` itself."""
    check_floating(tensors, x, site.name)
    site.session.check_open()
    order, session = tensors.order(x, batched), site.session
    average = session.layout(site, *order.rows, family)
    if average.nbytes >= tensors.nbytes(x):
        return None
    flat, backend = order.flat(x), kernels.select(tensors, x)

    def ranges(stride: int) -> Floats:
        return on_host(tensors, backend.ranges(tensors, flat, average, stride))

    layout, record = session.plan(site, *order.rows, family, ranges)
    code = session.encode(tensors, flat, site, layout)
    site.codes(layout)
    site.keeps(tensors.nbytes(code.buffer))
    return Kept(Reading(order, layout, record=record), (site.store(tensors, code.buffer),))


def itself(tensors: Tensors, x: Array, site: Site) -> Kept:
    """Return the activation as it is."""
    site.keeps(tensors.nbytes(x))
    return Kept(Reading(tensors.order(x, batched=len(x.shape) > 1)), (tensors.detach(x),))


def encode_mask(tensors: Tensors, x: Array, site: Site) -> Kept:
    """Return one bit an element, ``not (x <= 0)``; it reads as a mask only."""
    check_floating(tensors, x, site.name)
    site.session.check_open()
    order = tensors.order(x, batched=len(x.shape) > 1)
    buffer = site.session.store.allocate(tensors, index_bytes(*order.rows, 1), x)
    mask = kernels.select(tensors, x).encode_mask(tensors, order.flat(x), buffer)
    site.keeps(tensors.nbytes(mask))
    return Kept(Reading(order), (site.store(tensors, mask),))


def energies_of(tensors: Tensors, site: Site, grad: Array, batched: bool = True) -> Floats:
    """Return the squared norm of each sample's gradient, as far as the planner wants it read."""
    order = tensors.order(grad, batched)
    stride = site.session.planner.stride(order.rows[1])
    return on_host(tensors, kernels.select(tensors, grad).energy(tensors, order.flat(grad), stride))


def on_host(arrays: Arrays, x: Array) -> Floats:
    """Return a small tensor as an array of doubles."""
    return arrays.numpy(x).astype(np.float64)


def backward_begins(site: Site, recording: bool) -> None:
    """Note that a backward reads what a site keeps; raise UnsupportedError where it is recorded for another one."""
    if recording:
        raise UnsupportedError(
            f"the gradient of a gradient was asked for at {site.name!r}, where only a code of the activation is kept. "
            f"Call backward without create_graph, or leave this layer exact with QModule(model, exact=[{site.name!r}])."
        )
    site.session.backward_begins()
