"""Backends, values and array lenders that the kernel tests run through."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import pytest

from actnn.errors import UnsupportedError
from actnn.format import FAMILIES, KEY_BYTES, Curve, Layout, Part, Rounding, derive_key
from actnn.kernels.contract import Block, DividedLayout, Span, Stretch
from actnn.kernels.native import SIMD, LibraryMissingError, Native, find_library
from actnn.kernels.numpy_arrays import NumpyArrays
from actnn.kernels.reference import Reference, variance
from actnn.kernels.reference.pieces import pieces

NUMPY = NumpyArrays()
REFERENCE = Reference()
KEY = derive_key(seed=7, site=11, call=13)
# a process in which Triton is interpreted tests Triton's kernels, by the tests of the compiled ones
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
BACKENDS = ("triton",) if INTERPRETED else ("reference", *SIMD)
NATIVE_BACKENDS = BACKENDS if INTERPRETED else BACKENDS[1:]

WIDTHS = [(name, bits) for name, family in FAMILIES.items() for bits in range(family.least_bits, 9)]
SIDED = [name for name, family in FAMILIES.items() if not family.affine]
# a curve knows no stochastic rounding
ROUNDED = [
    (name, bits, rounding)
    for name, bits in WIDTHS
    for rounding in Rounding
    if FAMILIES[name].curve is Curve.LINEAR or rounding is not Rounding.STOCHASTIC
]
LINEAR_WIDTHS = [(name, bits) for name, bits in WIDTHS if FAMILIES[name].curve is Curve.LINEAR]
FEW_WIDTHS = [(name, bits) for name, bits in WIDTHS if bits in (1, 2, 3, 4, 8)]


def backend_named(name: str):
    """Return a backend; skip where this machine cannot run it."""
    if name == "reference":
        return REFERENCE
    if name == "triton":
        return interpreted_backend()
    try:
        return Native(find_library(), name)
    except (LibraryMissingError, UnsupportedError) as problem:
        pytest.skip(str(problem))


def interpreted_backend():
    """Return the kernels of Triton, interpreted; they want Triton and torch, which other tests do not."""
    from interpreted import Interpreted

    return Interpreted()


def layout_of(values, family: str = "affine", bits: int = 4, rounding=Rounding.DITHER, sample_bits=None) -> Layout:
    return Layout(*values.shape, FAMILIES[family], bits, rounding, sample_bits)


def values_for(family: str, values):
    """Return values as a family is made for: none below zero where it does not keep these."""
    if FAMILIES[family].curve is Curve.ROOT:
        return abs(values)
    return np.maximum(values, 0) if FAMILIES[family].sides == 1 else values


def block_of(samples: int, before: int = 1) -> Block:
    """Return a block within memory that begins so many times 8 bytes before it, and is 0 all over."""
    memory = np.zeros(8 * before + Block.nbytes(samples) + 8, np.uint8)
    return Block(Stretch(memory), memory.ctypes.data + 8 * before, samples)


def span_of(count: int) -> Span:
    """Return room for some numbers within larger memory, filled with NaN."""
    memory = np.full(count + 2, np.nan, np.float32).view(np.uint8)
    return Span(Stretch(memory), memory.ctypes.data + 4, count)


def divided_layout(shape, family: str, planes: int, rounding=Rounding.DITHER) -> DividedLayout:
    """Return a layout whose planes are still to be divided."""
    chosen = FAMILIES[family]
    return DividedLayout(Layout(*shape, chosen, chosen.least_bits, rounding), planes, block_of(shape[0]))


def round_trip(backend, values, layout: Layout, key=KEY, part=Part.WHOLE):
    """Return what ``values`` decode to."""
    return backend.decode(NUMPY, backend.encode(NUMPY, values, layout, key), layout, part, "float32")


def stored_scales(buffer, layout: Layout):
    """Return the scales of a code as float32, of shape (samples, groups, scales)."""
    octets = np.asarray(buffer)[KEY_BYTES : layout.planes_offset].reshape(-1, 2).astype(np.uint32)
    bits = (octets[:, 0] | octets[:, 1] << 8) << 16
    return bits.view(np.float32).reshape(layout.samples, layout.groups, layout.family.scales)


def stored_words(buffer, layout: Layout):
    """Return the words of a code, of shape (samples, elements)."""
    widths = layout.sample_bits or (layout.bits,) * layout.samples
    rows = [
        REFERENCE.decode_index(NUMPY, np.asarray(buffer)[start:stop], 1, layout.elements, bits)
        for bits, (start, stop) in zip(widths, pairwise(layout.sample_offsets), strict=True)
    ]
    return np.concatenate([np.empty((0, layout.elements), np.int32), *rows])


def steps(buffer, layout: Layout):
    """Return the distance between levels on each side, float64, of shape (samples, elements, sides)."""
    scales = stored_scales(buffer, layout).astype(np.float64)[..., -2:]
    negative = layout.family.negative[layout.bits]
    levels = np.array([max(1, negative - 1), 2**layout.bits - negative - 1], np.float64)
    if layout.family.affine:
        sides = np.repeat(scales[..., 1:], 2, -1) / levels[1]
    elif layout.family.scales == 1:
        sides = np.concatenate([0 * scales, scales / levels[1]], -1)
    else:
        sides = scales / levels
    return np.repeat(sides, 256, 1)[:, : layout.elements]


def variances(buffer, layout: Layout):
    """Return the variance of what a code decodes to, as its steps tell it, of shape (samples, elements)."""
    found = np.empty((layout.samples, layout.elements), np.float32)
    for piece in pieces(layout):
        found[piece.samples, piece.places] = variance.of_piece(NUMPY, buffer, piece)
    return found


class PoisonedArrays(NumpyArrays):
    """numpy arrays whose memory is filled with rubbish, off any alignment and guarded at both ends.

    ``check_guards`` raises where a kernel wrote outside of what it was lent.
    """

    GUARD = 64
    RUBBISH = 0xA5

    def __init__(self, threads: int = 2) -> None:
        self._threads = threads
        self._lent: list[tuple[np.ndarray, int]] = []

    def threads(self) -> int:
        return self._threads

    def empty(self, shape, dtype, like):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        # an odd multiple of four bytes: what a slice of a float tensor may be aligned to, and no more
        start = self.GUARD + 4
        memory = np.full(start + size + self.GUARD, self.RUBBISH, np.uint8)
        self._lent.append((memory, size))
        return memory[start : start + size].view(dtype).reshape(shape)

    def check_guards(self) -> None:
        for memory, size in self._lent:
            start = self.GUARD + 4
            outside = np.concatenate([memory[:start], memory[start + size :]])
            assert (outside == self.RUBBISH).all(), "a kernel wrote outside of the array it was lent"


def assorted_values(samples: int, elements: int, seed: int = 0):
    """Return float32 values with everything that may trip a kernel: zeros of both signs, ties, extremes, non-finite."""
    generator = np.random.default_rng([seed, samples, elements])
    values = generator.standard_normal((samples, elements)).astype(np.float32)
    values *= np.exp2(generator.integers(-30, 30, (samples, 1))).astype(np.float32)
    specials = [0.0, -0.0, 1.0, -1.0, 1e-38, -1e-40, 3.3e38, -3.3e38, np.nan, np.inf, -np.inf, 6e-8, 65504.0]
    # specials in few samples only: most groups must stay sound
    for sample in range(0, samples, 3):
        for special in generator.choice(specials, 2):
            if elements:
                values[sample, generator.integers(elements)] = special
    if samples > 1:
        values[1] = np.maximum(values[1], 0)
    if samples > 2:
        values[2] = values[2, :1]
    return values


def same_bits(x, y) -> None:
    """Raise unless two arrays hold the same bits; every NaN counts as the same."""
    assert x.dtype == y.dtype
    assert x.shape == y.shape
    unsigned = f"u{x.dtype.itemsize}"
    differ = (x.view(unsigned) != y.view(unsigned)) & ~(np.isnan(x) & np.isnan(y))
    where = np.argwhere(differ)
    assert len(where) == 0, f"{len(where)} differ, first at {where[0]}: {x[tuple(where[0])]!r}, {y[tuple(where[0])]!r}"
