"""The mathematics of normalisations over rows, on codes: LayerNorm, RMSNorm, GroupNorm and InstanceNorm.

Rows are summed up in one order, so that every backend has the same bits. A part is what of a row lies in one group: its
elements go to 32 lanes in turn, the lanes are folded by halves, and so are the parts. Shapes: S samples, R rows of a
sample, P the most parts that a row may have, E elements of a part, filled up to whole lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

from actnn.errors import FormatError, UnsupportedError
from actnn.format import AFFINE, GROUP, KEY_BYTES, NORMALIZED, SCALE_BYTES, Curve, Part, Rounding
from actnn.kernels.contract import (
    AnyLayout,
    Array,
    Arrays,
    Backend,
    DividedLayout,
    Division,
    Key,
    RowNorm,
    Span,
    check_buffer,
)
from actnn.kernels.reference import codes, passes
from actnn.kernels.reference.batch_norm import inverse_deviation, widened
from actnn.kernels.reference.curves import REACH
from actnn.kernels.reference.numbers import bfloat16_value, big_integers, divide
from actnn.kernels.reference.pieces import runs

LANES = 32
# of a squared step, what each rounding leaves as noise; stochastic rounding on average
NOISE_SHARES = {Rounding.DITHER: 1 / 12, Rounding.STOCHASTIC: 1 / 6, Rounding.NEAREST: 0.0}


def check_rows(layout: AnyLayout, normalization: RowNorm) -> None:
    """Raise unless a layout's samples divide into rows and parameters, and their code is one that rows can have."""
    rows, elements = normalization.rows, layout.elements
    if layout.family not in (AFFINE, NORMALIZED):
        raise UnsupportedError(
            f"a {layout.family.name} code of normalised rows was asked for: expected an affine one, since rows have no "
            f"sides that readers share. Take FAMILIES['affine'] or FAMILIES['normalized']."
        )
    count = layout.samples * elements
    period = rows.parameters * rows.inner
    if count and (rows.width < 1 or elements % rows.width or period < 1 or elements % period):
        raise FormatError(
            f"samples of {elements} elements do not divide into rows of {rows.width} with {rows.parameters} parameters "
            f"of {rows.inner} elements each: expected divisors of {elements}."
        )
    expected = count // rows.width if count else 0
    if tuple(normalization.saved.shape) != (expected,):
        raise FormatError(
            f"inverse deviations of shape {tuple(normalization.saved.shape)} were given for {expected} rows: expected "
            f"one each."
        )


@dataclass(frozen=True)
class Parts:
    """Which elements of a sample the parts of its rows consist of, ``places`` (R, P, E), and which are there."""

    width: int
    places: Array
    inside: Array

    @staticmethod
    def of(arrays: Arrays, elements: int, width: int, like: Array) -> Parts:
        """Cut the rows of a sample at the borders of its groups."""
        first = width * arrays.arange(0, elements // width, like)[:, None]
        group = first // GROUP + arrays.arange(0, (width - 1) // GROUP + 2, like)
        start = arrays.where(GROUP * group > first, GROUP * group, first)
        stop = arrays.where(GROUP * group + GROUP < first + width, GROUP * group + GROUP, first + width)
        length = -(-min(width, GROUP) // LANES) * LANES
        places = start[..., None] + arrays.arange(0, length, like)
        inside = places < stop[..., None]
        return Parts(width, arrays.where(inside, places, 0), inside)

    def of_values(self, values: Array) -> Array:
        """Return (S, elements) as (S, R, P, E)."""
        return values[:, self.places]

    def mean(self, arrays: Arrays, parts: Array) -> Array:
        """Return the means (S, R) of rows from what their parts (S, R, P, E) hold."""
        samples, rows, count, length = parts.shape
        parts = arrays.where(self.inside, parts, 0.0)
        lanes = parts.reshape(samples, rows, count, length // LANES, LANES)
        # adding zero turns -0 into 0, as a sum that begins with 0 does
        total = lanes[:, :, :, 0] + 0.0
        for turn in range(1, length // LANES):
            total = total + lanes[:, :, :, turn]
        sums = folded(arrays, folded(arrays, total))
        # an array, not a number: frameworks would multiply by its reciprocal, which rounds twice
        return sums / arrays.cast(arrays.arange(self.width, self.width + 1, parts), "float32")


def folded(arrays: Arrays, x: Array) -> Array:
    """Add up the last axis by folding it in half until one number is left."""
    while x.shape[-1] > 1:
        half = (x.shape[-1] + 1) // 2
        rest = x.shape[-1] - half
        x = (
            arrays.concatenate([x[..., :rest] + x[..., half:], x[..., rest:half]], -1)
            if rest < half
            else (x[..., :half] + x[..., half:])
        )
    return x[..., 0]


def normalized(arrays: Arrays, values: Array, normalization: RowNorm) -> Array:
    """Return the normalised values, float32, and save the inverse deviations."""
    x = arrays.cast(values, "float32")
    samples, elements = x.shape
    width = normalization.rows.width
    if samples * elements == 0:
        return x
    parts = Parts.of(arrays, elements, width, values)
    centred = x.reshape(samples, elements // width, width)
    if normalization.centred:
        centred = centred - parts.mean(arrays, parts.of_values(x))[..., None]
    squares = (centred * centred).reshape(samples, elements)
    inverse = inverse_deviation(arrays, parts.mean(arrays, parts.of_values(squares)), normalization.epsilon)
    normalization.saved[:] = inverse.reshape(-1)
    return (centred * inverse[..., None]).reshape(samples, elements)


def forward(
    rows: Backend,
    arrays: Arrays,
    values: Array,
    out: Array,
    layout: AnyLayout,
    normalization: RowNorm,
    key: Key,
    buffer: Array,
    division: Division | None,
) -> None:
    """Do what ``Backend.row_norm`` says, by the other rows of a backend."""
    check_rows(layout, normalization)
    check_buffer(arrays, buffer, layout.nbytes)
    coded = normalized(arrays, values, normalization)
    gamma = parameter(arrays, normalization.gamma, 1.0, normalization)
    beta = parameter(arrays, normalization.beta, 0.0, normalization)
    channels = normalization.rows.channels
    if division is not None:
        assert isinstance(layout, DividedLayout)
        # readers of the output see gamma times the noise
        found = rows.ranges(arrays, coded, layout, division.stride, channels, None, gamma * gamma)
        layout.block.ranges[:] = arrays.numpy(found)
        rows.divide(layout, division)
    rows.encode(arrays, coded, layout, key, buffer)
    out[:] = arrays.cast(passes.scaled(coded, channels, gamma, beta), arrays.dtype(out))


def backward(
    rows: Backend,
    arrays: Arrays,
    grad: Array,
    code: Array,
    layout: AnyLayout,
    normalization: RowNorm,
    grads: Array | None,
    out: Array | None,
    stride: int,
    energy: Span | None,
) -> None:
    """Do what ``Backend.row_norm_backward`` says, by the other rows of a backend."""
    check_rows(layout, normalization)
    if energy is not None:
        rows.energy(arrays, grad, stride, energy)
    if grads is not None:
        channels = normalization.rows.channels
        grads[1], grads[0] = rows.gradient_sums(arrays, grad, channels, code, layout, False)
    if out is not None and layout.samples * layout.elements > 0:
        out[:] = arrays.cast(input_gradient(arrays, grad, code, layout, normalization), arrays.dtype(out))


def input_gradient(arrays: Arrays, grad: Array, code: Array, layout: AnyLayout, normalization: RowNorm) -> Array:
    """Return the gradient of the input, float32, where there are elements."""
    samples, elements, width = layout.samples, layout.elements, normalization.rows.width
    gamma = parameter(arrays, normalization.gamma, 1.0, normalization)
    split = passes.by_channel(arrays.cast(grad, "float32"), normalization.rows.channels)
    weighed = (split * gamma[:, None]).reshape(samples, elements)
    value = codes.decode(arrays, code, layout, Part.WHOLE)
    parts = Parts.of(arrays, elements, width, grad)
    of_value = parts.mean(arrays, parts.of_values(weighed * value))
    own = weighed * (1.0 + noise_shares(arrays, code, layout, width))
    shape = samples, elements // width
    others = value.reshape(*shape, width) * of_value[..., None]
    mean = parts.mean(arrays, parts.of_values(weighed))[..., None] if normalization.centred else 0.0
    result = (own.reshape(*shape, width) - (others + mean)) * normalization.saved.reshape(*shape, 1)
    return result.reshape(samples, elements)


def noise_shares(arrays: Arrays, code: Array, layout: AnyLayout, width: int) -> Array:
    """Return the variance of the noise in decoded values (S, elements), divided by the width of a row."""
    integers = arrays.cast(code[KEY_BYTES : layout.planes_offset], "int64")
    scales = bfloat16_value(arrays, big_integers(integers, SCALE_BYTES))
    scales = scales.reshape(layout.samples, layout.groups, layout.family.scales)
    found = [noise_variance(layout, bits, scales[start:stop]) for start, stop, bits in runs(layout)]
    group = arrays.arange(0, layout.elements, code) // GROUP
    constant, quadratic, quartic = (
        divide(arrays.concatenate(terms, 0), float(width))[:, group] for terms in zip(*found, strict=True)
    )
    if layout.family.curve is Curve.LINEAR:
        return constant
    u = codes.decode(arrays, code, layout, Part.WHOLE, bent=True)
    square = u * u
    return (quartic * square + quadratic) * square + constant


def noise_variance(layout: AnyLayout, bits: int, scales: Array) -> tuple[Array, Array, Array]:
    """Return (a, b, c), each (S, G): the mean of a + b u² + c u⁴ is the variance of what is decoded by u.

    Along the cubic, u is even over [s - h, s + h] and the value u³ + (1 - h²) u, measured in the reach: its variance is
    h² (3 s⁴ + 2 s² + 1/3 - 4/15 h² + 8/105 h⁴), of which the mean of powers of u is to be had.
    """
    step = divide(scales[..., -1], float(2**bits - 1))
    if layout.family.curve is Curve.LINEAR or layout.rounding is Rounding.NEAREST:
        return step * step * NOISE_SHARES[layout.rounding], 0.0 * step, 0.0 * step
    half = step * 0.5
    square = half * half
    constant = square * ((square * (31 / 21) - 14 / 15) * square + 1 / 3)
    quadratic = (square * 2.0) * (1.0 - square * 3.0)
    return constant * REACH**2, quadratic * REACH**2, (square * 3.0) * REACH**2


def parameter(arrays: Arrays, given: Array | None, default: float, normalization: RowNorm) -> Array:
    """Return a parameter as float32, or its default where the layer has none."""
    return widened(arrays, given, default, normalization.rows.parameters, normalization.saved)
