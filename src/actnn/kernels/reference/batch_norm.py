"""The mathematics of BatchNorm on codes, one value a channel in float32, and the rows that it joins to one.

The coded value is v = s (x̂ - t): x̂ the normalised input, s the sign of gamma, and t the threshold at which the
output gamma x̂ + beta changes sign, clipped to the channel's range of x̂ so that a tiny gamma moves nothing far away.
An affine code has s = 1 and t = 0. ``threshold`` below is s t, so that x̂ = s (v + threshold) and the output is
|gamma| v + (beta + |gamma| threshold).
"""

from __future__ import annotations

from dataclasses import dataclass

from actnn.format import Family, Part
from actnn.kernels.contract import (
    AnyLayout,
    Array,
    Arrays,
    Backend,
    BatchNorm,
    Division,
    Key,
    Normalization,
    OutputAffine,
    Span,
    check_divided,
)
from actnn.kernels.reference.numbers import divide, filled

# up to so many values of a channel, what each adds to the noise of its own gradient is taken out
MOST_VALUES = 1024


@dataclass(frozen=True)
class Statistics:
    """Mean, biased variance, minimum and maximum of each channel, and the number of elements they count."""

    mean: Array
    variance: Array
    low: Array
    high: Array
    count: int


@dataclass(frozen=True)
class Scheme:
    """What backward needs besides the code: x̂ is ``factor * v + shift``; None stands for 1 and 0."""

    slope: Array
    factor: Array | None = None
    shift: Array | None = None


def prepare(
    arrays: Arrays, statistics: Statistics, epsilon: float, gamma: Array, beta: Array, family: Family
) -> tuple[Normalization, Array]:
    """Return what the kernel normalises and codes with, and the inverse deviation."""
    inverse = inverse_deviation(arrays, statistics.variance, epsilon)
    slope = gamma * inverse
    offset = beta - statistics.mean * slope
    if family.affine:
        return Normalization(slope, offset, statistics.mean, inverse, 0.0 * inverse), inverse
    low = (statistics.low - statistics.mean) * inverse
    high = (statistics.high - statistics.mean) * inverse
    crossing = arrays.divide(-beta, arrays.where(gamma == 0, 1.0 + gamma, gamma))
    # with gamma 0 the output is beta everywhere: all of the channel lies on one side
    crossing = arrays.where(gamma == 0, arrays.where(beta > 0, low, high), crossing)
    crossing = arrays.where(crossing < low, low, crossing)
    crossing = arrays.where(crossing > high, high, crossing)
    sign = sign_of(arrays, gamma)
    return Normalization(slope, offset, statistics.mean, sign * inverse, sign * crossing), inverse


def inverse_deviation(arrays: Arrays, variance: Array, epsilon: float) -> Array:
    """Return the inverse deviation; from operations that every framework rounds alike, as a power is not."""
    # ones of their own: those made of an infinite variance would be none
    return arrays.divide(filled(arrays, variance.shape, 1.0, variance), arrays.sqrt(variance + epsilon))


def scheme_of(arrays: Arrays, inverse: Array, gamma: Array, threshold: Array | None) -> Scheme:
    """Return the scheme of a BatchNorm's own code, affine where there is no threshold."""
    if threshold is None:
        return Scheme(gamma * inverse)
    sign = sign_of(arrays, gamma)
    return Scheme(gamma * inverse, sign, sign * threshold)


def scheme_of_input(inverse: Array, gamma: Array, mean: Array) -> Scheme:
    """Return the scheme of a code of the input itself, made by another layer."""
    return Scheme(gamma * inverse, inverse, -inverse * mean)


def output_affine(
    arrays: Arrays, gamma: Array, beta: Array, threshold: Array | None, part: Part
) -> tuple[Array, Array]:
    """Return scale and shift with which a BatchNorm's output, or its positive part, reads from the coded value."""
    if threshold is None:
        return gamma, beta
    scale = abs(gamma)
    shift = beta + scale * threshold
    # the shift is zero up to rounding unless the whole channel lies on one side of zero
    return scale, shift if part is Part.WHOLE else arrays.where(shift > 0, shift, 0.0)


def sign_of(arrays: Arrays, gamma: Array) -> Array:
    """Return -1 where gamma is negative and 1 elsewhere."""
    return 1.0 - 2.0 * arrays.cast(gamma < 0, "float32")


def parameter_gradients(scheme: Scheme, sum_grad: Array, sum_product: Array) -> tuple[Array, Array]:
    """Return the gradients of gamma and beta from the sums of grad and of grad times the coded value."""
    if scheme.factor is None or scheme.shift is None:
        return sum_product, sum_grad
    return scheme.factor * sum_product + scheme.shift * sum_grad, sum_grad


def input_coefficients(scheme: Scheme, grad_gamma: Array, grad_beta: Array, count: int) -> tuple[Array, Array, Array]:
    """Return (a, b, d) such that the gradient of the input is ``a grad + b v + d``."""
    of_normalized = -scheme.slope * grad_gamma / count
    constant = -scheme.slope * grad_beta / count
    if scheme.factor is None or scheme.shift is None:
        return scheme.slope, of_normalized, constant
    return scheme.slope, of_normalized * scheme.factor, constant + of_normalized * scheme.shift


def own_noise(arrays: Arrays, scheme: Scheme, count: int, share: Array | None = None) -> Array | None:
    """Return what the variance of a coded value is multiplied by, to be the share of its gradient that noise takes.

    The mean of grad x̂ contains each element, and is multiplied by it: on average the gradient of the input lacks
    Var(x̂) grad / count. None where that is too little to be worth a second look at the code.
    """
    if count > MOST_VALUES:
        return None
    factor = 0.0 * scheme.slope + 1.0 if scheme.factor is None else scheme.factor
    square = factor * factor
    return divide(arrays, square if share is None else square * share, float(count))


def running(old: Array, new: Array, factor: float) -> Array:
    """Return a running statistic after one step; ``factor`` weighs the new value."""
    return (1.0 - factor) * old + factor * new


def forward(
    rows: Backend,
    arrays: Arrays,
    values: Array,
    out: Array,
    layout: AnyLayout,
    normalization: BatchNorm,
    key: Key,
    buffer: Array,
    division: Division | None,
) -> None:
    """Do what ``Backend.batch_norm`` says, by the other rows of a backend."""
    channels = normalization.channels
    given = normalization.statistics
    measured = rows.channel_statistics(arrays, values, channels) if given is None else given
    mean, variance, low, high = (measured[row] for row in range(4))
    statistics = Statistics(mean, variance, low, high, normalization.count)
    track(arrays, normalization, statistics)
    gamma = parameter(arrays, normalization.gamma, 1.0, normalization)
    beta = parameter(arrays, normalization.beta, 0.0, normalization)
    prepared, inverse = prepare(arrays, statistics, normalization.epsilon, gamma, beta, layout.family)
    normalization.saved[0] = inverse
    if not layout.family.affine:
        normalization.saved[1] = prepared.threshold
    if division is not None:
        layout = check_divided(layout)
        # readers of the output see gamma times the noise
        found = rows.ranges(arrays, values, layout, division.stride, channels, prepared, gamma * gamma)
        layout.block.ranges[:] = arrays.numpy(found)
        rows.divide(layout, division)
    rows.normalize(arrays, values, out, channels, prepared, layout, key, buffer)


def track(arrays: Arrays, normalization: BatchNorm, statistics: Statistics) -> None:
    """Update the running statistics, and the number of batches, where there are some."""
    if normalization.batches is not None:
        normalization.batches += 1
    if normalization.running is None:
        return
    ratio = statistics.count / max(1, statistics.count - 1) if normalization.unbiased else 1.0
    for old, new in zip(normalization.running, (statistics.mean, statistics.variance * ratio), strict=True):
        average = running(arrays.cast(old, "float32"), new, normalization.momentum)
        old[:] = arrays.cast(average, arrays.dtype(old))


def backward(
    rows: Backend,
    arrays: Arrays,
    grad: Array,
    code: Array,
    layout: AnyLayout,
    normalization: BatchNorm,
    rectified: bool,
    of_input: bool,
    grads: Array,
    out: Array | None,
    sums: Array | None,
    stride: int,
    energy: Span | None,
) -> None:
    """Do what ``Backend.batch_norm_backward`` says, by the other rows of a backend."""
    channels, saved, share = normalization.channels, normalization.saved, None
    gamma = parameter(arrays, normalization.gamma, 1.0, normalization)
    if of_input:
        scheme = scheme_of_input(saved[0], gamma, saved[1])
    else:
        scheme = scheme_of(arrays, saved[0], gamma, None if layout.family.affine else saved[1])
    if sums is None:
        found = rows.gradient_sums(arrays, grad, channels, code, layout, rectified)
        of_gamma, of_beta = parameter_gradients(scheme, *found)
        grads[0], grads[1] = of_gamma, of_beta
        if energy is not None:
            rows.energy(arrays, grad, stride, energy)
    else:
        of_gamma, of_beta, share = sums[0], sums[1], normalization.share
        if share is not None:
            of_gamma, of_beta = of_gamma * share, of_beta * share
    if out is not None:
        coefficients = input_coefficients(scheme, of_gamma, of_beta, normalization.count)
        noise = own_noise(arrays, scheme, normalization.count, share)
        rows.gradient(arrays, grad, channels, code, layout, rectified, coefficients, noise, out)


def output_scale(arrays: Arrays, affine: OutputAffine, part: Part, like: Array) -> tuple[Array, Array]:
    """Return the scale and the shift of ``Backend.decode``."""
    gamma = widened(arrays, affine.gamma, 1.0, affine.channels.count, like)
    beta = widened(arrays, affine.beta, 0.0, affine.channels.count, like)
    threshold = affine.threshold
    if threshold is not None and affine.rows_before is not None:
        threshold = threshold[affine.rows_before]
    return output_affine(arrays, gamma, beta, threshold, part)


def parameter(arrays: Arrays, given: Array | None, default: float, normalization: BatchNorm) -> Array:
    """Return a parameter as float32, or its default where the layer has none."""
    return widened(arrays, given, default, normalization.channels.count, normalization.saved)


def widened(arrays: Arrays, given: Array | None, default: float, count: int, like: Array) -> Array:
    """Return an array as float32, or ``count`` times its default where there is none."""
    return filled(arrays, (count,), default, like) if given is None else arrays.cast(given, "float32")
