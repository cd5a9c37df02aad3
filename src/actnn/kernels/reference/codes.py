"""The definition of the format in plain array operations; runs on any device of any framework.

Shapes: S samples, G groups of a sample, E = 256 elements of a group, B = 32 bytes of a plane.
"""

from __future__ import annotations

from collections.abc import Callable

from actnn.format import GROUP, KEY_BYTES, PLANE_BYTES, SCALE_BYTES, Curve, Part, Rounding, index_bytes, plane_bytes
from actnn.kernels.contract import AnyLayout, Array, Arrays, Key, check_buffer
from actnn.kernels.reference.curves import (
    LEAST_BENT,
    MARGIN,
    MOST_BENT,
    TWELFTH,
    cubic,
    cubic_ends,
    group_unit,
    reach_of,
)
from actnn.kernels.reference.numbers import (
    HALF,
    bfloat16_down,
    bfloat16_scale,
    bfloat16_value,
    big_integers,
    divide,
    group_noise,
    little_endian,
    masked,
)
from actnn.kernels.reference.pieces import Piece, index_planes, pieces, stretches

STEP = 1 << 16
POISON = 0x7FC0


def encode(
    arrays: Arrays, values: Array, sides: Array | None, layout: AnyLayout, key: Key, buffer: Array | None = None
) -> Array:
    """Return the buffer of values; ``sides`` decides where they lie in place of their own sign."""
    buffer = header(arrays, values, layout, key, buffer)
    for piece in pieces(layout):
        x = arrays.cast(values[piece.samples, piece.places], "float32")
        encode_piece(arrays, x, None if sides is None else sides[piece.samples, piece.places], piece, key, buffer)
    return buffer


def header(arrays: Arrays, like: Array, layout: AnyLayout, key: Key, buffer: Array | None) -> Array:
    """Return a buffer for a code, with its key written."""
    buffer = arrays.bytes(layout.nbytes, like) if buffer is None else check_buffer(arrays, buffer, layout.nbytes)
    words = arrays.concatenate(key_words(arrays, key, like), 0)
    buffer[:KEY_BYTES] = arrays.cast(little_endian(arrays, words, 4), "uint8")
    return buffer


def key_words(arrays: Arrays, key: Key, like: Array) -> list[Array]:
    """Return the words of a key as arrays of one number."""
    return [arrays.arange(word, word + 1, like) for word in key]


def encode_piece(arrays: Arrays, values: Array, sides: Array | None, piece: Piece, key: Key, buffer: Array) -> None:
    """Write the scales and planes of float32 values, a piece of what is coded."""
    layout = piece.layout
    grouped = group(arrays, values, layout.elements)
    grouped_sides = above_zero(arrays, grouped) if sides is None else group(arrays, sides, layout.elements)
    noise = group_noise(arrays, key_words(arrays, key, values), layout, piece.group)
    stored, words = quantize(arrays, grouped, grouped_sides, layout, layout.bits, noise)
    buffer[scales_of(piece)] = arrays.cast(little_endian(arrays, stored.reshape(-1), SCALE_BYTES), "uint8")
    buffer[piece.planes] = arrays.cast(pack(arrays, words, layout.elements, layout.bits), "uint8")


def scales_of(piece: Piece) -> slice:
    """Return which bytes of a code are the scales of a piece."""
    own, each = piece.layout, SCALE_BYTES * piece.layout.family.scales
    start = KEY_BYTES + each * piece.group
    return slice(start, start + each * own.samples * own.groups)


def decode(
    arrays: Arrays,
    buffer: Array,
    layout: AnyLayout,
    part: Part,
    dtype: str = "float32",
    samples: range | None = None,
    out: Array | None = None,
    bent: bool = False,
    finished: Callable[[Array, Piece], Array] | None = None,
) -> Array:
    """Return the values of a buffer, or with ``bent`` what is coded of them along the curve of the family.

    ``finished`` makes of the float32 values (samples, elements) of a piece what is returned of them.
    """
    wanted = range(layout.samples) if samples is None else samples
    if out is None:
        out = arrays.empty((len(wanted), layout.elements), dtype, buffer)
    for piece in pieces(layout, wanted):
        values = decode_piece(arrays, buffer, piece, part, bent)
        if finished is not None:
            values = finished(values, piece)
        rows = slice(piece.samples.start - wanted.start, piece.samples.stop - wanted.start)
        out[rows, piece.places] = arrays.cast(values, arrays.dtype(out))
    return out


def decode_piece(arrays: Arrays, buffer: Array, piece: Piece, part: Part, bent: bool = False) -> Array:
    """Return the values (S, elements) of a piece, float32."""
    own = piece.layout
    words, scales, noise = decoded_piece(arrays, buffer, piece)
    return ungroup(dequantize(arrays, words, scales, own, own.bits, noise, part, bent), own.elements)


def decoded_piece(arrays: Arrays, buffer: Array, piece: Piece) -> tuple[Array, Array, Array]:
    """Return words (S, G, E), scales (S, G, 1, scales) and noise (S, G, E) of a piece."""
    own = piece.layout
    words_of_key = stored_key(arrays, buffer)
    stored = big_integers(arrays.cast(buffer[scales_of(piece)], "int64"), SCALE_BYTES)
    scales = arrays.bits_float(stored << 16).reshape(own.samples, own.groups, 1, own.family.scales)
    planes = arrays.cast(buffer[piece.planes], "int64")
    words = unpack(arrays, planes, own.samples, own.elements, own.bits)
    return words, scales, group_noise(arrays, words_of_key, own, piece.group)


def stored_key(arrays: Arrays, buffer: Array) -> list[Array]:
    """Return the words of a code's key as arrays of one number."""
    key = big_integers(arrays.cast(buffer[:KEY_BYTES], "int64"), 4)
    return [key[index : index + 1] for index in range(4)]


def encode_index(
    arrays: Arrays,
    values: Array,
    bits: int,
    buffer: Array | None = None,
    word: Callable[[Array], Array] | None = None,
) -> Array:
    """Return the planes of integers (S, elements), or of those that ``word`` makes of some values."""
    samples, elements = values.shape
    nbytes = index_bytes(samples, elements, bits)
    buffer = arrays.bytes(nbytes, values) if buffer is None else check_buffer(arrays, buffer, nbytes)
    for rows, places in stretches(samples, elements):
        x = values[rows, places]
        length = places.stop - places.start
        words = group(arrays, arrays.cast(x if word is None else word(x), "int64"), length)
        buffer[index_planes(rows, places, elements, bits)] = arrays.cast(pack(arrays, words, length, bits), "uint8")
    return buffer


def decode_index(arrays: Arrays, planes: Array, samples: int, elements: int, bits: int, dtype: str = "int32") -> Array:
    """Return the values of planes."""
    found = arrays.empty((samples, elements), dtype, planes)
    for rows, places in stretches(samples, elements):
        words = index_piece(arrays, planes, rows, places, elements, bits)
        found[rows, places] = arrays.cast(words, dtype)
    return found


def index_piece(arrays: Arrays, planes: Array, rows: slice, places: slice, elements: int, bits: int) -> Array:
    """Return the words (S, places), int64, of a piece of an index code."""
    own = arrays.cast(planes[index_planes(rows, places, elements, bits)], "int64")
    length = places.stop - places.start
    return ungroup(unpack(arrays, own, rows.stop - rows.start, length, bits), length)


def group(arrays: Arrays, values: Array, elements: int) -> Array:
    """Cut (S, elements) into (S, G, E)."""
    samples = values.shape[0]
    short = -elements % GROUP
    if short:
        # pad with the last value, not zero: a zero would widen the range of the final group
        values = arrays.concatenate([values] + [values[:, -1:]] * short, 1)
    return values.reshape(samples, -(-elements // GROUP), GROUP)


def ungroup(values: Array, elements: int) -> Array:
    """Return (S, G, E) as (S, elements)."""
    samples, groups, _ = values.shape
    return values.reshape(samples, groups * GROUP)[:, :elements]


def above_zero(arrays: Arrays, x: Array) -> Array:
    """Return ``not (x <= 0)`` as 0 and 1: NaN counts as above, as in the frameworks' own ReLU."""
    below = x <= 0
    return 1 - arrays.cast(below, "int64")


def quantize(arrays: Arrays, x: Array, side: Array, layout: AnyLayout, bits: int, noise: Array) -> tuple[Array, Array]:
    """Return the stored scales (S, G, scales) as bfloat16 bits, and the words (S, G, E)."""
    if layout.family.curve is Curve.CUBIC:
        return quantize_cubic(arrays, x, side, layout, bits, noise)
    negative = layout.family.negative[bits]
    u = arrays.sqrt(x) if layout.family.curve is Curve.ROOT else x
    stored = stored_scales(arrays, arrays.amin(u), arrays.amax(u), layout)
    scales = bfloat16_value(arrays, stored)
    offset = u - scales[..., :1] if layout.family.affine else abs(u)
    stored, sound = poisoned(arrays, stored[..., 2 - layout.family.sides :], x, u, scales)
    level = fixed_point(arrays, offset, scales[..., 1:], 2**bits - negative)
    if layout.family.affine:
        return stored, arrays.where(sound, (level + noise) >> 16, 0)
    below = fixed_point(arrays, offset, scales[..., :1], negative)
    step = (arrays.where(side == 1, level, below) + noise) >> 16
    step = arrays.where(sound, step, 0)
    return stored, arrays.where(side == 1, negative + step, negative - 1 - step)


def stored_scales(arrays: Arrays, low: Array, high: Array, layout: AnyLayout, margin: float = 0.0) -> Array:
    """Return (zero, range) or (negative, positive) of groups (S, G) between these ends, as bfloat16 bits (S, G, 2)."""
    if not layout.family.affine:
        return arrays.stack([bfloat16_scale(arrays, -low), bfloat16_scale(arrays, high)], -1)
    zero = bfloat16_down(arrays, low)
    width = (high - bfloat16_value(arrays, zero)) * (1.0 + margin)
    return arrays.stack([zero, bfloat16_scale(arrays, width)], -1)


def poisoned(arrays: Arrays, stored: Array, *values: Array) -> tuple[Array, Array]:
    """Return scales (S, G, scales) with those of poisoned groups in place, and whether (S, G, 1) a group is sound.

    It is where its scales and these values (S, G, any number) are finite.
    """
    finite: Array = 1
    for each in (bfloat16_value(arrays, stored), *values):
        finite = finite * arrays.amin(arrays.cast(arrays.isfinite(each), "int64"))
    sound = finite[..., None] == 1
    return arrays.where(sound, stored, POISON), sound


def quantize_cubic(
    arrays: Arrays, x: Array, side: Array, layout: AnyLayout, bits: int, noise: Array
) -> tuple[Array, Array]:
    """Return what ``quantize`` does, of a code along a cubic."""
    negative = layout.family.negative[bits]
    unit = None
    if layout.family.unit:
        places = arrays.arange(0, layout.groups * GROUP, x).reshape(layout.groups, GROUP)
        unit = group_unit(arrays, x, arrays.cast(places < layout.elements, "float32"))
    y = x * divide(arrays, 1.0, reach_of(layout.family, unit, x[..., :1]))
    least, most = arrays.amin(y), arrays.amax(y)
    low, high = cubic_ends(arrays, least, most)
    stored = stored_scales(arrays, low, high, layout, MARGIN)
    scales = bfloat16_value(arrays, stored)
    stored = stored[..., 2 - layout.family.sides :]
    if unit is not None:
        stored = arrays.concatenate([stored, arrays.float_bits(unit) >> 16], -1)
    within = arrays.where(abs(y) <= MOST_BENT, y, float("nan"))
    stored, sound = poisoned(arrays, stored, x, within, scales)
    if not layout.family.affine:
        least_above = arrays.where(y > LEAST_BENT, y, LEAST_BENT)
        y = arrays.where(side == 1, least_above, arrays.where(y < 0, y, 0.0))
    words = cubic_words(arrays, y, side, scales, negative, bits, noise)
    if layout.family.affine:
        return stored, arrays.where(sound, words, 0)
    nearest_zero = arrays.where(side == 1, 0 * words + negative, negative - 1)
    return stored, arrays.where(sound, words, nearest_zero)


def cubic_words(arrays: Arrays, y: Array, side: Array, scales: Array, negative: int, bits: int, noise: Array) -> Array:
    """Return the words (S, G, E) of y: how many of the thresholds of words it exceeds, found bit by bit."""
    step = divide(arrays, scales[..., 1:], 2.0 * STEP * (2**bits - negative - 1))
    below = divide(arrays, scales[..., :1], 2.0 * STEP * (negative - 1)) if negative > 1 else 0.0 * step
    twice = arrays.cast(2 * noise, "float32")
    dither = 0.0 - twice * step
    if negative > 0:
        dither = arrays.where(side == 1, dither, twice * below)
    words = 0 * noise
    for bit in reversed(range(bits)):
        k = words + (1 << bit)
        if negative == 0:
            base = scales[..., :1] + arrays.cast(2 * STEP * k - 1, "float32") * step
        else:
            place = 2 * STEP * (k - negative)
            place = arrays.where(k > negative, place - 1, arrays.where(k < negative, place + 1, place))
            base = arrays.cast(place, "float32") * arrays.where(k > negative, step + 0.0 * twice, below)
        words = arrays.where(y > cubic(base + dither), k, words)
    return words


def fixed_point(arrays: Arrays, offset: Array, scale: Array, levels: int) -> Array:
    """Return the position of each offset between the levels of its side, in units of 2^-16 steps."""
    top = STEP * (levels - 1)
    usable = arrays.isfinite(scale) & (scale > 0)
    divisor = arrays.where(usable, scale, 1.0)
    factor = arrays.where(usable, divide(arrays, float(top), divisor), 0.0)
    position = arrays.rint(offset * factor)
    position = arrays.where(position <= top, position, float(top))
    # what is not finite belongs to a poisoned group, whose words are set by the caller
    return arrays.cast(arrays.where(arrays.isfinite(offset), position, 0.0), "int64")


def dequantize(
    arrays: Arrays,
    words: Array,
    scales: Array,
    layout: AnyLayout,
    bits: int,
    noise: Array,
    part: Part,
    bent: bool = False,
) -> Array:
    """Return the values (S, G, E) that words stand for, or what is coded of them; ``scales`` is (S, G, 1, scales)."""
    negative = layout.family.negative[bits]
    positive = 2**bits - negative
    unit = scales[..., -1] if layout.family.unit else None
    scales = scales[..., : layout.family.sides]
    dither = HALF - 2 * noise if layout.rounding is Rounding.DITHER else 0 * noise
    step = divide(arrays, scales[..., -1], 2.0 * STEP * (positive - 1))
    wide = divide(arrays, scales[..., -1], float(positive - 1))
    if layout.family.affine:
        u = scales[..., 0] + arrays.cast(2 * STEP * words + dither, "float32") * step
        return unbend(arrays, u, unit, wide, layout, bent)
    nothing = 0 * scales[..., -1]
    side = words >= negative
    levels = arrays.where(side, words - negative, negative - 1 - words)
    position = arrays.cast(2 * STEP * levels + dither, "float32")
    above = unbend(arrays, position * step, unit, wide, layout, bent)
    if part is Part.POSITIVE:
        return arrays.where(side, above, nothing)
    below = divide(arrays, scales[..., 0], 2.0 * STEP * (negative - 1)) if negative > 1 else nothing
    wide = divide(arrays, scales[..., 0], float(negative - 1)) if negative > 1 else nothing
    return arrays.where(side, above, unbend(arrays, position * -below, unit, wide, layout, bent))


def unbend(arrays: Arrays, u: Array, unit: Array | None, step: Array, layout: AnyLayout, bent: bool) -> Array:
    """Return the values (S, G, E) that were coded as ``u``; unit and step are (S, G, 1).

    With dither, u is uniform over one step about what was coded, and what that adds on average is taken away.
    """
    dithered = layout.rounding is Rounding.DITHER
    if bent or layout.family.curve is Curve.LINEAR:
        return u
    if layout.family.curve is Curve.ROOT:
        return u * u - step * step * TWELFTH if dithered else u * u
    half = step * 0.5
    mean = 1.0 - half * half if dithered else 0.0 * step + 1.0
    return (u * (u * u + mean)) * reach_of(layout.family, unit, step)


def sides_of_piece(arrays: Arrays, buffer: Array, piece: Piece) -> Array:
    """Return ``word >= N`` of a piece of a split code, of shape (S, elements)."""
    own = piece.layout
    words = unpack(arrays, arrays.cast(buffer[piece.planes], "int64"), own.samples, own.elements, own.bits)
    return ungroup(words, own.elements) >= own.family.negative[own.bits]


def pack(arrays: Arrays, words: Array, elements: int, bits: int) -> Array:
    """Return the planes of words (S, G, E) as a flat run of bytes, the last group trimmed to its length."""
    samples, groups, _ = words.shape
    within = arrays.arange(0, groups * GROUP, words).reshape(1, groups, GROUP) < elements
    words = arrays.where(within, words, 0)
    eights = words.reshape(samples, groups, 1, PLANE_BYTES, 8)
    weights = 1 << arrays.arange(0, 8, words)
    planes = [(masked(arrays, eights >> plane, 1) * weights).sum(-1) for plane in range(bits)]
    whole = arrays.concatenate(planes, 2)
    full, tail = elements // GROUP, -(-(elements % GROUP) // 8)
    flat = whole[:, :full].reshape(samples, full * bits * PLANE_BYTES)
    if tail:
        flat = arrays.concatenate([flat, whole[:, full, :, :tail].reshape(samples, bits * tail)], 1)
    return flat.reshape(-1)


def unpack(arrays: Arrays, planes: Array, samples: int, elements: int, bits: int) -> Array:
    """Return the words (S, G, E) of a run of planes; what lies past a sample's end is 0."""
    full, tail = elements // GROUP, -(-(elements % GROUP) // 8)
    flat = planes.reshape(samples, bits * plane_bytes(elements))
    whole = flat[:, : full * bits * PLANE_BYTES].reshape(samples, full, bits, PLANE_BYTES)
    if tail:
        short = flat[:, full * bits * PLANE_BYTES :].reshape(samples, 1, bits, tail)
        if tail < PLANE_BYTES:
            short = arrays.concatenate([short] + [0 * short[..., :1]] * (PLANE_BYTES - tail), 3)
        whole = arrays.concatenate([whole, short], 1)
    digits = masked(arrays, whole[..., None] >> arrays.arange(0, 8, planes), 1)
    digits = digits.reshape(samples, full + bool(tail), bits, GROUP)
    weights = (1 << arrays.arange(0, bits, planes)).reshape(bits, 1)
    return (digits * weights).sum(2)
