"""Where things lie: the groups of a program, the planes of a sample, the channels of elements.

A tile is (groups, 16, 8): a group is 16 pairs of octets, and the two octets of a pair, ``low`` and ``high``, share one
hash, whose low and high 16 bits are their noise. What is computed of an element is therefore done twice, on two tiles.
"""

import triton
import triton.language as tl

from actnn.format import KEY_BYTES
from actnn.kernels.triton.device.kernel import ZERO_EXACT
from actnn.kernels.triton.device.numbers import narrowed, widened

HEADER = tl.constexpr(KEY_BYTES)


@triton.jit
def program_sample(blocks, FORM: tl.constexpr):
    """Return the sample that a program belongs to, where it belongs to one."""
    if FORM.flat:
        return tl.program_id(0) * 0
    else:
        return tl.program_id(0) // blocks


@triton.jit
def tile(samples, groups, blocks, FORM: tl.constexpr):
    """Return sample and group of each of a program's groups, and which of them exist."""
    if FORM.flat:
        lane = tl.program_id(0) * FORM.tile + tl.arange(0, FORM.tile)
        n = tl.minimum(lane // groups, samples - 1)
        return n, lane - n * groups, lane < samples * groups
    else:
        sample = program_sample(blocks, FORM)
        lane = (tl.program_id(0) - sample * blocks) * FORM.tile + tl.arange(0, FORM.tile)
        return sample + 0 * lane, lane, lane < groups


@triton.jit
def octets():
    """Return the places within a group of its pairs of octets, and of the elements of an octet."""
    return tl.arange(0, 16)[None, :, None], tl.arange(0, 8)[None, None, :]


@triton.jit
def plane_length(elements):
    """Return the bytes of one plane through a whole sample."""
    return elements // 256 * 32 + (elements % 256 + 7) // 8


@triton.jit
def scales_of(FORM: tl.constexpr):
    """Return how many scales a group stores."""
    return 2 - (FORM.kind == ZERO_EXACT) + FORM.unit


@triton.jit
def sample_planes(n, samples, groups, elements, blocks, first_sample, widths, offsets, FORM: tl.constexpr):
    """Return the width of a program's samples, and the byte at which the planes of each begin.

    ``widths`` and ``offsets`` are those of all samples of a code; a program's begin with ``first_sample``.
    """
    if FORM.bits > 0:
        n = n.to(tl.int64)
        scales: tl.constexpr = scales_of(FORM)
        base = HEADER + 2 * scales * (0 * n + samples) * groups + n * FORM.bits * plane_length(elements)
        return FORM.bits + 0 * tl.program_id(0), base
    else:
        sample = program_sample(blocks, FORM) + first_sample
        return tl.load(widths + sample).to(tl.int32), tl.load(
            offsets.to(tl.pointer_type(tl.int64)) + sample
        ) + 0 * n.to(tl.int64)


@triton.jit
def places(n, g, elements, e, FORM: tl.constexpr):
    """Return where elements of a tile lie in an array (samples, elements)."""
    if FORM.whole:
        # written so that the compiler sees a multiple of 256
        return ((n.to(tl.int64) * (elements // 256) + g) * 256)[:, None, None] + e
    else:
        return (n.to(tl.int64) * elements + 256 * g)[:, None, None] + e


@triton.jit
def load_tile(values, n, g, here, elements, e, FORM: tl.constexpr):
    """Return the elements of a tile; what lies behind the end repeats the last one, which changes no range."""
    place = values + places(n, g, elements, e, FORM)
    if FORM.whole:
        return widened(tl.load(place, mask=here[:, None, None], other=0.0))
    else:
        rest = (elements - 256 * g)[:, None, None]
        last = tl.load(values + n.to(tl.int64) * elements + elements - 1)[:, None, None]
        x = tl.load(place, mask=here[:, None, None] & (e < rest), other=0.0)
        return widened(tl.where(e < rest, x, last))


@triton.jit
def store_tile(values, n, g, here, elements, e, x, FORM: tl.constexpr):
    """Write the elements of a tile."""
    inside = here[:, None, None]
    if not FORM.whole:
        inside = inside & (e < (elements - 256 * g)[:, None, None])
    tl.store(values + places(n, g, elements, e, FORM), narrowed(x, values), mask=inside)


@triton.jit
def tile_channels(g, e, half, elements, inner, count, magic_inner, magic_count, CUT: tl.constexpr, FORM: tl.constexpr):
    """Return the channel of each element of a tile: one division a group, and none an element.

    ``half`` is 0 for low octets and 1 for high ones. Behind the end of a sample it is the channel of the last element.
    """
    pair, bit = octets()
    q = 256 * g // inner
    place = e
    if CUT.octet > 0:
        place = 16 * pair + 8 * half
    rest = (256 * g - q * inner)[:, None, None] + place
    if CUT.large_inner:
        delta = (rest >= inner).to(tl.int32)
    else:
        delta = (rest * magic_inner) >> 20
    if CUT.outer:
        c = (q % count)[:, None, None] + delta
        if CUT.large_count:
            c = tl.where(c >= count, c - count, c)
        else:
            c = c - ((c * magic_count) >> 20) * count
    else:
        c = tl.minimum(q[:, None, None] + delta, count - 1)
    if CUT.octet == 2:
        c = tl.multiple_of(c, [1, 1, 8]) + bit
    if not FORM.whole:
        c = tl.where(e < (elements - 256 * g)[:, None, None], c, count - 1)
    return c


@triton.jit
def parameter(pointer, c, default):
    """Return one number a channel as float32, or its default where there is no array."""
    if pointer is None:
        return tl.full(c.shape, default, tl.float32)
    else:
        return widened(tl.load(pointer + c))
