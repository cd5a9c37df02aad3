"""From values to a stored code."""

import triton
import triton.language as tl

from actnn.kernels.triton.device.curves import LEAST_BENT, MARGIN, MOST_BENT, cubic, group_unit, inverse_cubic, reach_of
from actnn.kernels.triton.device.kernel import AFFINE, CUBIC, LINEAR, ROOT, TWO_SIDED, ZERO_EXACT
from actnn.kernels.triton.device.numbers import ends, finite, float_of, scale_up, word, zero_down
from actnn.kernels.triton.device.places import HEADER, octets, scales_of

POISON = tl.constexpr(0x7FC0)


@triton.jit
def negative_words(bits, FORM: tl.constexpr):
    """Return how many words of a width lie on the negative side."""
    if FORM.kind == AFFINE:
        return bits * 0
    elif FORM.kind == ZERO_EXACT:
        return bits * 0 + 1
    else:
        # 2, 3, 6, 12, 24, 48, 96 from width 2 on
        return tl.where(bits == 2, 2, (3 << bits) >> 3)


@triton.jit
def store_key(code, key0, key1, key2, key3):
    """Write the key of a code, once."""
    if tl.program_id(0) == 0:
        words = code.to(tl.pointer_type(tl.uint32))
        tl.store(words, word(key0))
        tl.store(words + 1, word(key1))
        tl.store(words + 2, word(key2))
        tl.store(words + 3, word(key3))


@triton.jit
def bent(low, high, g, elements, FORM: tl.constexpr):
    """Return what is coded of two tiles, along a cubic the values in reaches, and the bits of their units."""
    unit = 0 * g.to(tl.uint32) + 0x3F80
    if FORM.curve == LINEAR:
        return low, high, unit
    elif FORM.curve == ROOT:
        return tl.sqrt_rn(low), tl.sqrt_rn(high), unit
    else:
        if FORM.unit:
            pair, bit = octets()
            e, length = 16 * pair + bit, tl.minimum(elements - 256 * g, 256)
            counted_low, counted_high = tl.abs(low), tl.abs(high)
            if not FORM.whole:
                counted_low = tl.where(e < length[:, None, None], counted_low, 0.0)
                counted_high = tl.where(e + 8 < length[:, None, None], counted_high, 0.0)
            unit = group_unit(counted_low, counted_high, length)
        inverse = tl.div_rn(tl.full(unit.shape, 1.0, tl.float32), reach_of(float_of(unit), FORM))[:, None, None]
        return low * inverse, high * inverse, unit


@triton.jit
def factor_of(scale, top):
    """Return what offsets are multiplied by; 0 where there is no range."""
    usable = scale > 0
    return tl.where(usable, tl.div_rn(top + 0.0 * scale, tl.where(usable, scale, 1.0)), 0.0)


@triton.jit
def counted(v, r, FORM: tl.constexpr):
    """Return (rint(v) + r) >> 16 for 0 <= v < 2^24."""
    if FORM.bits > 0 and FORM.bits < 8:
        # below 2^23 the sum holds the integer in its bits, rounded to nearest even
        m = (v + 8388608.0).to(tl.uint32, bitcast=True) - 0x4B000000
    else:
        wide = v >= 8388608.0
        m = tl.where(wide, v, v + 8388608.0).to(tl.uint32, bitcast=True) - 0x4B000000
        m = tl.where(wide, m + 0x800000, m)
    return (m + r) >> 16


@triton.jit
def affine_words(u, r, zero, factor, top, sound, FORM: tl.constexpr):
    """Return the words of a tile of an affine code."""
    v = tl.minimum((u - zero[:, None, None]) * factor[:, None, None], top)
    return tl.where(sound[:, None, None], counted(v, r, FORM), 0)


@triton.jit
def split_words(u, above, r, up, down, top, below, negative, sound, FORM: tl.constexpr):
    """Return the words of a tile of a code with sides."""
    v = tl.abs(u) * tl.where(above, up[:, None, None], down[:, None, None])
    if FORM.kind == ZERO_EXACT:
        v = tl.minimum(v, top)
    else:
        v = tl.minimum(v, tl.where(above, top, below))
    q = tl.where(sound[:, None, None], counted(v, r, FORM), 0)
    negative = negative.to(tl.uint32)
    return tl.where(above, negative + q, negative - 1 - q)


@triton.jit
def cubic_words(y, above, r, zero, step, below, bits, negative, sound, FORM: tl.constexpr):
    """Return the words of a tile of values in reaches: how many thresholds each exceeds, found bit by bit."""
    # exact as the bits of a float
    twice = (0x4B000000 + 2 * r).to(tl.float32, bitcast=True) - 8388608.0
    zero, step, below = zero[:, None, None], step[:, None, None], below[:, None, None]
    dither = 0.0 - twice * step
    if FORM.kind != AFFINE:
        y = tl.where(above, tl.maximum(y, LEAST_BENT), tl.minimum(y, 0.0))
        dither = tl.where(above, dither, twice * below)
    words = 0 * r
    place = 0.0 * twice - (131072 * negative).to(tl.float32)
    weight = (65536 << bits).to(tl.float32)
    if FORM.bits > 0:
        for _ in tl.static_range(FORM.bits):
            words, place = with_next_bit(words, place, weight, y, dither, zero, step, below, FORM)
            weight = weight * 0.5
    else:
        for _ in range(0, bits):
            words, place = with_next_bit(words, place, weight, y, dither, zero, step, below, FORM)
            weight = weight * 0.5
    nearest_zero = 0 * words
    if FORM.kind != AFFINE:
        nearest_zero += tl.where(above, negative, negative - 1).to(tl.uint32)
    return tl.where(sound[:, None, None], words, nearest_zero)


@triton.jit
def with_next_bit(words, place, weight, y, dither, zero, step, below, FORM: tl.constexpr):
    """Return words with one bit more, and their places, in parts of a step from the first positive word."""
    middle = place + weight
    if FORM.kind == AFFINE:
        base = zero + (middle - 1.0) * step
    else:
        base = tl.where(middle > 0, (middle - 1.0) * step, tl.where(middle < 0, (middle + 1.0) * below, 0.0))
    beyond = y > cubic(base + dither)
    return 2 * words + beyond.to(tl.uint32), tl.where(beyond, middle, place)


@triton.jit
def packed(words):
    """Return four words of at most 8 bits side by side: (groups, 16, 8) to (groups, 16, 2)."""
    words = tl.reshape(words, (words.shape[0], 16, 2, 4))
    return tl.sum(words << (8 * tl.arange(0, 4)).to(tl.uint32)[None, None, None, :], 3)


@triton.jit
def plane_octets(four, k):
    """Return plane k of packed words: (groups, 16, 2) to (groups, 16)."""
    # the product moves bit k of word i to bit 28 + i, and no two bits to the same place
    nibble = (((four >> k) & 0x01010101) * 0x10204080) >> 28
    return tl.sum(nibble << (4 * tl.arange(0, 2)).to(tl.uint32)[None, None, :], 2)


@triton.jit
def store_plane(code, start, k, low, high, length, here, FORM: tl.constexpr):
    """Write one plane of each group."""
    pair = tl.arange(0, 16)[None, :]
    if FORM.whole:
        place = (code + (start + 32 * k)[:, None] + 2 * pair).to(tl.pointer_type(tl.uint16))
        tl.store(place, (low | (high << 8)).to(tl.uint16), mask=here[:, None])
    else:
        place = code + (start + k * length)[:, None] + 2 * pair
        tl.store(place, low.to(tl.uint8), mask=here[:, None] & (2 * pair < length[:, None]))
        tl.store(place + 1, high.to(tl.uint8), mask=here[:, None] & (2 * pair + 1 < length[:, None]))


@triton.jit
def store_scales(code, j, first, second, unit, here, FORM: tl.constexpr):
    """Write the scales of groups j."""
    scales: tl.constexpr = scales_of(FORM)
    if scales == 2:
        if FORM.kind == ZERO_EXACT:
            both = second | (unit << 16)
        else:
            both = first | (second << 16)
        tl.store((code + HEADER + 4 * j).to(tl.pointer_type(tl.uint32)), both, mask=here)
    else:
        place = (code + HEADER + 2 * scales * j).to(tl.pointer_type(tl.uint16))
        if scales == 1:
            tl.store(place, second.to(tl.uint16), mask=here)
        else:
            tl.store(place, first.to(tl.uint16), mask=here)
            tl.store(place + 1, second.to(tl.uint16), mask=here)
            tl.store(place + 2, unit.to(tl.uint16), mask=here)


@triton.jit
def store_code(
    code, low, high, low_side, high_side, low_noise, high_noise, n, g, here, groups, elements, bits, base,
    FORM: tl.constexpr,
):  # fmt: skip
    """Quantize two tiles; write their scales and planes."""
    negative = negative_words(bits, FORM)
    top = (65536 * ((1 << bits) - negative - 1)).to(tl.float32)
    low, high, unit = bent(low, high, g, elements, FORM)
    smallest, largest = ends(low, high)
    bounded = finite(smallest) & finite(largest)
    if FORM.curve == CUBIC:
        bounded = (smallest >= -MOST_BENT) & (largest <= MOST_BENT) & finite(float_of(unit))
        smallest, largest = inverse_cubic(smallest), inverse_cubic(largest)
        smallest, largest = smallest - tl.abs(smallest) * MARGIN, largest + tl.abs(largest) * MARGIN
    zero = 0.0 * smallest
    if FORM.kind == AFFINE:
        first = zero_down(smallest)
        zero = float_of(first)
        width = largest - zero
        if FORM.curve == CUBIC:
            width = width * (1.0 + MARGIN)
        second = scale_up(width)
    else:
        first, second = scale_up(-smallest), scale_up(largest)
    sound = bounded & finite(float_of(first)) & finite(float_of(second))
    up = tl.where(sound, factor_of(float_of(second), top), 0.0)
    if FORM.curve == CUBIC:
        step, down = tl.div_rn(float_of(second), 2.0 * top + 0.0 * zero), 0.0 * zero
        if FORM.kind == TWO_SIDED:
            down = tl.div_rn(float_of(first), (131072 * (negative - 1)).to(tl.float32) + 0.0 * zero)
        low_words = cubic_words(low, low_side, low_noise, zero, step, down, bits, negative, sound, FORM)
        high_words = cubic_words(high, high_side, high_noise, zero, step, down, bits, negative, sound, FORM)
    elif FORM.kind == AFFINE:
        low_words = affine_words(low, low_noise, zero, up, top, sound, FORM)
        high_words = affine_words(high, high_noise, zero, up, top, sound, FORM)
    else:
        below = (65536 * (negative - 1)).to(tl.float32)
        down = 0.0 * up
        if FORM.kind == TWO_SIDED:
            down = tl.where(sound, factor_of(float_of(first), below), 0.0)
        low_words = split_words(low, low_side, low_noise, up, down, top, below, negative, sound, FORM)
        high_words = split_words(high, high_side, high_noise, up, down, top, below, negative, sound, FORM)
    first, second = tl.where(sound, first, POISON), tl.where(sound, second, POISON)
    store_scales(code, n.to(tl.int64) * groups + g, first, second, tl.where(sound, unit, POISON), here, FORM)
    rest = tl.minimum(elements - 256 * g, 256)
    length = (rest + 7) >> 3
    if not FORM.whole:
        pair, bit = octets()
        e = 16 * pair + bit
        low_words = tl.where(e < rest[:, None, None], low_words, 0)
        high_words = tl.where(e + 8 < rest[:, None, None], high_words, 0)
    low_four, high_four = packed(low_words), packed(high_words)
    start = base + 32 * bits * g
    if FORM.bits > 0:
        for k in tl.static_range(FORM.bits):
            store_plane(code, start, k, plane_octets(low_four, k), plane_octets(high_four, k), length, here, FORM)
    else:
        for k in range(0, bits):
            store_plane(code, start, k, plane_octets(low_four, k), plane_octets(high_four, k), length, here, FORM)
