"""The variance of what a code decodes to, element by element, as its steps tell it.

It is a + b u² + c u⁴ on average, u being what is coded of a value along its family's curve.
"""

from __future__ import annotations

from actnn.format import GROUP, SCALE_BYTES, Curve, Part, Rounding
from actnn.kernels.contract import AnyLayout, Array, Arrays
from actnn.kernels.reference import codes
from actnn.kernels.reference.curves import reach_of
from actnn.kernels.reference.numbers import bfloat16_value, big_integers, divide
from actnn.kernels.reference.pieces import Piece

# of a squared step, what each rounding leaves as noise; stochastic rounding on average
NOISE_SHARES = {Rounding.DITHER: 1 / 12, Rounding.STOCHASTIC: 1 / 6, Rounding.NEAREST: 0.0}

Terms = tuple[Array, Array, Array]


def terms(layout: AnyLayout, step: Array, reach: Array) -> Terms:
    """Return (a, b, c) of groups whose neighbouring levels are a step apart.

    Along the cubic, u is even over [s - h, s + h] and the value u³ + (1 - h²) u, measured in the reach: its variance is
    h² (3 s⁴ + 2 s² + 1/3 - 4/15 h² + 8/105 h⁴), of which the mean of powers of u is to be had. That of a square is
    4 h² (s² / 3 + h² / 45).
    """
    if layout.family.curve is Curve.LINEAR or layout.rounding is not Rounding.DITHER:
        return step * step * NOISE_SHARES[layout.rounding], 0.0 * step, 0.0 * step
    half = step * 0.5
    square = half * half
    if layout.family.curve is Curve.ROOT:
        return (square * square) * (-16 / 45), square * (4 / 3), 0.0 * step
    constant = square * ((square * (31 / 21) - 14 / 15) * square + 1 / 3)
    quadratic = (square * 2.0) * (1.0 - square * 3.0)
    scale = reach * reach
    return constant * scale, quadratic * scale, (square * 3.0) * scale


def of_sides(arrays: Arrays, layout: AnyLayout, bits: int, scales: Array) -> tuple[Terms, Terms]:
    """Return the terms of the negative and of the positive side, each (S, G); scales are (S, G, scales)."""
    negative = layout.family.negative[bits]
    unit = scales[..., -1] if layout.family.unit else None
    own = scales[..., : layout.family.sides]
    reach = reach_of(layout.family, unit, own[..., -1])
    below = divide(arrays, own[..., 0], float(negative - 1)) if negative > 1 else 0.0 * own[..., -1]
    above = divide(arrays, own[..., -1], float(2**bits - negative - 1))
    return terms(layout, below, reach), terms(layout, above, reach)


def of_groups(arrays: Arrays, code: Array, piece: Piece) -> tuple[Terms, Terms]:
    """Return the terms of both sides of the groups of a piece."""
    own = piece.layout
    stored = big_integers(arrays.cast(code[codes.scales_of(piece)], "int64"), SCALE_BYTES)
    scales = bfloat16_value(arrays, stored).reshape(own.samples, own.groups, own.family.scales)
    return of_sides(arrays, own, own.bits, scales)


def of_piece(arrays: Arrays, code: Array, piece: Piece) -> Array:
    """Return the variance (S, elements) of the decoded values of a piece."""
    family = piece.layout.family
    below, above = of_groups(arrays, code, piece)
    # before what it is multiplied with: a decode wants the most room
    u = None if family.curve is Curve.LINEAR else codes.decode_piece(arrays, code, piece, Part.WHOLE, bent=True)
    group = arrays.arange(0, piece.layout.elements, code) // GROUP
    side = None if family.affine else codes.sides_of_piece(arrays, code, piece)

    def spread(term: int) -> Array:
        own = above[term][:, group]
        return own if side is None else arrays.where(side, own, below[term][:, group])

    if u is None:
        return spread(0)
    square = u * u
    return (spread(2) * square + spread(1)) * square + spread(0)
