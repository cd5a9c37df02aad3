"""What autograd keeps of an activation: tensors to save, and how to read them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actnn import kernels
from actnn.core import batch_norm as rules
from actnn.core.format import AFFINE, Family, Layout, Part, index_bytes
from actnn.core.records import OUTPUT, POSITIVE_OUTPUT, Record
from actnn.core.samples import Floats
from actnn.core.session import Code
from actnn.core.site import Site
from actnn.errors import UnsupportedError
from actnn.kernels.contract import ChannelAffine
from actnn.torch.tensors import ARRAYS, NAMES, Order, check_floating, nbytes, per_channel


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

    def value(self, site: Site, saved: tuple[Tensor, ...], dtype: torch.dtype, samples: range) -> Tensor:
        """Return some samples of the activation, ``saved`` beginning with the buffer itself."""
        if self.layout is None:
            return (saved[0][samples.start : samples.stop] if self.order.batched else saved[0]).to(dtype)
        affine = self._affine(*saved) if self.normalized else None
        code, part = Code(saved[0], self.layout), self.order.of_samples(len(samples))
        return part.shaped(site.session.decode(ARRAYS, site, code, NAMES[dtype], self.part, affine, samples))

    def masked(self, site: Site, saved: Tensor, grad: Tensor, above: float, below: float) -> Tensor:
        """Return ``grad`` times ``above`` where the mask holds and ``below`` elsewhere.

        The mask is the code's side, or a plain mask where there is no layout.
        """
        backend, mask = kernels.select(ARRAYS, grad), site.session.store.get(ARRAYS, saved)
        return self.order.shaped(backend.apply_mask(ARRAYS, mask, self.layout, self.order.flat(grad), above, below))

    def observe(self, site: Site, grad: Tensor, coefficient: Callable[[], float]) -> None:
        """Tell the planner the gradient with which a map at ``site`` read this activation."""
        if self.record is not None and site.session.planner.observing:
            columns = POSITIVE_OUTPUT if self.part is Part.POSITIVE else OUTPUT
            energies = energies_of(site, grad, self.order.batched)
            site.session.planner.observe(self.record, site, columns, coefficient(), energies)

    def _affine(
        self, code: Tensor, gamma: Tensor | None, beta: Tensor | None, threshold: Tensor | None
    ) -> ChannelAffine:
        channels = self.order.channels
        # on the device of the code: a layer without parameters saves nothing else
        like = code.new_empty(channels.count)
        gamma, beta = per_channel(gamma, 1.0, like), per_channel(beta, 0.0, like)
        scale, shift = rules.output_affine(ARRAYS, gamma, beta, threshold, self.part)
        return ChannelAffine(channels, scale, shift)


@dataclass(frozen=True)
class Kept:
    """An activation in the form in which it is kept: tensors for autograd to save, and how to read them.

    Autograd frees saved tensors when their backward is done; nothing else may hold them.
    """

    reading: Reading
    tensors: tuple[Tensor | None, ...]

    def rectified(self) -> Kept:
        """Return how the positive part of this activation reads from the same code."""
        return replace(self, reading=replace(self.reading, part=Part.POSITIVE))


def encode(x: Tensor, site: Site, family: Family = AFFINE, batched: bool = True) -> Kept | None:
    """Return a code of ``x``; None where that would not be smaller than ``x`` itself."""
    check_floating(x, site.name)
    site.session.check_open()
    order, session = Order.of(x, batched), site.session
    average = session.layout(site, *order.rows, family)
    if average.nbytes >= nbytes(x):
        return None
    flat, backend = order.flat(x), kernels.select(ARRAYS, x)

    def ranges(stride: int) -> Floats:
        return on_host(backend.ranges(ARRAYS, flat, average, stride))

    layout, record = session.plan(site, *order.rows, family, ranges)
    code = session.encode(ARRAYS, flat, site, layout)
    site.codes(layout)
    site.keeps(nbytes(code.buffer))
    return Kept(Reading(order, layout, record=record), (site.store(ARRAYS, code.buffer),))


def energies_of(site: Site, grad: Tensor, batched: bool = True) -> Floats:
    """Return the squared norm of each sample's gradient, as far as the planner wants it read."""
    order = Order.of(grad, batched)
    stride = site.session.planner.stride(order.rows[1])
    return on_host(kernels.select(ARRAYS, grad).energy(ARRAYS, order.flat(grad), stride))


def on_host(x: Tensor) -> Floats:
    """Return a small tensor as an array of doubles."""
    return ARRAYS.numpy(x).astype(np.float64)


def itself(x: Tensor, site: Site) -> Kept:
    """Return the activation as it is."""
    site.keeps(nbytes(x))
    return Kept(Reading(Order.of(x, batched=x.dim() > 1)), (x.detach(),))


def encode_mask(x: Tensor, site: Site) -> Kept:
    """Return one bit an element, ``not (x <= 0)``; it reads as a mask only."""
    check_floating(x, site.name)
    site.session.check_open()
    order = Order.of(x, batched=x.dim() > 1)
    buffer = site.session.store.allocate(ARRAYS, index_bytes(*order.rows, 1), x)
    mask = kernels.select(ARRAYS, x).encode_mask(ARRAYS, order.flat(x), buffer)
    site.keeps(nbytes(mask))
    return Kept(Reading(order), (site.store(ARRAYS, mask),))


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Let a backward run once, and tell clearly that its own gradient is not available."""

    @wraps(backward)
    def checked(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                f"the gradient of a gradient was asked for at {ctx.site.name!r}, where only a code of the activation "
                f"is kept. Call backward without create_graph, or leave this layer exact with "
                f"QModule(model, exact=[{ctx.site.name!r}])."
            )
        ctx.site.session.backward_begins()
        return backward(ctx, *grads)

    return checked
