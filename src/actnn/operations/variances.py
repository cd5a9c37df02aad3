"""The variance of what a code decodes to, as its steps tell it: for gradients that are not linear in it."""

from __future__ import annotations

from collections.abc import Callable

from actnn.format import Curve, Rounding
from actnn.kernels.contract import AnyLayout, Array
from actnn.kernels.reference.steps import group_reaches, group_steps, of_elements
from actnn.operations.kept import Reading
from actnn.planning.noise import rounding_factor

# of the square of noise that is uniform over one step, in fourth powers of the step
VARIANCE_OF_SQUARE = 1 / 180

# gives every element the number of its group
Spread = Callable[[Array], Array]


def coded(reading: Reading) -> AnyLayout | None:
    """Return the layout of a code whose steps tell the variance of what is read from it; None where they do not.

    Nothing was coded, or rounding is not random; sides have steps of their own; or the output of a BatchNorm is read,
    which is not what was coded.
    """
    layout = reading.layout
    if layout is None or layout.rounding is Rounding.NEAREST or not (reading.direct and layout.family.affine):
        return None
    return layout


def mean_variance(reading: Reading, buffer: Array, values: Array, samples: range | None = None) -> Array | None:
    """Return the variance of decoded values, on average; None where steps do not tell it."""
    layout = coded(reading)
    if layout is None:
        return None
    if layout.family.curve is Curve.LINEAR:
        # those of all samples: few numbers, whatever the part of the batch
        steps = group_steps(reading.order.tensors, buffer, layout)
        return (steps * steps).mean() * rounding_factor(layout.rounding)
    found = variance(reading, buffer, values, samples)
    return None if found is None else found.mean()


def variance(reading: Reading, buffer: Array, values: Array, samples: range | None = None) -> Array | None:
    """Return the variance of decoded ``values``, those of all samples or of some; None where steps do not tell it.

    With dither the estimate is unbiased, along cubics to first order and never below 0; stochastic rounding has this
    variance on average over all values.
    """
    layout, order = coded(reading), reading.order
    if layout is None:
        return None
    tensors = order.tensors
    steps = group_steps(tensors, buffer, layout)
    reaches = group_reaches(tensors, buffer, layout)
    if samples is not None and order.batched:
        part = slice(samples.start, samples.stop)
        steps, reaches, order = steps[part], reaches[part], order.of_samples(len(samples))

    def spread(of_groups: Array) -> Array:
        return order.shaped(of_elements(tensors, of_groups, layout.elements))

    return VARIANCES[layout.family.curve](spread, steps * steps, reaches, values, rounding_factor(layout.rounding))


def of_line(spread: Spread, squares: Array, reaches: Array, values: Array, factor: float) -> Array:
    """Return the variance of what is coded as it is."""
    return factor * spread(squares)


def of_square(spread: Spread, squares: Array, reaches: Array, values: Array, factor: float) -> Array:
    """Return the variance of (s + e)², s being the root that is coded: 4 s² Var(e) + Var(e²)."""
    steps = spread(squares)
    return steps * (4 * factor * values + VARIANCE_OF_SQUARE * steps)


def of_cubic(spread: Spread, squares: Array, reaches: Array, values: Array, factor: float) -> Array:
    """Return the variance of r (u³ + (1 - h²) u), u being even over one step 2h, from what is decoded by u.

    It is what ``terms`` of ``kernels.reference.variance`` has, but for the u that a decoded value belongs to: Cardano's
    formula finds it as if h² were 0, to first order.
    """
    reach = spread(reaches)
    half = factor * 3 * spread(squares)
    y = abs(values) / reach
    root = (y * 0.5 + (y * y * 0.25 + 1 / 27) ** 0.5) ** (2 / 3)
    square = root + 1 / (9 * root) - 2 / 3
    constant = half * ((half * (31 / 21) - 14 / 15) * half + 1 / 3)
    found = (3 * half * square + 2 * half * (1 - 3 * half)) * square + constant
    # where steps are as wide as the reach, that may be less than nothing
    return reach * reach * (found + abs(found)) * 0.5


VARIANCES: dict[Curve, Callable[[Spread, Array, Array, Array, float], Array]] = {
    Curve.LINEAR: of_line,
    Curve.ROOT: of_square,
    Curve.CUBIC: of_cubic,
}
