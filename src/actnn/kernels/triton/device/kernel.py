"""How a kernel is declared, and the constants by which it is specialised.

Launch every kernel with ``enable_fp_fusion=False``: the format forbids fused multiply-adds. Divide by ``tl.div_rn``,
never by ``/``, which is not rounded correctly. No float becomes an integer or the other way but by adding 2^23, where
that is exact: conversions run at a quarter of the speed.
"""

import inspect
import os
from typing import NamedTuple

import triton
import triton.language as tl

AFFINE, ZERO_EXACT, TWO_SIDED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
LINEAR, CUBIC, ROOT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
DITHER, STOCHASTIC, NEAREST = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)

# the interpreter differs from a GPU in what it makes of bfloat16
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

# What arguments that are numbers are called. Triton would make a constant of every one that is 1, which has no
# operations of a tensor, and compile anew for each that is a multiple of 16.
NUMBERS = frozenset(
    {
        *("samples", "elements", "groups", "blocks", "first_sample", "rows", "parts", "chunk", "chunks", "stride"),
        *("key0", "key1", "key2", "key3", "inner", "count", "magic_inner", "magic_count", "outer", "positions"),
        *("width", "magic_width", "parameters", "magic_parameters", "planes", "planes_offset", "plane", "reads"),
        *("first_group", "bits", "step_rows", "channels", "values_count"),
        *("depth", "height", "span", "out_depth", "out_height", "out_span"),
        *("stride_d", "stride_h", "stride_w", "pad_d", "pad_h", "pad_w"),
        *("dilation_d", "dilation_h", "dilation_w"),
        *(f"weight{word}" for word in range(8)),
    }
)


class Form(NamedTuple):
    """What of a split code is constant within a kernel.

    ``bits`` is 0 where every sample has a width of its own. ``whole``: samples consist of whole groups. ``flat``: small
    samples share a program. ``tile``: groups of a program.
    """

    kind: int
    curve: int
    unit: int
    rounding: int
    bits: int
    tile: int
    flat: int
    whole: int


class Cut(NamedTuple):
    """How the elements of a group divide into channels, of which nothing else need be divided.

    ``large_inner``: a group reaches into one further channel at most. ``outer``: channels come again within a sample.
    ``large_count``: within a group no channel comes again. ``octet``: eight elements lie in one channel (1), in eight
    beginning with a multiple of eight (2), or anywhere (0).
    """

    large_inner: int
    outer: int
    large_count: int
    octet: int


def kernel(function):
    """Compile a function as a kernel; its numbers are never constants."""
    numbers = [name for name in inspect.signature(function).parameters if name in NUMBERS]
    return triton.jit(function, do_not_specialize=numbers)
