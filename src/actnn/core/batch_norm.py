"""The mathematics of BatchNorm on codes, once for all frameworks: one value a channel, float32.

The coded value is v = s (x̂ - t): x̂ the normalised input, s the sign of gamma, and t the threshold at which the
output gamma x̂ + beta changes sign, clipped to the channel's range of x̂ so that a tiny gamma moves nothing far away.
An affine code has s = 1 and t = 0. ``threshold`` below is s t, so that x̂ = s (v + threshold).
"""

from __future__ import annotations

from dataclasses import dataclass

from actnn.core.format import Family
from actnn.kernels.contract import Array, Arrays, Normalization


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
    """What backward needs besides the code: the inverse deviation, gamma, and s t (None for an affine code)."""

    inverse_deviation: Array
    gamma: Array
    threshold: Array | None


def prepare(
    arrays: Arrays, statistics: Statistics, epsilon: float, gamma: Array, beta: Array, family: Family
) -> tuple[Normalization, Scheme]:
    """Return what the kernel normalises and codes with, and what backward needs of it."""
    inverse = (statistics.variance + epsilon) ** -0.5
    slope = gamma * inverse
    offset = beta - statistics.mean * slope
    if family.affine:
        normalization = Normalization(slope, offset, statistics.mean, inverse, 0.0 * inverse)
        return normalization, Scheme(inverse, gamma, None)
    low = (statistics.low - statistics.mean) * inverse
    high = (statistics.high - statistics.mean) * inverse
    crossing = -beta / arrays.where(gamma == 0, 1.0 + gamma, gamma)
    # with gamma 0 the output is beta everywhere: all of the channel lies on one side
    crossing = arrays.where(gamma == 0, arrays.where(beta > 0, low, high), crossing)
    crossing = arrays.where(crossing < low, low, crossing)
    crossing = arrays.where(crossing > high, high, crossing)
    sign = sign_of(arrays, gamma)
    threshold = sign * crossing
    return Normalization(slope, offset, statistics.mean, sign * inverse, threshold), Scheme(inverse, gamma, threshold)


def sign_of(arrays: Arrays, gamma: Array) -> Array:
    """Return -1 where gamma is negative and 1 elsewhere."""
    return 1.0 - 2.0 * arrays.cast(gamma < 0, "float32")


def parameter_gradients(arrays: Arrays, scheme: Scheme, sum_grad: Array, sum_product: Array) -> tuple[Array, Array]:
    """Return the gradients of gamma and beta from the sums of grad and of grad times the coded value."""
    if scheme.threshold is None:
        return sum_product, sum_grad
    return sign_of(arrays, scheme.gamma) * (sum_product + scheme.threshold * sum_grad), sum_grad


def input_coefficients(
    arrays: Arrays, scheme: Scheme, grad_gamma: Array, grad_beta: Array, count: int
) -> tuple[Array, Array, Array]:
    """Return (a, b, d) such that the gradient of the input is ``a grad + b v + d``."""
    of_grad = scheme.gamma * scheme.inverse_deviation
    of_value = -of_grad * grad_gamma / count
    constant = -of_grad * grad_beta / count
    if scheme.threshold is None:
        return of_grad, of_value, constant
    of_value = of_value * sign_of(arrays, scheme.gamma)
    return of_grad, of_value, constant + of_value * scheme.threshold


def running(old: Array, new: Array, factor: float) -> Array:
    """Return a running statistic after one step; ``factor`` weighs the new value."""
    return (1.0 - factor) * old + factor * new
