"""Activations piece by piece, so that what is computed of one takes less room than the activation itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from actnn.format import GROUP, PLANE_BYTES, Layout, plane_bytes, uniform_layout
from actnn.kernels.contract import AnyLayout, Array, Arrays, Channels

# A piece is one of so many: what is computed of an element takes up to 40 times its own four bytes.
PIECES = 48
# smaller ones would take longer, and save little
LEAST_PIECE = 1 << 14


@dataclass(frozen=True)
class Piece:
    """Some samples of a code, all of one width, or some groups of one; ``layout`` is its own.

    ``samples`` and ``places`` tell which elements it has, ``group`` which group of the code is its first, and
    ``planes`` which bytes of the code are its planes.
    """

    layout: Layout
    samples: slice
    places: slice
    group: int
    planes: slice

    def channels(self, arrays: Arrays, channels: Channels, like: Array) -> Array:
        """Return the channel of each of its places."""
        return arrays.arange(self.places.start, self.places.stop, like) // channels.inner % channels.count


def stretches(samples: int, elements: int) -> Iterator[tuple[slice, slice]]:
    """Yield which samples, and which places of these, one piece of an activation after the other has."""
    most = max(LEAST_PIECE, samples * elements // PIECES)
    at_once = most // max(1, elements)
    if at_once:
        for first in range(0, samples if elements else 0, at_once):
            yield slice(first, min(first + at_once, samples)), slice(0, elements)
        return
    step = GROUP * (most // GROUP)
    for sample in range(samples):
        for start in range(0, elements, step):
            yield slice(sample, sample + 1), slice(start, min(start + step, elements))


def whole_samples(layout: AnyLayout) -> Iterator[slice]:
    """Yield some samples after the other, as many as a piece has, and at least one."""
    step = max(1, max(LEAST_PIECE, layout.samples * layout.elements // PIECES) // max(1, layout.elements))
    for first in range(0, layout.samples, step):
        yield slice(first, min(first + step, layout.samples))


def index_planes(rows: slice, places: slice, elements: int, bits: int) -> slice:
    """Return which bytes of an index code are those of some samples, or of some groups of one."""
    sample = bits * plane_bytes(elements)
    start = rows.start * sample + PLANE_BYTES * bits * (places.start // GROUP)
    return slice(start, start + (rows.stop - rows.start) * bits * plane_bytes(places.stop - places.start))


def runs(layout: AnyLayout) -> Iterator[tuple[int, int, int]]:
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


def pieces(layout: AnyLayout, samples: range | None = None) -> Iterator[Piece]:
    """Yield the pieces of a code, or of some of its samples, in order."""
    wanted = range(layout.samples) if samples is None else samples
    elements, offsets = layout.elements, layout.sample_offsets
    most = max(LEAST_PIECE, layout.samples * elements // PIECES)
    if elements == 0:
        return
    for start, stop, bits in runs(layout):
        start, stop = max(start, wanted.start), min(stop, wanted.stop)
        at_once = most // elements
        for first in range(start, stop, max(1, at_once)):
            if at_once:
                last = min(first + at_once, stop)
                own = uniform_layout(last - first, elements, layout.family, bits, layout.rounding)
                planes = slice(offsets[first], offsets[last])
                yield Piece(own, slice(first, last), slice(0, elements), first * layout.groups, planes)
            else:
                yield from groups_of(layout, first, bits, most // GROUP, offsets[first])


def groups_of(layout: AnyLayout, sample: int, bits: int, step: int, offset: int) -> Iterator[Piece]:
    """Yield some groups of a sample after the other."""
    for group in range(0, layout.groups, step):
        places = slice(GROUP * group, min(GROUP * (group + step), layout.elements))
        length = places.stop - places.start
        own = uniform_layout(1, length, layout.family, bits, layout.rounding)
        start = offset + PLANE_BYTES * bits * group
        planes = slice(start, start + bits * plane_bytes(length))
        yield Piece(own, slice(sample, sample + 1), places, sample * layout.groups + group, planes)
