"""Stores: where the bytes of codes lie between forward and backward. A code does not know which store it is in.

What autograd saves is what ``put`` returns: the buffer itself, or a ticket, a tiny array that stands for it. A ticket
holds a number, and the buffer's place is free as soon as nobody holds the ticket's memory any more: codes in any store
live exactly as long as autograd keeps them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from actnn.core.swap import SwapStatistics, SwapStore
from actnn.kernels.contract import Array, Arrays

# a smaller buffer is not worth a ticket
LEAST_BYTES = 4096
# what may wait in memory, to be written or read ahead
BUFFER_BYTES = 16 * 2**20
TICKET = "int64"


class Store(Protocol):
    """A place for the buffers of codes."""

    def put(self, arrays: Arrays, buffer: Array) -> Array:
        """Return what is to be saved in a buffer's place."""

    def get(self, arrays: Arrays, saved: Array) -> Array:
        """Return the buffer that ``put`` was given."""

    def close(self) -> None:
        """Forget everything, and leave nothing running."""


class Memory:
    """Buffers stay where they are."""

    def put(self, arrays: Arrays, buffer: Array) -> Array:
        return buffer

    def get(self, arrays: Arrays, saved: Array) -> Array:
        return saved

    def close(self) -> None:
        pass


class Swap:
    """Buffers go to a file in the background, and are read ahead for the backward pass."""

    def __init__(self, directory: str | None, most_bytes: int | None) -> None:
        self._store = SwapStore(None if directory is None else Path(directory), most_bytes, BUFFER_BYTES)

    def put(self, arrays: Arrays, buffer: Array) -> Array:
        if not arrays.on_host(buffer) or len(buffer) < LEAST_BYTES:
            return buffer
        number = self._store.put(arrays.numpy(buffer))
        return arrays.ticket(number, self._store.release)

    def get(self, arrays: Arrays, saved: Array) -> Array:
        if arrays.dtype(saved) != TICKET:
            return saved
        return arrays.from_numpy(self._store.get(int(saved[0])))

    def statistics(self) -> SwapStatistics:
        """Return what went to disk and came back."""
        return self._store.statistics()

    def close(self) -> None:
        self._store.close()
