"""The mathematics of normalisations over rows, on codes: LayerNorm, RMSNorm, GroupNorm and InstanceNorm.

Rows are summed up in one order, so that every backend has the same bits. A part is what of a row lies in one group: its
elements go to 32 lanes in turn, the lanes are folded by halves, and so are the parts. Shapes: S samples, R rows of a
sample, P the most parts that a row may have, E elements of a part, filled up to whole lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

from actnn.errors import FormatError, UnsupportedError
from actnn.format import AFFINE, GROUP, MAX_BITS, NORMALIZED, Curve, Part, uniform_layout
from actnn.kernels.contract import (
    AnyLayout,
    Array,
    Arrays,
    Backend,
    Channels,
    Division,
    Key,
    RowNorm,
    Span,
    check_divided,
)
from actnn.kernels.reference import codes, variance
from actnn.kernels.reference.batch_norm import inverse_deviation, widened
from actnn.kernels.reference.numbers import divide, filled
from actnn.kernels.reference.pieces import Piece, pieces, whole_samples

LANES = 32


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
    """The parts of rows that lie in a piece of each sample: rows ``first`` to ``last``, not all of whose parts may.

    ``places`` (R, P, E) tells which elements of the piece they consist of, ``inside`` which of these are there.
    """

    first: int
    last: int
    places: Array
    inside: Array

    @staticmethod
    def of(arrays: Arrays, places: slice, width: int, like: Array) -> Parts:
        """Cut the rows of some groups of a sample at the borders of these."""
        rows = range(places.start // width, -(-places.stop // width))
        first = width * arrays.arange(rows.start, rows.stop, like)[:, None]
        group = first // GROUP + arrays.arange(0, most_parts(width), like)
        start = arrays.where(GROUP * group > first, GROUP * group, first)
        stop = arrays.where(GROUP * group + GROUP < first + width, GROUP * group + GROUP, first + width)
        # others are of another piece
        here = (start >= places.start) & (start < places.stop)
        length = -(-min(width, GROUP) // LANES) * LANES
        found = start[..., None] + arrays.arange(0, length, like)
        inside = (found < stop[..., None]) & here[..., None]
        return Parts(rows.start, rows.stop, arrays.where(inside, found - places.start, 0), inside)

    def sums(self, arrays: Arrays, values: Array) -> Array:
        """Return the sums (S, R, P) of parts of values (S, places); those of another piece are 0."""
        parts = arrays.where(self.inside, values[:, self.places], 0.0)
        samples, rows, count, length = parts.shape
        lanes = parts.reshape(samples, rows, count, length // LANES, LANES)
        # adding zero turns -0 into 0, as a sum that begins with 0 does
        total = lanes[:, :, :, 0] + 0.0
        for turn in range(1, length // LANES):
            total = total + lanes[:, :, :, turn]
        return folded(arrays, total)


def most_parts(width: int) -> int:
    """Return the most parts that a row may have."""
    return (width - 1) // GROUP + 2


class RowSums:
    """Sums of rows, of which pieces of a code hand in their parts."""

    def __init__(self, arrays: Arrays, layout: AnyLayout, width: int, like: Array) -> None:
        self._arrays, self._width, self._like = arrays, width, like
        shape = layout.samples, layout.elements // width, most_parts(width)
        self._sums = filled(arrays, shape, 0.0, like)

    def add(self, piece: Piece, *values: Array) -> None:
        """Add what of rows lies in a piece."""
        parts = Parts.of(self._arrays, piece.places, self._width, self._like)
        where = piece.samples, slice(parts.first, parts.last)
        for each in values:
            self._sums[where] = self._sums[where] + parts.sums(self._arrays, each)

    def means(self) -> Array:
        """Return the means (S, R)."""
        # an array, not a number: frameworks would multiply by its reciprocal, which rounds twice
        width = self._arrays.arange(self._width, self._width + 1, self._like)
        return self._arrays.divide(folded(self._arrays, self._sums), self._arrays.cast(width, "float32"))


def of_rows(arrays: Arrays, numbers: Array, piece: Piece, width: int) -> Array:
    """Return for each element of a piece the number (S, R) of its row."""
    row = arrays.arange(piece.places.start, piece.places.stop, numbers) // width
    return numbers[piece.samples][:, row]


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


@dataclass(frozen=True)
class Deviations:
    """Means, where rows are centred, and inverse deviations of rows, (S, R) each."""

    width: int
    mean: Array | None
    inverse: Array

    @staticmethod
    def of(arrays: Arrays, values: Array, layout: AnyLayout, normalization: RowNorm) -> Deviations:
        """Measure rows."""
        width, mean = normalization.rows.width, None
        if normalization.centred:
            sums = RowSums(arrays, layout, width, values)
            for piece in pieces(layout):
                sums.add(piece, piece_of(arrays, values, piece))
            mean = sums.means()
        squares = RowSums(arrays, layout, width, values)
        for piece in pieces(layout):
            centred = piece_of(arrays, values, piece)
            if mean is not None:
                centred = centred - of_rows(arrays, mean, piece, width)
            squares.add(piece, centred * centred)
        return Deviations(width, mean, inverse_deviation(arrays, squares.means(), normalization.epsilon))

    def normalized(self, arrays: Arrays, values: Array, piece: Piece) -> Array:
        """Return the normalised values of a piece."""
        x = piece_of(arrays, values, piece)
        if self.mean is not None:
            x = x - of_rows(arrays, self.mean, piece, self.width)
        return x * of_rows(arrays, self.inverse, piece, self.width)


def piece_of(arrays: Arrays, values: Array, piece: Piece) -> Array:
    """Return the values of a piece, float32."""
    return arrays.cast(values[piece.samples, piece.places], "float32")


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
    codes.header(arrays, values, layout, key, buffer)
    gamma = parameter(arrays, normalization.gamma, 1.0, normalization)
    beta = parameter(arrays, normalization.beta, 0.0, normalization)
    channels = normalization.rows.channels
    # widths of samples may not be known before ranges are; where there are no elements, there may be no rows either
    whole = uniform_layout(layout.samples, layout.elements, layout.family, MAX_BITS, layout.rounding)
    found = Deviations.of(arrays, values, whole, normalization) if layout.samples * layout.elements else None
    if found is not None:
        normalization.saved[:] = found.inverse.reshape(-1)
    if division is not None:
        layout = check_divided(layout)
        ranges = (
            [] if found is None else normalized_ranges(rows, arrays, values, whole, found, division, channels, gamma)
        )
        layout.block.ranges[:] = arrays.numpy(arrays.concatenate(ranges, 0)) if ranges else 0.0
        rows.divide(layout, division)
    if found is None:
        return
    for piece in pieces(layout):
        coded = found.normalized(arrays, values, piece)
        codes.encode_piece(arrays, coded, None, piece, key, buffer)
        channel = piece.channels(arrays, channels, values)
        output = coded * gamma[channel] + beta[channel]
        out[piece.samples, piece.places] = arrays.cast(output, arrays.dtype(out))


def normalized_ranges(
    rows: Backend,
    arrays: Arrays,
    values: Array,
    layout: AnyLayout,
    found: Deviations,
    division: Division,
    channels: Channels,
    gamma: Array,
) -> list[Array]:
    """Return the ranges of normalised values, of some samples after the other."""
    ranges = []
    for some in whole_samples(layout):
        coded = arrays.empty((some.stop - some.start, layout.elements), "float32", values)
        for piece in pieces(layout, range(some.start, some.stop)):
            own = slice(piece.samples.start - some.start, piece.samples.stop - some.start)
            coded[own, piece.places] = found.normalized(arrays, values, piece)
        few = uniform_layout(some.stop - some.start, layout.elements, layout.family, MAX_BITS, layout.rounding)
        # readers of the output see gamma times the noise
        ranges.append(rows.ranges(arrays, coded, few, division.stride, channels, None, gamma * gamma))
    return ranges


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
        input_gradient(arrays, grad, code, layout, normalization, out)


def input_gradient(
    arrays: Arrays, grad: Array, code: Array, layout: AnyLayout, normalization: RowNorm, out: Array
) -> None:
    """Write the gradient of the input, where there are elements."""
    width, channels = normalization.rows.width, normalization.rows.channels
    gamma = parameter(arrays, normalization.gamma, 1.0, normalization)
    inverse = normalization.saved.reshape(layout.samples, layout.elements // width)
    products, sums = (RowSums(arrays, layout, width, grad) for _ in range(2))

    def weighed(piece: Piece) -> Array:
        return piece_of(arrays, grad, piece) * gamma[piece.channels(arrays, channels, grad)]

    for piece in pieces(layout):
        own = weighed(piece)
        products.add(piece, own * codes.decode_piece(arrays, code, piece, Part.WHOLE))
        if normalization.centred:
            sums.add(piece, own)
    of_value, of_one = products.means(), sums.means()
    for piece in pieces(layout):
        own = weighed(piece) * (1.0 + noise_shares(arrays, code, piece, width))
        others = codes.decode_piece(arrays, code, piece, Part.WHOLE) * of_rows(arrays, of_value, piece, width)
        mean = of_rows(arrays, of_one, piece, width) if normalization.centred else 0.0
        result = (own - (others + mean)) * of_rows(arrays, inverse, piece, width)
        out[piece.samples, piece.places] = arrays.cast(result, arrays.dtype(out))


def noise_shares(arrays: Arrays, code: Array, piece: Piece, width: int) -> Array:
    """Return the variance of the noise in decoded values (S, elements), divided by the width of a row."""
    own = piece.layout
    _, found = variance.of_groups(arrays, code, piece)
    group = arrays.arange(0, own.elements, code) // GROUP
    constant, quadratic, quartic = (divide(arrays, term, float(width))[:, group] for term in found)
    if own.family.curve is Curve.LINEAR:
        return constant
    u = codes.decode_piece(arrays, code, piece, Part.WHOLE, bent=True)
    square = u * u
    return (quartic * square + quadratic) * square + constant


def parameter(arrays: Arrays, given: Array | None, default: float, normalization: RowNorm) -> Array:
    """Return a parameter as float32, or its default where the layer has none."""
    return widened(arrays, given, default, normalization.rows.parameters, normalization.saved)
