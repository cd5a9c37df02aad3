"""Products of two activations, or of an activation and a parameter: gates, squeeze-and-excite, layer scales, matmul.

Keeps: a code of each factor whose gradient partner wants it, whoever made it; a factor that is much smaller than the
product, or a parameter, as it is.
Shares: codes of both factors, and the product itself where the noise of the two codes is independent: the mean of the
product is then the product of the means, and whoever reads it keeps nothing.
Reads in backward: the other factor.
Noise: that of the other factor times the gradient, in the gradient of each factor; it goes on to the layers below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from actnn.kernels.contract import Array
from actnn.operations.kept import Derived, Kept, Reading, counted_once, exactly, itself, keep
from actnn.operations.rectifiers import tag_output
from actnn.session.site import Readers, Site
from actnn.session.tensors import Order, Tensors

# a factor with so many times fewer elements than the product is kept as it is
SMALL = 16
# bits that an own code of a factor has more than others: it serves a gradient, and the product for those who read that
EXTRA = 1.0
# bits that factors of a product of matrices have more than others: two noisy codes meet in every element of the sum
MATMUL_EXTRA = 2.0


class Bilinear:
    """A function of two tensors that is linear in each: how it is computed, and the gradient of either factor."""

    def __init__(
        self,
        function: Callable[[Array, Array], Array],
        of_first: Callable[[Array, Array], Array],
        of_second: Callable[[Array, Array], Array],
    ) -> None:
        self.function, self.of_first, self.of_second = function, of_first, of_second


class Product(Derived):
    """What a function of two factors, linear in each and element by element, makes of their codes."""

    __slots__ = ("_function",)

    def __init__(self, order: Order, function: Callable[..., Array], *bases: tuple[Reading, int]) -> None:
        super().__init__(order, *bases)
        self._function = function

    @property
    def by_sample(self) -> bool:
        """Whether each factor has the samples of the product, or the same numbers for all of them."""
        axes = len(self.order.shape)
        return all(
            self.spans(base) or len(base.order.shape) < axes or base.order.shape[0] == 1 for base, _ in self.bases
        )

    def spans(self, base: Reading) -> bool:
        """Whether a factor has the samples of the product."""
        return len(base.order.shape) == len(self.order.shape) and super().spans(base)

    def compute(self, *values: Array) -> Array:
        """Return the product."""
        return self._function(*values)

    def observe(self, site: Site, grad: Array, coefficient: float, scale: Callable[[], float] | None = None) -> None:
        """Tell the planner of the gradient: noise in a factor comes with the square of the other one."""
        (first, _), (second, _) = self.bases
        first.observe(site, grad, coefficient, times(scale, second))
        second.observe(site, grad, coefficient, times(scale, first))

    @property
    def power(self) -> float:
        """The mean square of the product, as if its factors knew nothing of each other."""
        (first, _), (second, _) = self.bases
        return first.power * second.power


def times(scale: Callable[[], float] | None, factor: Reading) -> Callable[[], float]:
    """Return what tells, once the step is over, a scale times the mean square of a factor."""
    return lambda: factor.power if scale is None else scale() * factor.power


def keep_factor(tensors: Tensors, x: Array, site: Site, training: bool, elements: int) -> Kept:
    """Return how a factor of a product of so many elements is kept."""
    if not tensors.recorded(x):
        # a parameter, or what its user holds anyway
        return exactly(tensors, x)
    if SMALL * math.prod(x.shape) <= elements:
        return itself(tensors, x, site, counted_once(tensors, x, site))
    return keep(tensors, x, site, training)


def observe_factor(reading: Reading, site: Site, grad: Array, of_other: Array, parameter: bool) -> None:
    """Tell the planner that the gradient ``of_other``, that of the other factor, was computed of a factor's code.

    That of a parameter ends here, others go on to the layers below.
    """
    elements = reading.order.rows[1]
    if parameter and elements:
        reading.observe(site, grad, 1 / elements)
        reading.observe_weight(site, of_other)
    else:
        # noise in one factor is in the gradient of the other alone
        reading.hand_down(site, 0.5)


def tag_product(
    tensors: Tensors, y: Array, site: Site, function: Callable[..., Array], first: Kept, second: Kept
) -> None:
    """Let readers of a product find it in the codes of its factors, where their noise is independent."""
    if any(own is other for own in codes(first) for other in codes(second)):
        return
    order = tensors.order(y, batched=len(y.shape) > 1)
    bases = (first.reading, len(first.tensors)), (second.reading, len(second.tensors))
    kept = Kept(Product(order, function, *bases), (*first.tensors, *second.tensors))
    tag_output(tensors, y, kept, site, Readers())


def codes(kept: Kept) -> list[Any]:
    """Return the tensors of an activation's codes: two that have one in common are not independent."""
    return [tensor for tensor in kept.tensors if tensor is not None]
