"""The kernel of smooth functions of what codes stand for, function by function as the reference has them.

Each function returns its value and its first three derivatives; what is not asked for, the compiler leaves out.
"""

import triton
import triton.language as tl

from actnn.kernels.reference import smooth
from actnn.kernels.triton.device.curves import TWELFTH, cubic, reach_of
from actnn.kernels.triton.device.exponentials import half_exponential, logarithm
from actnn.kernels.triton.device.kernel import AFFINE, LINEAR, NEAREST, ROOT, STOCHASTIC, kernel
from actnn.kernels.triton.device.places import (
    load_tile,
    octets,
    parameter,
    sample_planes,
    store_tile,
    tile,
    tile_channels,
)
from actnn.kernels.triton.device.values import decoded_tile, load_scales, whole_steps
from actnn.kernels.triton.device.words import negative_words

MOST_SLOPE, MOST_CORRECTION = tl.constexpr(smooth.MOST_SLOPE), tl.constexpr(smooth.MOST_CORRECTION)


@triton.jit
def bounded(x, MOST: tl.constexpr):
    """Return values within [-MOST, MOST]; a NaN becomes a number."""
    return tl.where(x < MOST, tl.where(x > -MOST, x, -MOST), MOST)


@triton.jit
def exponential(x):
    """Return exp(x)."""
    return 2.0 * half_exponential(x)


@triton.jit
def inverse(x):
    """Return 1 / x."""
    return tl.div_rn(0.0 * x + 1.0, x)


@triton.jit
def logistic(x):
    """Return 1 / (1 + exp(-x)) and its derivatives."""
    s = inverse(1.0 + exponential(0.0 - bounded(x, 80.0)))
    first = s * (1.0 - s)
    return s, first, first * (1.0 - 2.0 * s), first * (1.0 - 6.0 * first)


@triton.jit
def times_self(y, s0, s1, s2, s3):
    """Return y s(y) and its derivatives."""
    return y * s0, s0 + y * s1, 2.0 * s1 + y * s2, 3.0 * s2 + y * s3


@triton.jit
def gelu(y):
    """Return y times the distribution of a normal variable."""
    bound = bounded(y, 13.0)
    density = exponential(-0.5 * (bound * bound))
    t = inverse(1.0 + 0.23164189 * tl.abs(bound))
    tail = (((0.5307027 * t - 0.7265760) * t + 0.7107069) * t - 0.14224837) * t + 0.12741480
    tail = tail * t * density
    phi = tl.where(y < 0, tail, 1.0 - tail)
    p = 0.39894228 * density
    return y * phi, phi + y * p, p * (2.0 - bound * bound), p * (bound * (bound * bound - 4.0))


@triton.jit
def gelu_tanh(y):
    """Return gelu by the hyperbolic tangent of a cubic."""
    twice: tl.constexpr = 1.5957691216
    cube: tl.constexpr = 0.044715
    x = bounded(y, 16.0)
    s0, s1, s2, s3 = logistic(twice * (x + cube * (x * x * x)))
    p1, p2 = twice + 3 * twice * cube * (x * x), 6 * twice * cube * x
    second = s2 * (p1 * p1) + s1 * p2
    third = s3 * (p1 * p1 * p1) + 3.0 * (s2 * (p1 * p2)) + s1 * (6 * twice * cube)
    return times_self(y, s0, s1 * p1, second, third)


@triton.jit
def silu(y):
    """Return y times a logistic function."""
    s0, s1, s2, s3 = logistic(y)
    return times_self(y, s0, s1, s2, s3)


@triton.jit
def quick_gelu(y):
    """Return y times a logistic function of 1.702 y."""
    k: tl.constexpr = 1.702
    s0, s1, s2, s3 = logistic(k * y)
    return times_self(y, s0, k * s1, k * k * s2, k * k * k * s3)


@triton.jit
def tanh(y):
    """Return the hyperbolic tangent and its derivatives."""
    s0, s1, s2, s3 = logistic(2.0 * y)
    return 2.0 * s0 - 1.0, 4.0 * s1, 8.0 * s2, 16.0 * s3


@triton.jit
def piece(y, within, beyond):
    """Return 0 below -3, ``beyond`` above 3, and ``within`` between."""
    return tl.where(y < -3, 0.0 * within, tl.where(y > 3, beyond, within))


@triton.jit
def hardswish(y):
    """Return y (y + 3) / 6 between -3 and 3."""
    none = 0.0 * y
    value = piece(y, y * (y + 3.0) * (1 / 6), y)
    return value, piece(y, y * (1 / 3) + 0.5, none + 1.0), piece(y, none + 1 / 3, none), none


@triton.jit
def hardsigmoid(y):
    """Return y / 6 + 1 / 2 between -3 and 3."""
    none = 0.0 * y
    return piece(y, y * (1 / 6) + 0.5, none + 1.0), piece(y, none + 1 / 6, none), none, none


@triton.jit
def softplus(y):
    """Return log(1 + exp(y)), and y itself beyond 20."""
    s0, s1, s2, _ = logistic(y)
    tail = logarithm(1.0 + exponential(0.0 - tl.abs(bounded(y, 80.0))))
    value = tl.where(y > 0, y, 0.0) + tail
    far = y > 20
    return tl.where(far, y, value), tl.where(far, 1.0, s0), tl.where(far, 0.0, s1), tl.where(far, 0.0, s2)


@triton.jit
def mish(y):
    """Return y tanh(softplus(y)) and its derivatives."""
    bound = bounded(y, 80.0)
    e = exponential(tl.where(bound < 20, bound, 20.0))
    n = e * (e + 2.0)
    rest = tl.div_rn(2.0 + 0.0 * n, n + 2.0)
    t = n * (0.5 * rest)
    q = rest * (2.0 - rest)
    s0, s1, s2, _ = logistic(y)
    first = q * s0
    second = q * s1 - 2.0 * (t * (first * s0))
    inner = first * first * s0 + t * (second * s0) + 2.0 * (t * (first * s1))
    return times_self(y, t, first, second, q * s2 - 2.0 * inner)


@triton.jit
def elu(y):
    """Return y above 0 and exp(y) - 1 below."""
    bound = bounded(y, 80.0)
    e = exponential(tl.where(bound < 0, bound, 0.0))
    second = tl.where(y > 0, 0.0, e)
    return tl.where(y > 0, y, e - 1.0), tl.where(y > 0, 1.0, e), second, second


@triton.jit
def derivatives(y, FUNCTION: tl.constexpr):
    """Return a function and its first three derivatives; the numbers are those of ``Smooth``."""
    if FUNCTION == 0:
        return gelu(y)
    elif FUNCTION == 1:
        return gelu_tanh(y)
    elif FUNCTION == 2:
        return silu(y)
    elif FUNCTION == 3:
        return logistic(y)
    elif FUNCTION == 4:
        return tanh(y)
    elif FUNCTION == 5:
        return hardswish(y)
    elif FUNCTION == 6:
        return hardsigmoid(y)
    elif FUNCTION == 7:
        return softplus(y)
    elif FUNCTION == 8:
        return mish(y)
    elif FUNCTION == 9:
        return elu(y)
    else:
        return quick_gelu(y)


@triton.jit
def half_variance(step, FORM: tl.constexpr):
    """Return half the variance of what is coded."""
    if FORM.rounding == NEAREST:
        half = step * step * 0.0
    elif FORM.rounding == STOCHASTIC:
        half = step * step * TWELFTH
    else:
        half = step * step * (0.5 * TWELFTH)
    return tl.where(half <= MOST_CORRECTION, half, MOST_CORRECTION)


@triton.jit
def corrected(u, words, below, above, reach, negative, scale, shift, FORM: tl.constexpr, FUNCTION: tl.constexpr,
              DERIVATIVE: tl.constexpr):  # fmt: skip
    """Return a function of what is coded as u, less what noise adds to its mean in the second order."""
    correction = above
    if FORM.kind != AFFINE:
        correction = tl.where(words >= negative, above, below)
    x = u
    if FORM.curve == ROOT:
        x = u * u
    elif FORM.curve != LINEAR:
        x = cubic(u) * reach
    y = x * scale + shift
    f0, f1, f2, f3 = derivatives(y, FUNCTION)
    if DERIVATIVE:
        value, first, second = f1, f2, f3
    else:
        value, first, second = f0, f1, f2
    if FORM.curve == LINEAR:
        bent = second * (scale * scale)
    elif FORM.curve == ROOT:
        bent = second * (scale * scale) * (4.0 * x) + first * scale * 2.0
    else:
        slope = (u * u * 3.0 + 1.0) * reach
        slope = tl.minimum(slope * slope, MOST_SLOPE)
        bent = second * (scale * scale) * slope + first * scale * ((u * 6.0) * reach)
    # bounds make a number of a NaN
    return tl.where(y == y, value - correction * bent, y)


@kernel
def decode_function_kernel(
    code, grad, out, widths, offsets, gamma, beta, samples, elements, groups, blocks, first_sample, rows,
    inner, count, magic_inner, magic_count,
    FORM: tl.constexpr, FUNCTION: tl.constexpr, DERIVATIVE: tl.constexpr, SCALED: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    """Write a smooth function, or its derivative, of what some samples of a code stand for, times grad."""
    row, g, here = tile(rows, groups, blocks, FORM)
    n = row + first_sample
    bits, base = sample_planes(n, samples, groups, elements, blocks, first_sample, widths, offsets, FORM)
    low_words, high_words, low, high = decoded_tile(code, n, g, here, groups, elements, bits, base, FORM, False, True)
    negative_scale, positive_scale, unit = load_scales(code, n.to(tl.int64) * groups + g, here, FORM)
    below, above = whole_steps(negative_scale, positive_scale, bits, FORM)
    below, above = half_variance(below, FORM)[:, None, None], half_variance(above, FORM)[:, None, None]
    negative, reach = negative_words(bits, FORM).to(tl.uint32), reach_of(unit, FORM)[:, None, None]
    pair, bit = octets()
    for half in tl.static_range(2):
        words = low_words if half == 0 else high_words
        u = low if half == 0 else high
        e = 16 * pair + bit + 8 * half
        scale, shift = 1.0, 0.0
        if SCALED:
            c = tile_channels(g, e, half, elements, inner, count, magic_inner, magic_count, CUT, FORM)
            scale, shift = parameter(gamma, c, 1.0), parameter(beta, c, 0.0)
        y = corrected(u, words, below, above, reach, negative, scale, shift, FORM, FUNCTION, DERIVATIVE)
        if grad is not None:
            y = load_tile(grad, row, g, here, elements, e, FORM) * y
        store_tile(out, row, g, here, elements, e, y, FORM)
