"""The kernels of lossless codes: masks and indices."""

import triton.language as tl

from actnn.kernels.triton.device.kernel import kernel
from actnn.kernels.triton.device.numbers import above_zero, widened
from actnn.kernels.triton.device.places import load_tile, octets, plane_length, sample_planes, store_tile, tile
from actnn.kernels.triton.device.values import load_words
from actnn.kernels.triton.device.words import negative_words


@kernel
def encode_mask_kernel(values, planes_out, upper, elements, blocks, BOUNDED: tl.constexpr, OCTETS: tl.constexpr):
    """Write one bit an element: whether it lies above zero, and below a bound."""
    n = tl.program_id(0) // blocks
    block = tl.program_id(0) - n * blocks
    octet, bit = tl.arange(0, OCTETS)[:, None], tl.arange(0, 8)[None, :]
    e = 8 * (OCTETS * block + octet) + bit
    x = widened(tl.load(values + n.to(tl.int64) * elements + e, mask=e < elements, other=0.0))
    inside = above_zero(x)
    if BOUNDED:
        inside = inside & ((x < upper) | (x != x))
    octets_out = tl.sum(inside.to(tl.int32) << bit, 1)
    plane = plane_length(elements)
    place = OCTETS * block + tl.arange(0, OCTETS)
    tl.store(planes_out + n.to(tl.int64) * plane + place, octets_out.to(tl.uint8), mask=place < plane)


@kernel
def apply_mask_kernel(
    code, grad, out, widths, offsets, above, below, samples, elements, groups, blocks,
    FORM: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Multiply by one of two factors: by a PLAIN mask, or by the sides of a split code."""
    n, g, here = tile(samples, groups, blocks, FORM)
    if PLAIN:
        bits = 1 + 0 * tl.program_id(0)
        low, high = load_words(code, g, here, elements, n.to(tl.int64) * plane_length(elements), bits, FORM)
        low_side, high_side = low != 0, high != 0
    else:
        bits, base = sample_planes(n, samples, groups, elements, blocks, 0, widths, offsets, FORM)
        low, high = load_words(code, g, here, elements, base, bits, FORM)
        negative = negative_words(bits, FORM).to(tl.uint32)
        low_side, high_side = low >= negative, high >= negative
    pair, bit = octets()
    e = 16 * pair + bit
    x = load_tile(grad, n, g, here, elements, e, FORM)
    store_tile(out, n, g, here, elements, e, x * tl.where(low_side, above, below), FORM)
    x = load_tile(grad, n, g, here, elements, e + 8, FORM)
    store_tile(out, n, g, here, elements, e + 8, x * tl.where(high_side, above, below), FORM)


@kernel
def encode_index_kernel(values, planes_out, elements, groups, bits, blocks, TILE: tl.constexpr):
    """Write the planes of integers."""
    n = tl.program_id(0) // blocks
    g = (tl.program_id(0) - n * blocks) * TILE + tl.arange(0, TILE)
    octet, bit = tl.arange(0, 32)[None, :, None], tl.arange(0, 8)[None, None, :]
    e = 256 * g[:, None, None] + 8 * octet + bit
    words = tl.load(values + n.to(tl.int64) * elements + e, mask=e < elements, other=0)
    length = (tl.minimum(elements - 256 * g, 256) + 7) >> 3
    start = n.to(tl.int64) * bits * plane_length(elements) + 32 * bits * g
    place, inside = tl.arange(0, 32)[None, :], tl.arange(0, 32)[None, :] < length[:, None]
    for k in range(0, bits):
        octets_out = tl.sum(((words >> k) & 1) << bit, 2)
        tl.store(planes_out + (start + k * length)[:, None] + place, octets_out.to(tl.uint8), mask=inside)


@kernel
def decode_index_kernel(planes_in, values, elements, groups, bits, blocks, TILE: tl.constexpr):
    """Read integers from their planes."""
    n = tl.program_id(0) // blocks
    g = (tl.program_id(0) - n * blocks) * TILE + tl.arange(0, TILE)
    octet, bit = tl.arange(0, 32)[None, :, None], tl.arange(0, 8)[None, None, :]
    e = 256 * g[:, None, None] + 8 * octet + bit
    length = (tl.minimum(elements - 256 * g, 256) + 7) >> 3
    start = n.to(tl.int64) * bits * plane_length(elements) + 32 * bits * g
    place, inside = tl.arange(0, 32)[None, :], tl.arange(0, 32)[None, :] < length[:, None]
    words = tl.zeros((TILE, 32, 8), tl.int32)
    for k in range(0, bits):
        octets_in = tl.load(planes_in + (start + k * length)[:, None] + place, mask=inside, other=0).to(tl.int32)
        words |= ((octets_in[:, :, None] >> bit) & 1) << k
    tl.store(values + n.to(tl.int64) * elements + e, words, mask=e < elements)
