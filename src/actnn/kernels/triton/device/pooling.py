"""The kernels of max pooling over up to three axes; one that has fewer counts the others as 1."""

import triton
import triton.language as tl

from actnn.kernels.triton.device.kernel import kernel
from actnn.kernels.triton.device.numbers import narrowed, widened
from actnn.kernels.triton.device.places import plane_length


@triton.jit
def coordinates(e, channels, height, span, depth, LAST: tl.constexpr):
    """Return channel and place along three axes of elements of a sample."""
    if LAST:
        c, e = e % channels, e // channels
    w, e = e % span, e // span
    h, e = e % height, e // height
    if LAST:
        return c, e, h, w
    else:
        return e // depth, e % depth, h, w


@triton.jit
def element(c, d, h, w, channels, depth, height, span, LAST: tl.constexpr):
    """Return the element of a sample at a place of a channel."""
    if LAST:
        return ((d * height + h) * span + w) * channels + c
    else:
        return ((c * depth + d) * height + h) * span + w


@kernel
def max_pool_kernel(
    values, out, planes_out, channels, depth, height, span, out_depth, out_height, out_span,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w, bits, blocks,
    KERNEL_D: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, LAST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write maxima, and the planes of their positions: NaN wins, then the first of equal values."""
    n = (tl.program_id(0) // blocks).to(tl.int64)
    g = (tl.program_id(0) % blocks) * TILE + tl.arange(0, TILE)
    octet, bit = tl.arange(0, 32)[None, :, None], tl.arange(0, 8)[None, None, :]
    e = 256 * g[:, None, None] + 8 * octet + bit
    elements = channels * out_depth * out_height * out_span
    read = n * (channels * depth * height * span)
    c, od, oh, ow = coordinates(e, channels, out_height, out_span, out_depth, LAST)
    best = tl.full((TILE, 32, 8), float("-inf"), tl.float32)
    position = tl.zeros((TILE, 32, 8), tl.int32)
    for index in range(0, KERNEL_D * KERNEL_H * KERNEL_W):
        d = od * stride_d - pad_d + index // (KERNEL_H * KERNEL_W) * dilation_d
        h = oh * stride_h - pad_h + index // KERNEL_W % KERNEL_H * dilation_h
        w = ow * stride_w - pad_w + index % KERNEL_W * dilation_w
        inside = (d >= 0) & (d < depth) & (h >= 0) & (h < height) & (w >= 0) & (w < span) & (e < elements)
        place = element(c, d, h, w, channels, depth, height, span, LAST)
        x = widened(tl.load(values + read + place, mask=inside, other=float("-inf")))
        better = (x > best) | (x != x)
        best, position = tl.where(better, x, best), tl.where(better, index, position)
    tl.store(out + n * elements + e, narrowed(best, out), mask=e < elements)
    position = tl.where(e < elements, position, 0)
    length = (tl.minimum(elements - 256 * g, 256) + 7) >> 3
    start = n * bits * plane_length(elements) + 32 * bits * g
    place, there = tl.arange(0, 32)[None, :], tl.arange(0, 32)[None, :] < length[:, None]
    for k in range(0, bits):
        octets_out = tl.sum(((position >> k) & 1) << bit, 2)
        tl.store(planes_out + (start + k * length)[:, None] + place, octets_out.to(tl.uint8), mask=there)


@triton.jit
def index_at(planes_in, base, e, here, elements, bits):
    """Return the integers that an index code holds at elements e of one sample."""
    g = e // 256
    i = e - 256 * g
    length = (tl.minimum(elements - 256 * g, 256) + 7) >> 3
    place = base + 32 * bits * g + (i >> 3)
    found = 0 * e
    for k in range(0, bits):
        octet = tl.load(planes_in + place + k * length, mask=here, other=0).to(tl.int32)
        found |= ((octet >> (i & 7)) & 1) << k
    return found


@kernel
def max_pool_backward_kernel(
    planes_in, grad, out, channels, depth, height, span, out_depth, out_height, out_span,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w, bits, blocks,
    KERNEL_D: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of pooled values: every one adds up, in the order of positions, the windows that chose it."""
    n = (tl.program_id(0) // blocks).to(tl.int64)
    e = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    elements = channels * depth * height * span
    pooled = channels * out_depth * out_height * out_span
    base = n * bits * plane_length(pooled)
    c, d, h, w = coordinates(e, channels, height, span, depth, LAST)
    total = tl.zeros((BLOCK,), tl.float32)
    for index in range(0, KERNEL_D * KERNEL_H * KERNEL_W):
        far_d = d + pad_d - index // (KERNEL_H * KERNEL_W) * dilation_d
        far_h = h + pad_h - index // KERNEL_W % KERNEL_H * dilation_h
        far_w = w + pad_w - index % KERNEL_W * dilation_w
        od, oh, ow = far_d // stride_d, far_h // stride_h, far_w // stride_w
        inside = (far_d >= 0) & (far_h >= 0) & (far_w >= 0) & (e < elements)
        inside = inside & (od * stride_d == far_d) & (oh * stride_h == far_h) & (ow * stride_w == far_w)
        inside = inside & (od < out_depth) & (oh < out_height) & (ow < out_span)
        place = tl.where(inside, element(c, od, oh, ow, channels, out_depth, out_height, out_span, LAST), 0)
        chosen = inside & (index_at(planes_in, base, place, inside, pooled, bits) == index)
        x = widened(tl.load(grad + n * pooled + place, mask=chosen, other=0.0))
        total += tl.where(chosen, x, 0.0)
    tl.store(out + n * elements + e, narrowed(total, out), mask=e < elements)
