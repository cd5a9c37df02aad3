"""Codes whose samples have widths of their own: what is measured and decided of one, and where that is written."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actnn.format import Family, Layout, Rounding

Bytes = NDArray[np.uint8]

OFFSET_BYTES = 8
RANGE_BYTES = 16


class DeviceStretch:
    """What an accelerator writes in place of a stretch: as much memory there, and which of it was written."""

    __slots__ = ("arrays", "memory", "written")

    def __init__(self, arrays: Any, memory: Any) -> None:
        self.arrays = arrays
        self.memory = memory
        self.written: list[slice] = []


class Coming(Protocol):
    """Bytes of an accelerator on their way to the host."""

    def land(self) -> None:
        """Give them to whom they belong; wait for what has not arrived."""


class Stretch:
    """Memory of a session that kernels write to, and its address, which numpy takes long to tell.

    An accelerator writes to memory of its own, which is copied beside its other work: such copies are ``coming``.
    Whoever reads before one was begun copies all that was written there at once, and waits for it.
    """

    __slots__ = ("__weakref__", "address", "coming", "devices", "memory")

    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.address = int(memory.ctypes.data)
        self.devices: dict[str, DeviceStretch] = {}
        self.coming: list[Coming] = []

    def viewed(self, address: int, nbytes: int) -> Bytes:
        """Return the bytes that begin at an address."""
        if self.devices:
            coming, self.coming = self.coming, []
            for copy in coming:
                copy.land()
            for device in self.devices.values():
                if device.written:
                    self.receiver(device)(device.arrays.numpy(device.memory))
        return self.memory[self.place(address, nbytes)]

    def receiver(self, device: DeviceStretch) -> Callable[[Bytes], None]:
        """Return what takes a copy of all that a device wrote so far."""
        written, device.written = device.written, []

        def receive(found: Bytes) -> None:
            for place in written:
                self.memory[place] = found[place]

        return receive

    def on_device(self, arrays: Any, like: Any, address: int, nbytes: int) -> Any:
        """Return the bytes of the device of ``like`` that are written in place of those at an address."""
        name = arrays.device(like)
        device = self.devices.get(name)
        if device is None:
            device = self.devices[name] = DeviceStretch(arrays, arrays.bytes(len(self.memory), like))
        place = self.place(address, nbytes)
        device.written.append(place)
        return device.memory[place]

    def place(self, address: int, nbytes: int) -> slice:
        """Return where the bytes that begin at an address lie."""
        start = address - self.address
        return slice(start, start + nbytes)


class Span:
    """Room for some float32 numbers, one a sample, in memory that a session owns; kernels write to it."""

    __slots__ = ("address", "count", "stretch")

    def __init__(self, stretch: Stretch, address: int, count: int) -> None:
        self.stretch = stretch
        self.address = address
        self.count = count

    @property
    def values(self) -> NDArray[np.float32]:
        """The numbers."""
        return self.stretch.viewed(self.address, 4 * self.count).view(np.float32)


class Block:
    """What is measured and decided of one code: offsets, ranges and widths of its samples, in memory of a session.

    The memory may be larger; the block begins with the offsets at ``address``, a multiple of 8, and the ranges and the
    widths follow at addresses of their own.
    """

    __slots__ = ("address", "bits_address", "ranges_address", "samples", "stretch")

    def __init__(self, stretch: Stretch, address: int, samples: int) -> None:
        self.stretch = stretch
        self.address = address
        self.samples = samples
        self.ranges_address = address + OFFSET_BYTES * (samples + 1)
        self.bits_address = self.ranges_address + RANGE_BYTES * samples

    @staticmethod
    @lru_cache(maxsize=64)
    def nbytes(samples: int) -> int:
        """Size of the block of so many samples."""
        return (OFFSET_BYTES * (samples + 1) + RANGE_BYTES * samples + samples + 7) // 8 * 8

    @property
    def sample_offsets(self) -> NDArray[np.int64]:
        """Byte offset of each sample's planes, and the size of the buffer at the end."""
        return self.stretch.viewed(self.address, OFFSET_BYTES * (self.samples + 1)).view(np.int64)

    @property
    def ranges(self) -> NDArray[np.float32]:
        """The sums of squared ranges of each sample, of shape (samples, 4)."""
        found = self.stretch.viewed(self.ranges_address, RANGE_BYTES * self.samples)
        return found.view(np.float32).reshape(self.samples, 4)

    @property
    def sample_bits(self) -> NDArray[np.uint8]:
        """The width of each sample."""
        return self.stretch.viewed(self.bits_address, self.samples)


class DividedLayout:
    """A layout whose planes a kernel divides between the samples; it reads as a ``Layout`` once they are divided."""

    __slots__ = (
        *("block", "elements", "family", "groups", "handle", "nbytes", "plane", "planes", "planes_offset"),
        *("placed", "rounding", "samples"),
    )

    bits = 0

    def __init__(self, layout: Layout, planes: int, block: Block) -> None:
        self.samples = layout.samples
        self.elements = layout.elements
        self.family: Family = layout.family
        self.rounding: Rounding = layout.rounding
        self.groups = layout.groups
        self.plane = layout.plane
        self.planes_offset = layout.planes_offset
        self.planes = planes
        self.nbytes = layout.planes_offset + planes * layout.plane
        self.block = block
        # what a backend made of this layout for itself, once it was given it
        self.handle: Any = None
        # the offsets and widths that an accelerator decided, in its memory
        self.placed: tuple[Any, Any] | None = None

    @property
    def sample_bits(self) -> tuple[int, ...]:
        """The width of each sample."""
        return tuple(self.block.sample_bits.tolist())

    @property
    def sample_offsets(self) -> tuple[int, ...]:
        """Byte offset of each sample's planes, and the size of the buffer at the end."""
        return tuple(self.block.sample_offsets.tolist())


class Division:
    """How the planes of a code are divided between its samples: by what noise in their ranges costs.

    ``weights`` are those of A-, A+, B- and B+ of ``Backend.ranges``, None to divide evenly; ``norms`` is a factor for
    each sample, float64; ``placed`` holds their copies by the name of a device, for all codes of a batch. Ranges are
    measured on every ``stride``-th group.
    """

    __slots__ = ("norms", "placed", "stride", "weights")

    def __init__(
        self,
        stride: int,
        weights: tuple[float, float, float, float] | None = None,
        norms: NDArray[np.float64] | None = None,
        placed: dict[str, Any] | None = None,
    ) -> None:
        self.stride = stride
        self.placed = {} if placed is None else placed
        self.weights = weights
        self.norms = norms
