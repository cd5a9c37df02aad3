"""The variance of what a code decodes to, as its steps tell it: for gradients that are not linear in it."""

from __future__ import annotations

from actnn.format import Rounding
from actnn.kernels.contract import AnyLayout, Array
from actnn.kernels.reference.steps import group_steps, of_elements
from actnn.operations.kept import Reading
from actnn.planning.noise import rounding_factor


def coded(reading: Reading) -> AnyLayout | None:
    """Return the layout of a code whose steps tell the variance of what is read from it; None where they do not.

    Nothing was coded, or rounding is not random; sides have steps of their own; or the output of a BatchNorm is read,
    which is not what was coded.
    """
    layout = reading.layout
    if layout is None or layout.rounding is Rounding.NEAREST or not (reading.direct and layout.family.affine):
        return None
    return layout


def mean_variance(reading: Reading, buffer: Array) -> float:
    """Return the variance of a decoded value, on average over all groups; 0 where steps do not tell it."""
    layout = coded(reading)
    if layout is None:
        return 0.0
    steps = group_steps(reading.order.tensors, buffer, layout)
    # stochastic rounding has this variance on average over all values
    return rounding_factor(layout.rounding) * float((steps * steps).mean())


def variance(reading: Reading, buffer: Array, values: Array, samples: range | None = None) -> Array | None:
    """Return an unbiased estimate of the variance of decoded ``values``, those of all samples or of some.

    None where steps do not tell it.
    """
    layout, order = coded(reading), reading.order
    if layout is None:
        return None
    tensors = order.tensors
    steps = group_steps(tensors, buffer, layout)
    if samples is not None and order.batched:
        steps, order = steps[samples.start : samples.stop], order.of_samples(len(samples))
    squares = order.shaped(of_elements(tensors, steps * steps, layout.elements))
    return rounding_factor(layout.rounding) * squares
