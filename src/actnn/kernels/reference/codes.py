"""The definition of the format in plain array operations; runs on any device of any framework.

Shapes: S samples, G groups of a sample, E = 256 elements of a group, B = 32 bytes of a plane. Integers are int64
throughout and masked to 32 bits where docs/format.md counts modulo 2^32.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from actnn.format import (
    GROUP,
    KEY_BYTES,
    LEAST_SCALE,
    PLANE_BYTES,
    SCALE_BYTES,
    Layout,
    Part,
    Rounding,
    index_bytes,
    plane_bytes,
)
from actnn.kernels import sampling
from actnn.kernels.contract import Array, Arrays, ChannelAffine, Channels, Key, Normalization, Pool, check_buffer

WORD = 0xFFFFFFFF
HALF = 0xFFFF
STEP = 1 << 16
POISON = 0x7FC0
NEAREST = 1 << 15


class Reference:
    """The backend that defines all others."""

    name = "reference"

    def encode(self, arrays: Arrays, values: Array, layout: Layout, key: Key, buffer: Array | None = None) -> Array:
        return written(arrays, self._encode(arrays, arrays.cast(values, "float32"), None, layout, key), buffer)

    def _encode(self, arrays: Arrays, values: Array, sides: Array | None, layout: Layout, key: Key) -> Array:
        grouped = group(arrays, values, layout.elements)
        grouped_sides = above_zero(arrays, grouped) if sides is None else group(arrays, sides, layout.elements)
        words_of_key = [arrays.arange(word, word + 1, values) for word in key]
        scales, planes = [words_of_key[0][:0]], []
        for start, stop, bits in runs(layout):
            noise = group_noise(arrays, words_of_key, layout, start, stop)
            stored, words = quantize(arrays, grouped[start:stop], grouped_sides[start:stop], layout, bits, noise)
            scales.append(stored.reshape(-1))
            planes.append(pack(arrays, words, layout.elements, bits))
        key_bytes = little_endian(arrays, arrays.concatenate(words_of_key, 0), 4)
        scale_bytes = little_endian(arrays, arrays.concatenate(scales, 0), SCALE_BYTES)
        return arrays.cast(arrays.concatenate([key_bytes, scale_bytes, *planes], 0), "uint8")

    def decode(
        self,
        arrays: Arrays,
        buffer: Array,
        layout: Layout,
        part: Part,
        dtype: str,
        affine: ChannelAffine | None = None,
        samples: range | None = None,
    ) -> Array:
        integers = arrays.cast(buffer, "int64")
        key = big_integers(integers[:KEY_BYTES], 4)
        words_of_key = [key[index : index + 1] for index in range(4)]
        stored = big_integers(integers[KEY_BYTES : layout.planes_offset], SCALE_BYTES)
        scales = arrays.bits_float(stored << 16).reshape(layout.samples, layout.groups, 1, layout.family.scales)
        parts = []
        for start, stop, bits in runs(layout):
            planes = integers[layout.sample_offsets[start] : layout.sample_offsets[stop]]
            words = unpack(arrays, planes, stop - start, layout.elements, bits)
            noise = group_noise(arrays, words_of_key, layout, start, stop)
            values = dequantize(arrays, words, scales[start:stop], layout, bits, noise, part)
            parts.append(ungroup(values, layout.elements))
        values = arrays.concatenate(parts, 0) if parts else scales.reshape(0, layout.elements)
        if affine is not None:
            split = by_channel(values, affine.channels)
            values = (split * affine.scale[:, None] + affine.shift[:, None]).reshape(values.shape)
        if samples is not None:
            values = values[samples.start : samples.stop]
        return arrays.cast(values, dtype)

    def encode_mask(self, arrays: Arrays, values: Array, buffer: Array | None = None) -> Array:
        return self.encode_index(arrays, above_zero(arrays, values), 1, buffer)

    def apply_mask(
        self, arrays: Arrays, mask: Array, layout: Layout | None, grad: Array, above: float, below: float
    ) -> Array:
        samples, elements = grad.shape
        if layout is None:
            chosen = self.decode_index(arrays, mask, samples, elements, 1) > 0
        else:
            chosen = split_mask(arrays, mask, layout)
        wide = arrays.cast(grad, "float32")
        return arrays.cast(arrays.where(chosen, wide * above, wide * below), arrays.dtype(grad))

    def max_pool(self, arrays: Arrays, values: Array, out: Array, pool: Pool, buffer: Array | None = None) -> Array:
        padded = surrounded(arrays, values, pool, float("-inf"))
        best = padded[next(windows(pool))]
        position = 0 * arrays.cast(best > best, "int64")
        for index, window in enumerate(windows(pool)):
            value = padded[window]
            better = (value > best) | (value != value)
            best, position = arrays.where(better, value, best), arrays.where(better, index + 0 * position, position)
        shape = (pool.samples, pool.elements[1])
        out[:] = best.reshape(shape)
        return self.encode_index(arrays, position.reshape(shape), pool.bits, buffer)

    def max_pool_backward(self, arrays: Arrays, planes: Array, grad: Array, pool: Pool) -> Array:
        positions = self.decode_index(arrays, planes, pool.samples, pool.elements[1], pool.bits)
        total = surrounded(arrays, filled(arrays, (pool.samples, pool.elements[0]), 0.0, positions), pool, 0.0)
        shape = total[next(windows(pool))].shape
        positions, wide = positions.reshape(shape), arrays.cast(grad, "float32").reshape(shape)
        for index, window in enumerate(windows(pool)):
            total[window] = total[window] + arrays.where(positions == index, wide, 0.0)
        inner = tuple(slice(low, low + size) for low, size in zip(pool.padding, pool.input, strict=True))
        inside = total[(slice(None), *inner)] if pool.channels_last else total[(slice(None), slice(None), *inner)]
        return arrays.cast(inside.reshape(pool.samples, pool.elements[0]), arrays.dtype(grad))

    def channel_statistics(self, arrays: Arrays, values: Array, channels: Channels) -> tuple[Array, ...]:
        split = by_channel(arrays.cast(values, "float32"), channels)
        count = max(1, split.shape[0] * split.shape[1] * split.shape[3])
        mean = split.sum((0, 1, 3)) / count
        centred = split - mean[:, None]
        rows = arrays.transpose(split, (2, 0, 1, 3)).reshape(channels.count, -1)
        return mean, (centred * centred).sum((0, 1, 3)) / count, arrays.amin(rows), arrays.amax(rows)

    def normalize(
        self,
        arrays: Arrays,
        values: Array,
        out: Array,
        channels: Channels,
        normalization: Normalization,
        layout: Layout,
        key: Key,
        buffer: Array | None = None,
    ) -> Array:
        split = by_channel(arrays.cast(values, "float32"), channels)
        output = split * normalization.slope[:, None] + normalization.offset[:, None]
        coded = (split - normalization.mean[:, None]) * normalization.inverse[:, None]
        coded = coded - normalization.threshold[:, None]
        if layout.family.affine:
            code = self._encode(arrays, coded.reshape(values.shape), None, layout, key)
        else:
            sides = above_zero(arrays, output)
            wrong = arrays.where(sides == 1, coded < 0, coded > 0)
            coded = arrays.where(wrong, 0.0 * coded, coded)
            code = self._encode(arrays, coded.reshape(values.shape), sides.reshape(values.shape), layout, key)
        out[:] = arrays.cast(output.reshape(values.shape), arrays.dtype(values))
        return written(arrays, code, buffer)

    def gradient_sums(
        self, arrays: Arrays, grad: Array, channels: Channels, code: Array, layout: Layout, rectified: bool
    ) -> tuple[Array, Array]:
        split, value = self._gradient_and_value(arrays, grad, channels, code, layout, rectified)
        return split.sum((0, 1, 3)), (split * value).sum((0, 1, 3))

    def gradient(
        self,
        arrays: Arrays,
        grad: Array,
        channels: Channels,
        code: Array,
        layout: Layout,
        rectified: bool,
        coefficients: tuple[Array, Array, Array],
    ) -> Array:
        split, value = self._gradient_and_value(arrays, grad, channels, code, layout, rectified)
        of_grad, of_value, constant = (coefficient[:, None] for coefficient in coefficients)
        result = split * of_grad + (value * of_value + constant)
        return arrays.cast(result.reshape(grad.shape), arrays.dtype(grad))

    def _gradient_and_value(
        self, arrays: Arrays, grad: Array, channels: Channels, code: Array, layout: Layout, rectified: bool
    ) -> tuple[Array, Array]:
        if rectified:
            grad = self.apply_mask(arrays, code, layout, grad, 1.0, 0.0)
        value = self.decode(arrays, code, layout, Part.WHOLE, "float32")
        return by_channel(arrays.cast(grad, "float32"), channels), by_channel(value, channels)

    def ranges(
        self,
        arrays: Arrays,
        values: Array,
        layout: Layout,
        stride: int,
        channels: Channels | None = None,
        normalization: Normalization | None = None,
        weight: Array | None = None,
    ) -> Array:
        return sampling.ranges(arrays, values, layout, stride, channels, normalization, weight)

    def energy(self, arrays: Arrays, values: Array, stride: int) -> Array:
        return sampling.energy(arrays, values, stride)

    def encode_index(self, arrays: Arrays, values: Array, bits: int, buffer: Array | None = None) -> Array:
        samples, elements = values.shape
        index_bytes(samples, elements, bits)
        words = group(arrays, arrays.cast(values, "int64"), elements)
        return written(arrays, arrays.cast(pack(arrays, words, elements, bits), "uint8"), buffer)

    def decode_index(self, arrays: Arrays, planes: Array, samples: int, elements: int, bits: int) -> Array:
        words = unpack(arrays, arrays.cast(planes, "int64"), samples, elements, bits)
        return arrays.cast(ungroup(words, elements), "int32")


def written(arrays: Arrays, code: Array, buffer: Array | None) -> Array:
    """Return a code where its bytes are wanted: in a buffer that the caller gave, or where they are."""
    if buffer is None:
        return code
    check_buffer(arrays, buffer, len(code))[:] = code
    return buffer


def runs(layout: Layout) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, width) for each run of samples of equal width."""
    widths = layout.sample_bits
    if widths is None:
        yield 0, layout.samples, layout.bits
        return
    start = 0
    for stop in range(1, layout.samples + 1):
        if stop == layout.samples or widths[stop] != widths[start]:
            yield start, stop, widths[start]
            start = stop


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


def by_channel(values: Array, channels: Channels) -> Array:
    """Cut (S, elements) into (S, outer, channels, inner)."""
    samples, elements = values.shape
    outer = elements // max(1, channels.count * channels.inner)
    return values.reshape(samples, outer, channels.count, channels.inner)


def surrounded(arrays: Arrays, values: Array, pool: Pool, filler: float) -> Array:
    """Return the input of a pooling in its own shape, with ``filler`` wherever a window reaches beyond it."""
    space = (*pool.input, pool.channels) if pool.channels_last else (pool.channels, *pool.input)
    values = values.reshape(pool.samples, *space)
    for axis, size in enumerate(pool.input, 1 if pool.channels_last else 2):
        of = axis - (1 if pool.channels_last else 2)
        reach = (pool.output[of] - 1) * pool.stride[of] + pool.dilation[of] * (pool.kernel[of] - 1) + 1
        shape = list(values.shape)
        for count, front in ((pool.padding[of], True), (reach - pool.padding[of] - size, False)):
            if count > 0:
                shape[axis] = count
                border = arrays.cast(filled(arrays, shape, filler, values), arrays.dtype(values))
                values = arrays.concatenate([border, values] if front else [values, border], axis)
    return values


def filled(arrays: Arrays, shape: Sequence[int], value: float, like: Array) -> Array:
    """Return a float32 array that holds one value throughout."""
    return 0.0 * arrays.cast(arrays.empty(shape, "uint8", like), "float32") + value


def windows(pool: Pool) -> Iterator[tuple[slice, ...]]:
    """Yield, position by position within the window, the elements of the surrounded input that lie there."""
    for position in itertools.product(*map(range, pool.kernel)):
        space = []
        for step, stride, dilation, outputs in zip(position, pool.stride, pool.dilation, pool.output, strict=True):
            start = step * dilation
            space.append(slice(start, start + (outputs - 1) * stride + 1, stride))
        yield (slice(None), *space) if pool.channels_last else (slice(None), slice(None), *space)


def above_zero(arrays: Arrays, x: Array) -> Array:
    """Return ``not (x <= 0)`` as 0 and 1: NaN counts as above, as in the frameworks' own ReLU."""
    below = x <= 0
    return 1 - arrays.cast(below, "int64")


def quantize(arrays: Arrays, x: Array, side: Array, layout: Layout, bits: int, noise: Array) -> tuple[Array, Array]:
    """Return the stored scales (S, G, scales) as bfloat16 bits, and the words (S, G, E)."""
    negative = layout.family.negative[bits]
    positive = 2**bits - negative
    low, high = arrays.amin(x), arrays.amax(x)
    if layout.family.affine:
        zero = bfloat16_down(arrays, low)
        base = bfloat16_value(arrays, zero)
        stored = arrays.stack([zero, bfloat16_scale(arrays, high - base)], -1)
        offset = x - base[..., None]
    else:
        stored = arrays.stack([bfloat16_scale(arrays, -low), bfloat16_scale(arrays, high)], -1)
        offset = abs(x)
    scales = bfloat16_value(arrays, stored)
    finite = arrays.cast(arrays.isfinite(scales), "int64").sum(-1) == 2
    finite = arrays.cast(finite, "int64") * arrays.amin(arrays.cast(arrays.isfinite(x), "int64"))
    sound = finite[..., None] == 1
    stored = arrays.where(sound, stored, POISON)[..., 2 - layout.family.scales :]

    level = fixed_point(arrays, offset, scales[..., 1:], positive)
    if layout.family.affine:
        return stored, arrays.where(sound, (level + noise) >> 16, 0)
    below = fixed_point(arrays, offset, scales[..., :1], negative)
    step = (arrays.where(side == 1, level, below) + noise) >> 16
    step = arrays.where(sound, step, 0)
    return stored, arrays.where(side == 1, negative + step, negative - 1 - step)


def fixed_point(arrays: Arrays, offset: Array, scale: Array, levels: int) -> Array:
    """Return the position of each offset between the levels of its side, in units of 2^-16 steps."""
    top = STEP * (levels - 1)
    usable = arrays.isfinite(scale) & (scale > 0)
    divisor = arrays.where(usable, scale, 1.0)
    factor = arrays.where(usable, divide(float(top), divisor), 0.0)
    position = arrays.rint(offset * factor)
    position = arrays.where(position <= top, position, float(top))
    # what is not finite belongs to a poisoned group, whose words are set by the caller
    return arrays.cast(arrays.where(arrays.isfinite(offset), position, 0.0), "int64")


def dequantize(
    arrays: Arrays, words: Array, scales: Array, layout: Layout, bits: int, noise: Array, part: Part
) -> Array:
    """Return the values (S, G, E) that words stand for; ``scales`` is (S, G, 1, scales)."""
    negative = layout.family.negative[bits]
    positive = 2**bits - negative
    dither = HALF - 2 * noise if layout.rounding is Rounding.DITHER else 0 * noise
    step = divide(scales[..., -1], 2.0 * STEP * (positive - 1))
    if layout.family.affine:
        return scales[..., 0] + arrays.cast(2 * STEP * words + dither, "float32") * step
    nothing = 0 * scales[..., -1]
    side = words >= negative
    levels = arrays.where(side, words - negative, negative - 1 - words)
    position = arrays.cast(2 * STEP * levels + dither, "float32")
    if part is Part.POSITIVE:
        return arrays.where(side, position * step, nothing)
    below = divide(scales[..., 0], 2.0 * STEP * (negative - 1)) if negative > 1 else nothing
    return position * arrays.where(side, step, -below)


def split_mask(arrays: Arrays, buffer: Array, layout: Layout) -> Array:
    """Return ``word >= N`` of a split code, of shape (samples, elements)."""
    integers = arrays.cast(buffer, "int64")
    parts = []
    for start, stop, bits in runs(layout):
        planes = integers[layout.sample_offsets[start] : layout.sample_offsets[stop]]
        words = ungroup(unpack(arrays, planes, stop - start, layout.elements, bits), layout.elements)
        parts.append(words >= layout.family.negative[bits])
    return arrays.concatenate(parts, 0) if parts else integers[:0].reshape(0, layout.elements) > 0


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


def group_noise(arrays: Arrays, key: list[Array], layout: Layout, start: int, stop: int) -> Array:
    """Return the noise (stop - start, G, E) of a run of samples, 16 bits each."""
    groups = arrays.arange(start * layout.groups, stop * layout.groups, key[0])
    shape = (stop - start, layout.groups, 1)
    if layout.rounding is Rounding.NEAREST:
        return NEAREST + 0 * arrays.arange(0, (stop - start) * layout.groups * GROUP, key[0]).reshape(
            stop - start, layout.groups, GROUP
        )
    first = mix(arrays, groups * 0x9E3779B1 + key[0], key[1]).reshape(*shape)
    second = mix(arrays, groups * 0x85EBCA77 + key[2], key[3]).reshape(*shape)
    element = arrays.arange(0, GROUP, key[0])
    counter = 8 * (element >> 4) + masked(arrays, element, 7)
    mixed = mix(arrays, counter * 0x9E3779B1 + first, second)
    return masked(arrays, mixed >> (2 * masked(arrays, element, 8)), HALF)


def mix(arrays: Arrays, x: Array, key: Array) -> Array:
    """Scramble numbers, modulo 2^32, under a 32-bit key."""
    x = masked(arrays, x, WORD)
    x = x ^ (x >> 16)
    x = masked(arrays, x * 0x7FEB352D, WORD) ^ key
    x = x ^ (x >> 15)
    x = masked(arrays, x * 0x846CA68B, WORD)
    return x ^ (x >> 16)


def masked(arrays: Arrays, x: Array, mask: int) -> Array:
    """Return the bits of integers that a mask names; not every framework takes a number beside ``&``."""
    return x & arrays.arange(mask, mask + 1, x)


def divide(x: Array, y: Array) -> Array:
    """Divide with one rounding; one of the two may be a number.

    Frameworks turn a division that involves a number into a product with a reciprocal, which rounds twice.
    """
    zero = 0.0 * (y if isinstance(x, float) else x)
    return (zero + x) / (zero + y)


def bfloat16_down(arrays: Arrays, x: Array) -> Array:
    """Round to the next bfloat16 towards minus infinity; return its 16 bits."""
    # adding zero turns -0 into 0: which of the two a minimum returns is not defined
    bits = masked(arrays, arrays.float_bits(x + 0.0), WORD)
    return arrays.where(x < 0, bits + HALF, bits) >> 16


def bfloat16_scale(arrays: Arrays, x: Array) -> Array:
    """Round the magnitude of a side to the next bfloat16 towards plus infinity, tiny ones and negative ones to 0."""
    bits = (arrays.float_bits(x) + HALF) >> 16
    bits = arrays.where(x > 0, bits, 0)
    return arrays.where(bfloat16_value(arrays, bits) >= LEAST_SCALE, bits, 0)


def bfloat16_value(arrays: Arrays, bits: Array) -> Array:
    """Return the float32 value of bfloat16 bits."""
    return arrays.bits_float(bits << 16)


def little_endian(arrays: Arrays, integers: Array, count: int) -> Array:
    """Return each integer as ``count`` bytes, least significant first, in one flat run."""
    return masked(arrays, integers[:, None] >> (8 * arrays.arange(0, count, integers)), 0xFF).reshape(-1)


def big_integers(octets: Array, count: int) -> Array:
    """Return the integers that runs of ``count`` bytes stand for."""
    rows = octets.reshape(-1, count)
    total = rows[:, 0]
    for place in range(1, count):
        total = total + (rows[:, place] << (8 * place))
    return total
