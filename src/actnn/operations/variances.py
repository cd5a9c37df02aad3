"""The variance of what a code decodes to, as its steps tell it: for gradients that are not linear in it."""

from __future__ import annotations

from actnn.format import Rounding
from actnn.kernels.contract import Array
from actnn.kernels.reference.steps import group_steps, of_elements
from actnn.operations.kept import Reading
from actnn.planning.noise import rounding_factor


def variance(reading: Reading, buffer: Array, values: Array, samples: range | None = None) -> Array | None:
    """Return an unbiased estimate of the variance of decoded ``values``, those of all samples or of some.

    None where there is none to speak of: nothing was coded, or rounding is not random. None also where the steps do
    not tell it: sides have steps of their own, and the output of a BatchNorm is not what was coded.
    """
    layout, order = reading.layout, reading.order
    if layout is None or layout.rounding is Rounding.NEAREST or not (reading.direct and layout.family.affine):
        return None
    tensors = order.tensors
    steps = group_steps(tensors, buffer, layout)
    if samples is not None and order.batched:
        steps, order = steps[samples.start : samples.stop], order.of_samples(len(samples))
    squares = order.shaped(of_elements(tensors, steps * steps, layout.elements))
    # stochastic rounding has this variance on average over all values
    return rounding_factor(layout.rounding) * squares
