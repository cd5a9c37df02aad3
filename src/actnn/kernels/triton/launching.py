"""How kernels are launched: forms of codes, grids, and where the widths of samples lie on the device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from actnn.errors import FormatError
from actnn.format import GROUP, Curve, Family
from actnn.kernels.contract import AnyLayout, Array, Arrays, Channels, DividedLayout, Key, check_buffer
from actnn.kernels.triton.device.kernel import Cut, Form

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# groups of a program; the interpreter is the faster the fewer programs there are
TILE = 64 if INTERPRETED else 16
# fewer would leave threads idle
LEAST_TILE = 4
# bits above which words along a cubic, found bit by bit, want more registers; so do those with levels on both sides,
# and these along a line too where something else wants registers
FEW_BITS = 4
# the format forbids fused multiply-adds
OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}
# kernels read and write whole words of a code's header
ALIGNMENT = 4
# numbers below 256 are divided by as a product and a shift
MAGIC = 1 << 20
# kernels count the elements of a sample, and those that a program reads behind its end, in 32 bits
MOST_ELEMENTS = 2**31 - 2**20
NO_CHANNELS = Channels(1, 1)
# where a channel has fewer elements side by side than this, a program reads several channels
SIDE = 32
TILE_POSITIONS = 512
MOST_PROGRAMS = 4096


@dataclass(frozen=True)
class Chunks:
    """How the positions of channels, over all samples, are divided between programs that add something up.

    A program reads ``channels`` of them, ``tile`` positions at a time; each channel is read in ``number`` parts of
    ``length`` positions.
    """

    positions: int
    channels: int
    tile: int
    number: int
    length: int
    programs: int

    @staticmethod
    def of(channels: Channels, samples: int, elements: int) -> Chunks:
        """Divide the positions of channels, the same on every device, so that sums have one order."""
        positions = samples * elements // max(1, channels.count)
        side_by_side = 1 if channels.inner >= SIDE else 16 if channels.inner > 1 else 64
        tile = TILE_POSITIONS // side_by_side
        blocks = -(-channels.count // side_by_side)
        number = max(1, min(-(-positions // (4 * tile)), -(-MOST_PROGRAMS // max(1, blocks))))
        length = max(1, -(-positions // (number * tile)) * tile)
        number = max(1, -(-positions // length))
        return Chunks(positions, side_by_side, tile, number, length, blocks * number)


class Launch(Protocol):
    """What launches kernels: ``run``, or what only looks at how they would be launched."""

    def __call__(
        self, arrays: Arrays, like: Array, kernel: Any, programs: int, *arguments: Any, **constants: Any
    ) -> None:
        """Launch so many programs of a kernel on the device of ``like``; none where there is nothing to do."""


def run(arrays: Arrays, like: Array, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Run so many programs of a kernel on the device of ``like``; none where there is nothing to do."""
    if programs > 0:
        with arrays.computing_on(like):
            kernel[(programs,)](*arguments, **constants, **OPTIONS)


class Launching:
    """Rows of the contract whose kernels are launched by ``launch``."""

    def __init__(self, launch: Launch = run) -> None:
        self.launch = launch


def form_of(layout: AnyLayout, share: int = 1) -> Form:
    """Return what of a layout is constant within a kernel, which leaves a code one ``share``-th of its registers."""
    family = layout.family
    whole = layout.elements % GROUP == 0
    uniform = not isinstance(layout, DividedLayout) and layout.sample_bits is None
    bits = layout.bits if uniform else 0
    tile = tile_of(family, bits, whole, share)
    return Form(
        kind=0 if family.affine else family.sides,
        curve=int(family.curve),
        unit=int(family.unit),
        rounding=int(layout.rounding),
        bits=bits,
        tile=tile,
        flat=int(bits > 0 and layout.groups < tile),
        whole=int(whole),
    )


def tile_of(family: Family, bits: int, whole: bool, share: int = 1) -> int:
    """Return how many groups a program works on: as many as its registers hold."""
    if INTERPRETED:
        return TILE
    # a curve needs twice the registers, and so do samples that end within a group
    tile = TILE // (1 if family.curve is Curve.LINEAR else 2) // (1 if whole else 2)
    both_sides = not family.affine and family.sides > 1
    if (family.curve is Curve.CUBIC and (bits > FEW_BITS or both_sides)) or (share > 1 and both_sides):
        tile //= 2
    return max(LEAST_TILE, tile // share)


def cut_of(channels: Channels, elements: int) -> Cut:
    """Return how the elements of a group divide into channels."""
    octet = 1 if channels.inner % 8 == 0 else 2 if channels.inner == 1 and channels.count % 8 == 0 else 0
    return Cut(
        large_inner=int(channels.inner >= GROUP),
        outer=int(elements > channels.count * channels.inner),
        large_count=int(channels.count >= GROUP),
        octet=octet,
    )


def divisors(channels: Channels) -> tuple[int, int, int, int]:
    """Return what kernels divide places by to find a channel: its size, the number of channels, and their inverses."""
    return channels.inner, channels.count, magic(channels.inner), magic(channels.count)


def magic(divisor: int) -> int:
    """Return the inverse of a small number in units of 2^-20, rounded up; 1 for a large one, which has none."""
    return -(-MAGIC // divisor) if divisor < GROUP else 1


def grid(form: Form, groups: int, samples: int) -> tuple[int, int]:
    """Return how many programs a tile after the other takes, and how many of them a sample has."""
    blocks = blocks_of(groups * GROUP, form.tile * GROUP)
    return (-(-groups * samples // form.tile) if form.flat else blocks * samples), max(1, blocks)


def blocks_of(elements: int, length: int) -> int:
    """Return how many programs, of so many elements each, a sample takes."""
    check_elements(elements)
    return -(-elements // length)


def check_elements(elements: int) -> None:
    """Raise FormatError where a sample has more elements than kernels can count."""
    if elements > MOST_ELEMENTS:
        raise FormatError(
            f"kernels of accelerators were given a sample of {elements} elements: expected at most {MOST_ELEMENTS}. "
            "Give smaller samples, or leave that layer exact."
        )


def signed(key: Key) -> Sequence[int]:
    """Return the words of a key as numbers of 32 bits with a sign, so that all are of one type."""
    return [(word ^ 0x80000000) - 0x80000000 for word in key]


def sample_places(arrays: Arrays, layout: AnyLayout, like: Array) -> tuple[Array, Array]:
    """Return the widths and the offsets of samples, as bytes on the device; of no meaning where all are alike."""
    if isinstance(layout, DividedLayout):
        if layout.placed is not None:
            return layout.placed
    elif layout.sample_bits is None:
        return like, like
    widths = np.array(layout.sample_bits, np.uint8)
    offsets = np.array(layout.sample_offsets, np.int64).view(np.uint8)
    return arrays.upload(widths, like), arrays.upload(offsets, like)


def space(arrays: Arrays, like: Array, nbytes: int, buffer: Array | None) -> Array:
    """Return bytes for a code: the buffer that the caller gave, or new ones."""
    if buffer is None:
        return arrays.bytes(nbytes, like)
    return aligned(arrays, check_buffer(arrays, buffer, nbytes))


def aligned(arrays: Arrays, buffer: Array) -> Array:
    """Return a buffer that kernels can read words of; raise FormatError for one that begins between two."""
    if arrays.pointer(buffer) % ALIGNMENT:
        raise FormatError(
            f"a code begins at an address that is {arrays.pointer(buffer) % ALIGNMENT} more than a multiple of "
            f"{ALIGNMENT}: expected a multiple. Copy it to memory of its own."
        )
    return buffer
