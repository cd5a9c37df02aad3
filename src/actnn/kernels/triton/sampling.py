"""The rows that widths are chosen by: ranges, energies, and the division of planes, by Triton."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from actnn.errors import FormatError
from actnn.format import GROUP, KEY_BYTES, Family
from actnn.kernels.blocks import OFFSET_BYTES, RANGE_BYTES
from actnn.kernels.contract import (
    AnyLayout,
    Array,
    Arrays,
    Block,
    Channels,
    DividedLayout,
    Division,
    Key,
    Normalization,
    Span,
)
from actnn.kernels.reference import division as definition
from actnn.kernels.reference.sampling import groups_read
from actnn.kernels.triton.device.kernel import Form
from actnn.kernels.triton.device.sampling import divide_kernel, energy_kernel, ranges_kernel, sample_sums_kernel
from actnn.kernels.triton.launching import NO_CHANNELS, TILE, Launch, Launching, cut_of, divisors, form_of, magic, run

# rows that the last stage of a sum adds at a time, and the steps from one width to the next that a table has room for
CHUNK = 64
STEPS = 8


@dataclass(frozen=True)
class Source:
    """Where measured values come from: arrays by channel or by row (``kind`` 1 and 2), and the weights of channels.

    ``squared``: channels count by the square of ``weight``, which may be any float. ``mean`` is None for rows that are
    not centred.
    """

    kind: int = 0
    channels: Channels = NO_CHANNELS
    mean: Array | None = None
    inverse: Array | None = None
    threshold: Array | None = None
    weight: Array | None = None
    squared: bool = False
    width: int = 1


class SamplingRows(Launching):
    """The rows that measure what noise in a code costs, and divide its planes."""

    name = "triton"
    any_shape = True

    def __init__(self, launch: Launch = run) -> None:
        super().__init__(launch)
        self._reliefs: dict[tuple[str, str], Array] = {}

    def write_key(self, arrays: Arrays, buffer: Array, key: Key) -> Array:
        """Write the key of a code that holds nothing else."""
        buffer[:KEY_BYTES] = arrays.upload(np.array(key, "<u4").view(np.uint8), buffer)
        return buffer

    def ranges(
        self,
        arrays: Arrays,
        values: Array,
        layout: AnyLayout,
        stride: int,
        channels: Channels | None = None,
        normalization: Normalization | None = None,
        weight: Array | None = None,
    ) -> Array:
        out = arrays.empty((layout.samples, 4), "float32", values)
        source = Source(channels=channels or NO_CHANNELS, weight=weight)
        if normalization is not None:
            parts = normalization.mean, normalization.inverse, normalization.threshold
            source = Source(1, source.channels, *parts, weight)
        measure(self.launch, arrays, values, layout, stride, source, out)
        return out

    def energy(
        self,
        arrays: Arrays,
        values: Array,
        stride: int,
        out: Span | None = None,
        rows: tuple[int, int] | None = None,
    ) -> Array | None:
        samples, elements = values.shape if rows is None else rows
        result = arrays.empty((samples,), "float32", values) if out is None else None
        place: Array = result
        if out is not None:
            place = out.stretch.on_device(arrays, values, out.address, 4 * out.count)
        first, reads, factor = groups_read(elements, stride)
        if elements == 0:
            place[:] = 0
            return result
        blocks = -(-reads // TILE)
        partial = arrays.empty((samples * blocks,), "float32", values)
        form = Form(0, 0, 0, 0, 1, TILE, 0, int(elements % GROUP == 0))
        shape = elements, -(-elements // GROUP), reads, blocks, first, stride
        self.launch(arrays, values, energy_kernel, samples * blocks, values, partial, *shape, form)
        self.launch(arrays, values, sample_sums_kernel, samples, partial, place, factor, blocks, 1, CHUNK)
        return result

    def divide(self, layout: DividedLayout, division: Division) -> None:
        # what is asked for without an array lies on the host
        definition.divide(layout, division)
        layout.placed = None

    def measure_and_divide(
        self, arrays: Arrays, values: Array, layout: DividedLayout, division: Division, source: Source
    ) -> None:
        """Write ranges, widths and offsets to the device's part of a layout's block; the host reads it later."""
        block = layout.block
        memory = block.stretch.on_device(arrays, values, block.address, Block.nbytes(layout.samples))
        measure(self.launch, arrays, values, layout, division.stride, source, ranges_in(memory, layout.samples))
        self.divide_on_device(arrays, memory, layout, division)

    def divide_on_device(self, arrays: Arrays, memory: Array, layout: DividedLayout, division: Division) -> None:
        """Write widths and offsets to the memory of a block on the device, where its ranges are."""
        definition.check_planes(layout)
        samples = layout.samples
        if division.norms is not None and len(division.norms) != samples:
            raise FormatError(f"{len(division.norms)} norms were given for {samples} samples: expected one each.")
        widths_at = OFFSET_BYTES * (samples + 1) + RANGE_BYTES * samples
        offsets, widths = memory[: OFFSET_BYTES * (samples + 1)], memory[widths_at : widths_at + samples]
        ranges = ranges_in(memory, samples)
        self.launch(
            *(arrays, memory, divide_kernel, 1, ranges, self.relief(arrays, layout.family, memory)),
            *(norms_on_device(arrays, division, memory), widths, offsets, *words(division.weights)),
            *(samples, layout.planes, layout.planes_offset, layout.plane, layout.family.least_bits),
            *(len(definition.relief(layout.family)[0]), power_of_two(max(1, samples)), division.weights is None),
        )
        layout.placed = widths, offsets

    def relief(self, arrays: Arrays, family: Family, like: Array) -> Array:
        """Return, on the device, what each plane relieves the sides of codes of a family of; it goes up once."""
        key = arrays.device(like), family.name
        if key not in self._reliefs:
            sides = [np.pad(np.array(side), (0, STEPS - len(side))) for side in definition.relief(family)]
            self._reliefs[key] = arrays.upload(np.concatenate(sides), like)
        return self._reliefs[key]


def ranges_in(memory: Array, samples: int) -> Array:
    """Return where the ranges lie in the memory of a block."""
    start = OFFSET_BYTES * (samples + 1)
    return memory[start : start + RANGE_BYTES * samples]


def measure(
    launch: Launch, arrays: Arrays, values: Array, layout: AnyLayout, stride: int, source: Source, out: Array
) -> None:
    """Write the sums of squared ranges of each sample to ``out``."""
    first, reads, factor = groups_read(layout.elements, stride)
    if layout.elements == 0:
        out[:] = 0
        return
    form = form_of(layout)
    blocks = -(-reads // form.tile)
    partial = arrays.empty((layout.samples * blocks * 4,), "float32", values)
    rows = Channels(layout.elements // source.width, source.width)
    launch(
        *(arrays, values, ranges_kernel, layout.samples * blocks, values, partial),
        *(source.mean, source.inverse, source.threshold, source.weight, layout.elements, layout.groups, reads, blocks),
        *(first, stride, *divisors(source.channels), source.width, magic(source.width), form),
        *(cut_of(source.channels, layout.elements), cut_of(rows, layout.elements), source.kind, source.squared),
    )
    launch(arrays, values, sample_sums_kernel, layout.samples, partial, out, factor, blocks, 4, CHUNK)


def norms_on_device(arrays: Arrays, division: Division, like: Array) -> Array | None:
    """Return the norms of samples on the device: those of a batch go up once, whichever codes they serve."""
    if division.norms is None:
        return None
    device = arrays.device(like)
    if device not in division.placed:
        division.placed[device] = arrays.upload(division.norms, like)
    return division.placed[device]


def words(weights: tuple[float, float, float, float] | None) -> list[int]:
    """Return the words of four numbers, low before high, with a sign: arguments of a launch need no copy."""
    numbers = np.zeros(4) if weights is None else np.array(weights, "<f8")
    found: list[int] = numbers.view("<i4").tolist()
    return found


def power_of_two(number: int) -> int:
    """Return the least power of two that is not less than a number."""
    return 1 << (number - 1).bit_length()
