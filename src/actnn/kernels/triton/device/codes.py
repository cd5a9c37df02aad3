"""The kernels that make and read split codes."""

import triton
import triton.language as tl

from actnn.kernels.triton.device.kernel import kernel
from actnn.kernels.triton.device.numbers import above_zero, tile_noise, word
from actnn.kernels.triton.device.places import (
    load_tile,
    octets,
    parameter,
    sample_planes,
    store_tile,
    tile,
    tile_channels,
)
from actnn.kernels.triton.device.values import decoded_tile
from actnn.kernels.triton.device.words import store_code, store_key


@kernel
def encode_kernel(
    values, code, widths, offsets, key0, key1, key2, key3, samples, elements, groups, blocks, FORM: tl.constexpr
):
    """Encode values."""
    n, g, here = tile(samples, groups, blocks, FORM)
    store_key(code, key0, key1, key2, key3)
    bits, base = sample_planes(n, samples, groups, elements, blocks, 0, widths, offsets, FORM)
    pair, bit = octets()
    low = load_tile(values, n, g, here, elements, 16 * pair + bit, FORM)
    high = load_tile(values, n, g, here, elements, 16 * pair + bit + 8, FORM)
    low_noise, high_noise = tile_noise(
        n * groups + g, pair, bit, word(key0), word(key1), word(key2), word(key3), FORM.rounding
    )
    store_code(
        code, low, high, above_zero(low), above_zero(high), low_noise, high_noise,
        n, g, here, groups, elements, bits, base, FORM,
    )  # fmt: skip


@triton.jit
def scaled(value, c, gamma, beta, threshold, POSITIVE: tl.constexpr):
    """Return the output of a BatchNorm, or its positive part, from coded values."""
    scale, shift = parameter(gamma, c, 1.0), parameter(beta, c, 0.0)
    if threshold is not None:
        scale = tl.abs(scale)
        shift = shift + scale * tl.load(threshold + c)
        if POSITIVE:
            shift = tl.where(shift > 0, shift, 0.0)
    return value * scale + shift


@kernel
def decode_kernel(
    code, out, widths, offsets, gamma, beta, threshold, samples, elements, groups, blocks, first_sample, rows,
    inner, count, magic_inner, magic_count,
    FORM: tl.constexpr, POSITIVE: tl.constexpr, AFFINE: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    """Decode some samples; with AFFINE, as the output of a BatchNorm."""
    row, g, here = tile(rows, groups, blocks, FORM)
    n = row + first_sample
    bits, base = sample_planes(n, samples, groups, elements, blocks, first_sample, widths, offsets, FORM)
    _, _, low, high = decoded_tile(code, n, g, here, groups, elements, bits, base, FORM, POSITIVE, False)
    pair, bit = octets()
    e = 16 * pair + bit
    if AFFINE:
        c = tile_channels(g, e, 0, elements, inner, count, magic_inner, magic_count, CUT, FORM)
        low = scaled(low, c, gamma, beta, threshold, POSITIVE)
        c = tile_channels(g, e + 8, 1, elements, inner, count, magic_inner, magic_count, CUT, FORM)
        high = scaled(high, c, gamma, beta, threshold, POSITIVE)
    store_tile(out, row, g, here, elements, e, low, FORM)
    store_tile(out, row, g, here, elements, e + 8, high, FORM)
