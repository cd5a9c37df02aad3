"""The stored format as numbers: families of codes, widths, sizes and offsets (docs/format.md)."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, ClassVar

from actnn.errors import FormatError

GROUP = 256
PLANE_BYTES = GROUP // 8
KEY_BYTES = 16
# what a key is derived from: seed, site and call; and its words
KEY_SOURCE, KEY = struct.Struct("<QQQ"), struct.Struct("<4I")
SCALE_BYTES = 2
LEAST_SCALE = 2.0**-100
MAX_BITS = 8
MAX_INDEX_BITS = 24


class Rounding(IntEnum):
    """How a value between two levels is rounded; the numbers are those of the C ABI."""

    DITHER = 0
    STOCHASTIC = 1
    NEAREST = 2


class Part(IntEnum):
    """Which part of a split code a reader wants; the numbers are those of the C ABI."""

    WHOLE = 0
    POSITIVE = 1


class Curve(IntEnum):
    """Along what values are coded, the value itself or a function of it; the numbers are those of the C ABI."""

    LINEAR = 0
    CUBIC = 1
    ROOT = 2


@dataclass(frozen=True)
class Family:
    """A family of split codes: ``negative[b]`` words of width ``b`` lie on the negative side.

    What is coded is the value along ``curve``; with ``unit``, a group stores the unit that its values are measured in.
    """

    name: str
    negative: tuple[int, ...]
    least_bits: int
    curve: Curve = Curve.LINEAR
    unit: bool = False

    @cached_property
    def affine(self) -> bool:
        """Whether words are levels over [zero, zero + range] instead of two sides of a threshold."""
        return self.negative[MAX_BITS] == 0

    @cached_property
    def scales(self) -> int:
        """Number of scales that a group stores."""
        return self.sides + self.unit

    @cached_property
    def sides(self) -> int:
        """Number of scales that words are levels of: all but the unit."""
        return 1 if self.negative[MAX_BITS] == 1 else 2


AFFINE = Family("affine", (0,) * (MAX_BITS + 1), least_bits=1)
ZERO_EXACT = Family("zero_exact", (1,) * (MAX_BITS + 1), least_bits=2)
# 3 + 5 beats 4 + 4 at three bits: the positive side has two readers, the negative one only BatchNorm
TWO_SIDED = Family("two_sided", (0, 0, 2, 3, 6, 12, 24, 48, 96), least_bits=2)

COMPANDED = Family("companded", AFFINE.negative, 1, Curve.CUBIC, unit=True)
# for values whose mean square is 1 already
NORMALIZED = Family("normalized", AFFINE.negative, 1, Curve.CUBIC)
TWO_SIDED_NORMALIZED = Family("two_sided_normalized", TWO_SIDED.negative, 2, Curve.CUBIC)
ZERO_EXACT_COMPANDED = Family("zero_exact_companded", ZERO_EXACT.negative, 2, Curve.CUBIC, unit=True)
# for probabilities, and whatever else is never negative
ROOT = Family("root", AFFINE.negative, 1, Curve.ROOT)

FAMILIES = {
    family.name: family
    for family in (
        *(AFFINE, ZERO_EXACT, TWO_SIDED),
        *(COMPANDED, NORMALIZED, TWO_SIDED_NORMALIZED, ZERO_EXACT_COMPANDED, ROOT),
    )
}


@dataclass(frozen=True)
class Layout:
    """Where the parts of a split code lie: ``samples`` rows of ``elements`` values, ``bits`` planes each.

    ``sample_bits`` gives every sample its own width; ``bits`` is then unused.
    """

    samples: int
    elements: int
    family: Family
    bits: int
    rounding: Rounding = Rounding.DITHER
    sample_bits: tuple[int, ...] | None = None

    # what a backend made of this layout for itself, once it was given it
    handle: ClassVar[Any] = None

    def __post_init__(self) -> None:
        check_shape(self.samples, self.elements)
        widths: Sequence[int] = (self.bits,) if self.sample_bits is None else self.sample_bits
        for width in set(widths):
            if not self.family.least_bits <= width <= MAX_BITS:
                raise FormatError(
                    f"a {self.family.name} code of {width} bits does not exist: "
                    f"expected a width from {self.family.least_bits} to {MAX_BITS}."
                )
        if self.family.curve is not Curve.LINEAR and self.rounding is Rounding.STOCHASTIC:
            raise FormatError(
                f"a {self.family.name} code cannot be rounded stochastically: along a curve the mean of two levels is "
                "not the value between them. Use dither, which is unbiased, or a family without a curve."
            )
        if self.sample_bits is not None and len(self.sample_bits) != self.samples:
            raise FormatError(
                f"{len(self.sample_bits)} widths were given for {self.samples} samples: expected one each."
            )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the handle: it may hold addresses, which mean nothing in a copy."""
        return {name: value for name, value in vars(self).items() if name != "handle"}

    @cached_property
    def groups(self) -> int:
        """Groups of one sample."""
        return -(-self.elements // GROUP)

    @cached_property
    def planes_offset(self) -> int:
        """Byte at which the planes begin."""
        return KEY_BYTES + SCALE_BYTES * self.family.scales * self.samples * self.groups

    @cached_property
    def plane(self) -> int:
        """Bytes of one plane through a whole sample."""
        return plane_bytes(self.elements)

    @cached_property
    def sample_offsets(self) -> tuple[int, ...]:
        """Byte offset of each sample's planes, and the size of the buffer at the end."""
        widths = self.sample_bits or (self.bits,) * self.samples
        return tuple(self.planes_offset + self.plane * planes for planes in accumulate(widths, initial=0))

    @cached_property
    def planes(self) -> int:
        """Planes of all samples together."""
        return self.samples * self.bits if self.sample_bits is None else sum(self.sample_bits)

    @cached_property
    def nbytes(self) -> int:
        """Size of the whole buffer."""
        return self.planes_offset + self.planes * self.plane


@lru_cache(maxsize=16)
def squared_steps(family: Family) -> tuple[tuple[float, float], ...]:
    """Return the squared step of each width over a range of 1, by width: of the negative side, then of the positive.

    A side of one level or none is exact, its step 0; that of widths which the family does not have is infinite.
    """
    steps = [(math.inf, math.inf)] * family.least_bits
    for bits in range(family.least_bits, MAX_BITS + 1):
        negative = family.negative[bits]
        steps.append((squared_step(negative), squared_step(2**bits - negative)))
    return tuple(steps)


def squared_step(levels: int) -> float:
    """Return the squared distance of neighbours among so many levels over a range of 1; a single level is exact."""
    return float((levels - 1) ** -2.0) if levels > 1 else 0.0


@lru_cache(maxsize=4096)
def uniform_layout(samples: int, elements: int, family: Family, bits: int, rounding: Rounding) -> Layout:
    """Return the layout in which every sample has the same width; a training step asks for the same few again."""
    return Layout(samples, elements, family, bits, rounding)


def check_shape(samples: int, elements: int) -> None:
    """Raise FormatError unless both sizes can be those of a code."""
    if samples < 0 or elements < 0:
        raise FormatError(f"a code of {samples} samples of {elements} elements does not exist: sizes are at least 0.")


def plane_bytes(elements: int) -> int:
    """Bytes of one plane through a whole sample; only the last group may be short."""
    return elements // GROUP * PLANE_BYTES + -(-(elements % GROUP) // 8)


@lru_cache(maxsize=4096)
def index_bytes(samples: int, elements: int, bits: int) -> int:
    """Size of an index code; a mask is one of width 1."""
    check_shape(samples, elements)
    if not 1 <= bits <= MAX_INDEX_BITS:
        raise FormatError(f"an index code of {bits} bits does not exist: expected 1 to {MAX_INDEX_BITS}.")
    return samples * bits * plane_bytes(elements)


def derive_key(seed: int, site: int, call: int) -> tuple[int, int, int, int]:
    """Return the four words that key the noise of one code."""
    digest = hashlib.blake2b(KEY_SOURCE.pack(seed, site, call), digest_size=KEY_BYTES).digest()
    words: tuple[int, int, int, int] = KEY.unpack(digest)
    return words
