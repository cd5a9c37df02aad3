"""From a stored code to values: of whole tiles, or of elements anywhere."""

import triton
import triton.language as tl

from actnn.kernels.triton.device.curves import TWELFTH, reach_of
from actnn.kernels.triton.device.kernel import AFFINE, DITHER, LINEAR, ROOT, TWO_SIDED, ZERO_EXACT
from actnn.kernels.triton.device.numbers import element_noise, float_of, tile_noise
from actnn.kernels.triton.device.places import HEADER, octets, plane_length, scales_of
from actnn.kernels.triton.device.words import negative_words


@triton.jit
def stored_key(code):
    """Return the four words of a code's key."""
    words = code.to(tl.pointer_type(tl.uint32))
    return tl.load(words), tl.load(words + 1), tl.load(words + 2), tl.load(words + 3)


@triton.jit
def load_plane(code, start, k, length, here, FORM: tl.constexpr):
    """Return the bytes (groups, 16) of a plane that belong to low and to high octets."""
    pair = tl.arange(0, 16)[None, :]
    if FORM.whole:
        place = (code + (start + 32 * k)[:, None] + 2 * pair).to(tl.pointer_type(tl.uint16))
        both = tl.load(place, mask=here[:, None], other=0).to(tl.uint32)
        return both & 0xFF, both >> 8
    else:
        place = code + (start + k * length)[:, None] + 2 * pair
        low = tl.load(place, mask=here[:, None] & (2 * pair < length[:, None]), other=0).to(tl.uint32)
        high = tl.load(place + 1, mask=here[:, None] & (2 * pair + 1 < length[:, None]), other=0).to(tl.uint32)
        return low, high


@triton.jit
def spread(octet):
    """Return the bits of bytes, four to a word, each in a byte of its own: (groups, 16) to (groups, 16, 2)."""
    nibble = (octet[:, :, None] >> (4 * tl.arange(0, 2)).to(tl.uint32)[None, None, :]) & 0xF
    return (nibble * 0x00204081) & 0x01010101


@triton.jit
def unpacked(four):
    """Return words from four side by side."""
    words = (four[:, :, :, None] >> (8 * tl.arange(0, 4)).to(tl.uint32)[None, None, None, :]) & 0xFF
    return tl.reshape(words, (four.shape[0], 16, 8))


@triton.jit
def load_words(code, g, here, elements, base, bits, FORM: tl.constexpr):
    """Return the words of the low and the high octets of a tile."""
    length = (tl.minimum(elements - 256 * g, 256) + 7) >> 3
    start = base + 32 * bits * g
    low_four = tl.zeros((FORM.tile, 16, 2), tl.uint32)
    high_four = tl.zeros((FORM.tile, 16, 2), tl.uint32)
    if FORM.bits > 0:
        for k in tl.static_range(FORM.bits):
            low, high = load_plane(code, start, k, length, here, FORM)
            low_four |= spread(low) << k
            high_four |= spread(high) << k
    else:
        for k in range(0, bits):
            low, high = load_plane(code, start, k, length, here, FORM)
            low_four |= spread(low) << k
            high_four |= spread(high) << k
    return unpacked(low_four), unpacked(high_four)


@triton.jit
def load_scales(code, j, here, FORM: tl.constexpr):
    """Return the scales of groups j: negative or zero, positive or range, and the unit."""
    scales: tl.constexpr = scales_of(FORM)
    if scales == 2:
        both = tl.load((code + HEADER + 4 * j).to(tl.pointer_type(tl.uint32)), mask=here, other=0)
        one, other = float_of(both & 0xFFFF), (both & 0xFFFF0000).to(tl.float32, bitcast=True)
        if FORM.kind == ZERO_EXACT:
            return 0.0 * one, one, other
        else:
            return one, other, 0.0 * one + 1.0
    else:
        place = (code + HEADER + 2 * scales * j).to(tl.pointer_type(tl.uint16))
        one = float_of(tl.load(place, mask=here, other=0))
        if scales == 1:
            return 0.0 * one, one, 0.0 * one + 1.0
        else:
            second = float_of(tl.load(place + 1, mask=here, other=0))
            return one, second, float_of(tl.load(place + 2, mask=here, other=0))


@triton.jit
def divided(scale, steps):
    """Return a scale divided by so many steps."""
    return tl.div_rn(scale, steps.to(tl.float32) + 0.0 * scale)


@triton.jit
def whole_steps(first, second, bits, FORM: tl.constexpr):
    """Return the whole steps of the negative and of the positive side."""
    negative = negative_words(bits, FORM)
    below = 0.0 * second
    if FORM.kind == TWO_SIDED:
        below = divided(first, negative - 1)
    return below, divided(second, (1 << bits) - negative - 1)


@triton.jit
def half_steps(first, second, bits, FORM: tl.constexpr):
    """Return what positions are multiplied by on the negative and on the positive side."""
    negative = negative_words(bits, FORM)
    below = 0.0 * second
    if FORM.kind == TWO_SIDED:
        below = divided(first, 131072 * (negative - 1))
    return below, divided(second, 131072 * ((1 << bits) - negative - 1))


@triton.jit
def mended(step, FORM: tl.constexpr):
    """Return what is added to u u along a cubic, or taken from it along a root, on a side of a whole step."""
    if FORM.curve == ROOT:
        return step * step * TWELFTH
    elif FORM.rounding == DITHER:
        half = step * 0.5
        return 1.0 - half * half
    else:
        return 0.0 * step + 1.0


@triton.jit
def position(q, r, FORM: tl.constexpr):
    """Return float32(131072 q + d), rounded to nearest even."""
    if FORM.rounding == DITHER:
        if FORM.bits > 0 and FORM.bits < 7:
            # 65536 more than the position lies between 0 and 2^23: exact as the bits of a float
            shifted = (0x4B000000 + 65535 + 65536) + 131072 * q - 2 * r
            return shifted.to(tl.float32, bitcast=True) - (8388608.0 + 65536.0)
        else:
            return (131072 * q.to(tl.int32) + 65535 - 2 * r.to(tl.int32)).to(tl.float32)
    else:
        return (131072 * q.to(tl.int32)).to(tl.float32)


@triton.jit
def unbent(u, mean, reach, FORM: tl.constexpr, BENT: tl.constexpr):
    """Return the values that were coded as u, or with BENT u itself; ``mean`` is that of ``mended``."""
    if BENT or FORM.curve == LINEAR:
        return u
    elif FORM.curve == ROOT:
        if FORM.rounding == DITHER:
            return u * u - mean
        else:
            return u * u
    else:
        return (u * (u * u + mean)) * reach


@triton.jit
def value_of(
    words, r, first, below, step, nothing, mean_below, mean, reach, negative,
    FORM: tl.constexpr, POSITIVE: tl.constexpr, BENT: tl.constexpr,
):  # fmt: skip
    """Return what words stand for; whatever belongs to a group has been given the shape of the words."""
    if FORM.kind == AFFINE:
        return unbent(first + position(words, r, FORM) * step, mean, reach, FORM, BENT)
    else:
        side = words >= negative
        t = position(tl.where(side, words - negative, negative - 1 - words), r, FORM)
        if POSITIVE:
            return tl.where(side, unbent(t * step, mean, reach, FORM, BENT), nothing)
        else:
            u = t * tl.where(side, step, -below)
            if FORM.curve != LINEAR:
                mean = tl.where(side, mean, mean_below)
            return unbent(u, mean, reach, FORM, BENT)


@triton.jit
def decoded_tile(
    code, n, g, here, groups, elements, bits, base,
    FORM: tl.constexpr, POSITIVE: tl.constexpr, BENT: tl.constexpr,
):  # fmt: skip
    """Return words and values, or with BENT what is coded of these, of the low and the high octets of a tile."""
    k0, k1, k2, k3 = stored_key(code)
    pair, bit = octets()
    low_noise, high_noise = tile_noise(n * groups + g, pair, bit, k0, k1, k2, k3, FORM.rounding)
    first, second, unit = load_scales(code, n.to(tl.int64) * groups + g, here, FORM)
    below, step = half_steps(first, second, bits, FORM)
    mean_below, mean = second, second
    if FORM.curve != LINEAR:
        wide_below, wide = whole_steps(first, second, bits, FORM)
        mean_below, mean = mended(wide_below, FORM), mended(wide, FORM)
    nothing = (0.0 * second)[:, None, None]
    first, below, step = first[:, None, None], below[:, None, None], step[:, None, None]
    mean_below, mean, reach = mean_below[:, None, None], mean[:, None, None], reach_of(unit, FORM)[:, None, None]
    negative = negative_words(bits, FORM).to(tl.uint32)
    low, high = load_words(code, g, here, elements, base, bits, FORM)
    low_value = value_of(
        low, low_noise, first, below, step, nothing, mean_below, mean, reach, negative, FORM, POSITIVE, BENT
    )
    high_value = value_of(
        high, high_noise, first, below, step, nothing, mean_below, mean, reach, negative, FORM, POSITIVE, BENT
    )
    return low, high, low_value, high_value


@triton.jit
def word_at(code, e, here, elements, base, bits, FORM: tl.constexpr):
    """Return the words of elements e, anywhere in samples whose planes begin at ``base``."""
    g = e // 256
    length = (tl.minimum(elements - 256 * g, 256) + 7) >> 3
    i = e - 256 * g
    place = base + 32 * bits * g + (i >> 3)
    shift = (i & 7).to(tl.uint32)
    words = shift * 0
    if FORM.bits > 0:
        for k in tl.static_range(FORM.bits):
            octet = tl.load(code + place + k * length, mask=here, other=0).to(tl.uint32)
            words |= ((octet >> shift) & 1) << k
    else:
        for k in range(0, 8):
            octet = tl.load(code + place + k * length, mask=here & (k < bits), other=0).to(tl.uint32)
            words |= ((octet >> shift) & 1) << k
    return words


@triton.jit
def base_at(n, samples, groups, elements, widths, offsets, FORM: tl.constexpr):
    """Return the widths of samples n, and the bytes at which their planes begin."""
    if FORM.bits > 0:
        scales: tl.constexpr = scales_of(FORM)
        wide = n.to(tl.int64)
        base = HEADER + 2 * scales * (0 * wide + samples) * groups + wide * FORM.bits * plane_length(elements)
        return FORM.bits + 0 * n, base
    else:
        return tl.load(widths + n).to(tl.int32), tl.load(offsets.to(tl.pointer_type(tl.int64)) + n)


@triton.jit
def decoded_at(code, n, e, here, groups, elements, bits, base, FORM: tl.constexpr):
    """Return words and values of elements e of samples n, whose widths and planes are given."""
    k0, k1, k2, k3 = stored_key(code)
    g = e // 256
    j = n * groups + g
    r = element_noise(j, e - 256 * g, k0, k1, k2, k3, FORM.rounding)
    first, second, unit = load_scales(code, n.to(tl.int64) * groups + g, here, FORM)
    below, step = half_steps(first, second, bits, FORM)
    mean_below, mean = second, second
    if FORM.curve != LINEAR:
        wide_below, wide = whole_steps(first, second, bits, FORM)
        mean_below, mean = mended(wide_below, FORM), mended(wide, FORM)
    words = word_at(code, e, here, elements, base, bits, FORM)
    negative = negative_words(bits, FORM).to(tl.uint32)
    reach = reach_of(unit, FORM)
    value = value_of(words, r, first, below, step, 0.0 * second, mean_below, mean, reach, negative, FORM, False, False)
    return words, value
