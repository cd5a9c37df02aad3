"""Stores: where the bytes of codes lie between forward and backward. A code does not know which store it is in.

What autograd saves is what ``put`` returns: the buffer itself, or a ticket, a tiny array that stands for it. A ticket
holds a number, and the buffer's place is free as soon as nobody holds the ticket's memory any more: codes in any store
live exactly as long as autograd keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from actnn.kernels.contract import Array, Arrays
from actnn.stores.disk import SwapStatistics, SwapStore
from actnn.stores.disk.file import plain
from actnn.stores.offload import Offload, OffloadStatistics
from actnn.stores.slabs import Slabs

# a smaller buffer is not worth a ticket, or a place in a slab
LEAST_BYTES = 4096
# what may wait in memory, to be written or read ahead
BUFFER_BYTES = 16 * 2**20
# what may wait and not be written yet: backward asks for the last codes first, and a small step has no others
IDLE_BYTES = BUFFER_BYTES * 3 // 4
TICKET = "int64"
# numbers of what went from an accelerator to the host begin here
OFFLOADED = 1 << 62


class Store(Protocol):
    """A place for the buffers of codes. ``keeps_in_place``: ``put`` and ``get`` return what they are given.

    Unless it ``allocates``, any bytes of the framework's will do for a code.
    """

    keeps_in_place: bool
    allocates: bool

    def allocate(self, arrays: Arrays, nbytes: int, like: Array) -> Array:
        """Return bytes for a code to be written to."""

    def put(self, arrays: Arrays, buffer: Array, kept: Callable[[int], None] | None = None) -> Array:
        """Return what is to be saved in a buffer's place; nobody may change the buffer from now on.

        ``kept`` is called with its size, now or later and in any thread, where it was to leave memory and did not.
        """

    def get(self, arrays: Arrays, saved: Array) -> Array:
        """Return the buffer that ``put`` was given."""

    def step_begins(self) -> None:
        """Note that a forward of the whole model begins."""

    def close(self) -> None:
        """Forget everything, and leave nothing running."""


class Memory:
    """Buffers stay where they are: where the framework puts them, or in slabs."""

    keeps_in_place = True

    def __init__(self, slabs: Slabs | None = None) -> None:
        self.slabs, self.allocates = slabs, slabs is not None

    def allocate(self, arrays: Arrays, nbytes: int, like: Array) -> Array:
        if self.slabs is None or nbytes < LEAST_BYTES or not arrays.on_host(like):
            return arrays.bytes(nbytes, like)
        return arrays.from_numpy(self.slabs.take(nbytes))

    def put(self, arrays: Arrays, buffer: Array, kept: Callable[[int], None] | None = None) -> Array:
        return buffer

    def get(self, arrays: Arrays, saved: Array) -> Array:
        return saved

    def step_begins(self) -> None:
        if self.slabs is not None:
            self.slabs.step_begins()

    def close(self) -> None:
        if self.slabs is not None:
            self.slabs.let_go()


class Swap(Memory):
    """Buffers leave in the background, and come back ahead of the backward pass.

    From host memory they go to a file, from an accelerator to host memory.
    """

    keeps_in_place = False

    def __init__(self, directory: str | None, most_bytes: int | None, slabs: Slabs | None = None) -> None:
        super().__init__(slabs)
        allocate = plain if slabs is None else slabs.take
        place = None if directory is None else Path(directory)
        self._store = SwapStore(place, most_bytes, BUFFER_BYTES, allocate, IDLE_BYTES)
        self._offload = Offload(BUFFER_BYTES)

    def put(self, arrays: Arrays, buffer: Array, kept: Callable[[int], None] | None = None) -> Array:
        if len(buffer) < LEAST_BYTES:
            return buffer
        if arrays.on_host(buffer):
            return arrays.ticket(self._store.put(arrays.numpy(buffer), kept), self._store.release)
        return arrays.ticket(OFFLOADED + self._offload.put(arrays, buffer), self._release_offloaded)

    def get(self, arrays: Arrays, saved: Array) -> Array:
        if arrays.dtype(saved) != TICKET:
            return saved
        number = int(saved[0])
        if number >= OFFLOADED:
            return self._offload.get(number - OFFLOADED)
        return arrays.from_numpy(self._store.get(number))

    def step_begins(self) -> None:
        self._offload.step_begins()
        super().step_begins()

    def statistics(self) -> SwapStatistics:
        """Return what went to disk and came back."""
        return self._store.statistics()

    def offload_statistics(self) -> OffloadStatistics:
        """Return what left accelerators and came back."""
        return self._offload.statistics()

    def close(self) -> None:
        self._store.close()
        self._offload.close()
        super().close()

    def _release_offloaded(self, number: int) -> None:
        self._offload.release(number - OFFLOADED)
