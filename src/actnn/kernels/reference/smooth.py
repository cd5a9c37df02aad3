"""Smooth functions of what codes stand for, right on average to second order in the step."""

from __future__ import annotations

from collections.abc import Callable

from actnn.errors import FormatError
from actnn.format import Curve, Part, Rounding
from actnn.kernels.contract import AnyLayout, Array, Arrays, OutputAffine, Smooth
from actnn.kernels.reference import batch_norm, codes
from actnn.kernels.reference.curves import TWELFTH, reach_of
from actnn.kernels.reference.exponentials import half_exponential, logarithm
from actnn.kernels.reference.numbers import divide
from actnn.kernels.reference.pieces import Piece

# a function and its first three derivatives
Derivatives = tuple[Array, Array, Array, Array]

# the variance of what is decoded, in twelfths of a squared step
VARIANCE = {Rounding.DITHER: 1.0, Rounding.STOCHASTIC: 2.0, Rounding.NEAREST: 0.0}
# beyond these an infinity would be multiplied by 0
MOST_SLOPE = 2.0**118
MOST_CORRECTION = 2.0**100


def decode_function(
    arrays: Arrays,
    buffer: Array,
    layout: AnyLayout,
    function: Smooth,
    derivative: int,
    dtype: str,
    affine: OutputAffine | None,
    samples: range | None,
    out: Array | None,
    grad: Array | None,
) -> Array:
    """Do what ``Backend.decode_function`` says."""
    check_function(layout, derivative, affine)
    before = 0 if samples is None else samples.start
    scale = shift = None
    if affine is not None:
        scale, shift = batch_norm.output_scale(arrays, affine, Part.WHOLE, buffer)

    def finished(u: Array, piece: Piece) -> Array:
        correction = corrections(arrays, buffer, piece)
        x, slope, bend = along_curve(arrays, u, buffer, piece)
        y, gamma = x, 1.0
        if affine is not None and scale is not None and shift is not None:
            channel = piece.channels(arrays, affine.channels, buffer)
            gamma = scale[channel]
            y = x * gamma + shift[channel]
        value, first, second = FUNCTIONS[function](arrays, y)[derivative : derivative + 3]
        result = value - correction * (second * (gamma * gamma) * slope + first * gamma * bend)
        # bounds make a number of a NaN
        result = arrays.where(y == y, result, y)
        if grad is None:
            return result
        rows = slice(piece.samples.start - before, piece.samples.stop - before)
        return arrays.cast(grad[rows, piece.places], "float32") * result

    return codes.decode(arrays, buffer, layout, Part.WHOLE, dtype, samples, out, bent=True, finished=finished)


def check_function(layout: AnyLayout, derivative: int, affine: OutputAffine | None) -> None:
    """Raise FormatError for a derivative or for parameters that ``decode_function`` does not take."""
    if derivative not in (0, 1):
        raise FormatError(
            f"derivative {derivative} of a function was asked for: expected 0, the function itself, or 1."
        )
    if affine is not None and (affine.threshold is not None or not layout.family.affine):
        raise FormatError(
            f"a function of the output of a BatchNorm cannot be read from a {layout.family.name} code with sides: "
            "expected a code without sides and no threshold. Decode it, and apply the function."
        )


def corrections(arrays: Arrays, buffer: Array, piece: Piece) -> Array:
    """Return half the variance of what is coded."""
    layout, bits = piece.layout, piece.layout.bits
    words, scales, _ = codes.decoded_piece(arrays, buffer, piece)
    negative, sides = layout.family.negative[bits], scales[..., : layout.family.sides]
    step = divide(arrays, sides[..., -1], float(2**bits - negative - 1)) + 0.0 * arrays.cast(words, "float32")
    if not layout.family.affine:
        below = divide(arrays, sides[..., 0], float(negative - 1)) if negative > 1 else 0.0 * sides[..., -1]
        step = arrays.where(words >= negative, step, below)
    half = step * step * (0.5 * TWELFTH * VARIANCE[layout.rounding])
    return codes.ungroup(arrays.where(half <= MOST_CORRECTION, half, MOST_CORRECTION), layout.elements)


def along_curve(arrays: Arrays, u: Array, buffer: Array, piece: Piece) -> tuple[Array, Array, Array]:
    """Return the value that is coded as u, the square of its derivative by u, and its second derivative."""
    layout = piece.layout
    if layout.family.curve is Curve.LINEAR:
        return u, 0.0 * u + 1.0, 0.0 * u
    if layout.family.curve is Curve.ROOT:
        return u * u, 4.0 * (u * u), 0.0 * u + 2.0
    _, scales, noise = codes.decoded_piece(arrays, buffer, piece)
    reach = reach_of(layout.family, scales[..., -1] if layout.family.unit else None, scales[..., -1])
    reach = codes.ungroup(reach + 0.0 * arrays.cast(noise, "float32"), layout.elements)
    square = u * u
    slope = (square * 3.0 + 1.0) * reach
    slope = slope * slope
    return (
        (u * (square + 1.0)) * reach,
        arrays.where(slope <= MOST_SLOPE, slope, MOST_SLOPE),
        (u * 6.0) * reach,
    )


def bounded(arrays: Arrays, x: Array, most: float) -> Array:
    """Return values within [-most, most]; a NaN becomes a number."""
    return arrays.where(x < most, arrays.where(x > -most, x, -most), most)


def exponential(arrays: Arrays, x: Array) -> Array:
    """Return exp(x)."""
    return 2.0 * half_exponential(arrays, x)


def logistic(arrays: Arrays, x: Array) -> Derivatives:
    """Return 1 / (1 + exp(-x)) and its derivatives."""
    s = divide(arrays, 1.0, 1.0 + exponential(arrays, 0.0 - bounded(arrays, x, 80.0)))
    first = s * (1.0 - s)
    return s, first, first * (1.0 - 2.0 * s), first * (1.0 - 6.0 * first)


def times_self(y: Array, s: Derivatives) -> Derivatives:
    """Return y s(y) and its derivatives."""
    return y * s[0], s[0] + y * s[1], 2.0 * s[1] + y * s[2], 3.0 * s[2] + y * s[3]


def gelu(arrays: Arrays, y: Array) -> Derivatives:
    """Return y times the distribution of a normal variable, by Abramowitz and Stegun, 7.1.26."""
    bound = bounded(arrays, y, 13.0)
    density = exponential(arrays, -0.5 * (bound * bound))
    t = divide(arrays, 1.0, 1.0 + 0.23164189 * abs(bound))
    tail = (((0.5307027 * t - 0.7265760) * t + 0.7107069) * t - 0.14224837) * t + 0.12741480
    tail = tail * t * density
    phi = arrays.where(y < 0, tail, 1.0 - tail)
    p = 0.39894228 * density
    return y * phi, phi + y * p, p * (2.0 - bound * bound), p * (bound * (bound * bound - 4.0))


def gelu_tanh(arrays: Arrays, y: Array) -> Derivatives:
    """Return gelu by the hyperbolic tangent of a cubic, which is twice a logistic function less 1."""
    twice, cube = 1.5957691216, 0.044715
    x = bounded(arrays, y, 16.0)
    s = logistic(arrays, twice * (x + cube * (x * x * x)))
    p1, p2, p3 = twice + 3 * twice * cube * (x * x), 6 * twice * cube * x, 6 * twice * cube
    second = s[2] * (p1 * p1) + s[1] * p2
    third = s[3] * (p1 * p1 * p1) + 3.0 * (s[2] * (p1 * p2)) + s[1] * p3
    return times_self(y, (s[0], s[1] * p1, second, third))


def quick_gelu(arrays: Arrays, y: Array) -> Derivatives:
    """Return y times a logistic function of 1.702 y."""
    k = 1.702
    s = logistic(arrays, k * y)
    return times_self(y, (s[0], k * s[1], k * k * s[2], k * k * k * s[3]))


def tanh(arrays: Arrays, y: Array) -> Derivatives:
    """Return the hyperbolic tangent and its derivatives."""
    s = logistic(arrays, 2.0 * y)
    return 2.0 * s[0] - 1.0, 4.0 * s[1], 8.0 * s[2], 16.0 * s[3]


def pieces(arrays: Arrays, y: Array, inside: Derivatives, beyond: Derivatives) -> Derivatives:
    """Return 0 below -3, ``beyond`` above 3, and ``inside`` between."""

    def chosen(within: Array, above: Array) -> Array:
        return arrays.where(y < -3, 0.0 * within, arrays.where(y > 3, above, within))

    value, first, second, third = map(chosen, inside, beyond)
    return value, first, second, third


def hardswish(arrays: Arrays, y: Array) -> Derivatives:
    """Return y (y + 3) / 6 between -3 and 3."""
    none = 0.0 * y
    return pieces(
        arrays, y, (y * (y + 3.0) * (1 / 6), y * (1 / 3) + 0.5, none + 1 / 3, none), (y, none + 1.0, none, none)
    )


def hardsigmoid(arrays: Arrays, y: Array) -> Derivatives:
    """Return y / 6 + 1 / 2 between -3 and 3."""
    none = 0.0 * y
    return pieces(arrays, y, (y * (1 / 6) + 0.5, none + 1 / 6, none, none), (none + 1.0, none, none, none))


def softplus(arrays: Arrays, y: Array) -> Derivatives:
    """Return log(1 + exp(y)), and y itself beyond 20."""
    s = logistic(arrays, y)
    tail = logarithm(arrays, 1.0 + exponential(arrays, 0.0 - abs(bounded(arrays, y, 80.0))))
    value = arrays.where(y > 0, y, 0.0) + tail
    none = 0.0 * s[0]
    first, second, third = (
        arrays.where(y > 20, none + limit, each) for limit, each in zip((1.0, 0.0, 0.0), s, strict=False)
    )
    return arrays.where(y > 20, y, value), first, second, third


def mish(arrays: Arrays, y: Array) -> Derivatives:
    """Return y tanh(softplus(y)) and its derivatives."""
    bound = bounded(arrays, y, 80.0)
    e = exponential(arrays, arrays.where(bound < 20, bound, 20.0))
    n = e * (e + 2.0)
    rest = divide(arrays, 2.0, n + 2.0)
    t = n * (0.5 * rest)
    # 1 - t * t, which would lose all of it where t is near 1
    q = rest * (2.0 - rest)
    s = logistic(arrays, y)
    first = q * s[0]
    second = q * s[1] - 2.0 * (t * (first * s[0]))
    inner = first * first * s[0] + t * (second * s[0]) + 2.0 * (t * (first * s[1]))
    return times_self(y, (t, first, second, q * s[2] - 2.0 * inner))


def elu(arrays: Arrays, y: Array) -> Derivatives:
    """Return y above 0 and exp(y) - 1 below."""
    bound = bounded(arrays, y, 80.0)
    e = exponential(arrays, arrays.where(bound < 0, bound, 0.0))
    none = 0.0 * e
    first, second = arrays.where(y > 0, none + 1.0, e), arrays.where(y > 0, none, e)
    return arrays.where(y > 0, y, e - 1.0), first, second, second


FUNCTIONS: dict[Smooth, Callable[[Arrays, Array], Derivatives]] = {
    Smooth.GELU: gelu,
    Smooth.GELU_TANH: gelu_tanh,
    Smooth.SILU: lambda arrays, y: times_self(y, logistic(arrays, y)),
    Smooth.SIGMOID: logistic,
    Smooth.TANH: tanh,
    Smooth.HARDSWISH: hardswish,
    Smooth.HARDSIGMOID: hardsigmoid,
    Smooth.SOFTPLUS: softplus,
    Smooth.MISH: mish,
    Smooth.ELU: elu,
    Smooth.QUICK_GELU: quick_gelu,
}
