"""Slabs: a few large stretches of memory in which codes lie side by side, apart from what a framework allocates.

NOTE: rules of slabs.

1. A code is a view of its slab, and its place is free when nobody holds the view any more: codes live exactly as long
   as with plain allocation. A view's base is the slab's memory, not another array, so that numpy lets parts of a view
   refer to the view.
2. The pages of a place that is free go back to the system at once, and those of a slab when it is let go: what is
   resident is what lives.
3. Garbage collection can run at any moment, also in a thread that holds the lock. A view that goes therefore never
   waits for the lock: it leaves a message for whoever holds it, to be read before or right after the lock is free.
4. A child process leaves its parent's slabs alone and begins with none.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actnn.stores.places import Places, pages

Bytes = NDArray[np.uint8]

# the least size of a slab where no step has told yet how much it needs, or the last one needed less
GROWTH = 16 * 2**20
# a slab that is larger than this many times the need of the last step makes room for a smaller one
GENEROUS = 1.5


class Slab:
    """One stretch of memory of its own, which goes back to the system when nobody refers to it."""

    def __init__(self, size: int) -> None:
        try:
            # private: a shared mapping would be one with that of a child process
            self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"the system has no {size} bytes left for codes ({error.strerror})") from error
        self._places = Places()
        self._places.extend(size)

    @property
    def size(self) -> int:
        """Bytes of address space."""
        return self._places.end

    @property
    def taken_bytes(self) -> int:
        """Bytes that are in use."""
        return self._places.taken_bytes

    def take(self, size: int) -> int | None:
        """Return the start of a place of ``size`` bytes, or None where there is none."""
        return self._places.take(size)

    def view(self, start: int, size: int) -> Bytes:
        """Return the bytes of a place."""
        return np.frombuffer(self._memory, np.uint8, size, start)

    def give_back(self, start: int, size: int) -> None:
        """Free a place, and let the system have its pages."""
        self._memory.madvise(mmap.MADV_DONTNEED, start, pages(size))
        self._places.give_back(start, size)


@dataclass(frozen=True)
class SlabStatistics:
    """What slabs hold: ``taken_bytes`` of ``size`` bytes in ``count`` slabs; ``peak_bytes`` were taken at most."""

    count: int
    size: int
    taken_bytes: int
    peak_bytes: int


class Slabs:
    """All slabs of one session, sized by what the last step needed. Safe to use from many threads and after a fork."""

    def __init__(self) -> None:
        self._processes = {os.getpid(): SlabsOfProcess()}

    def take(self, size: int) -> Bytes:
        """Return ``size`` bytes that nobody else has; their place is free when the array goes.

        Raises:
            MemoryError: the system has no memory left for them.

        """
        return self._here().take(size)

    def step_begins(self) -> None:
        """Let go of slabs that are free and not of the size that the last step needed."""
        self._here().step_begins()

    def let_go(self) -> None:
        """Let go of all slabs; those in use stay as long as what lies in them."""
        self._here().let_go()

    def statistics(self) -> SlabStatistics:
        """Return what the slabs hold."""
        return self._here().statistics()

    def _here(self) -> SlabsOfProcess:
        """Return the slabs of this process: no lock of a parent is ever waited for (rule 4)."""
        process = os.getpid()
        found = self._processes.get(process)
        if found is None:
            # setdefault is atomic: of two threads that come first, both get the slabs of one
            found = self._processes.setdefault(process, SlabsOfProcess())
            for other in [known for known in self._processes if known != process]:
                self._processes.pop(other, None)
        return found


class SlabsOfProcess:
    """The slabs of one process, and who may change them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: list[Slab] = []
        self._returned: deque[tuple[Slab, int, int]] = deque()
        self._taken = 0
        self._peak = 0
        self._expected = 0
        self._used = False

    def take(self, size: int) -> Bytes:
        with self._locked():
            slab, start = self._find(size)
            self._used = True
            self._taken += pages(size)
            self._peak = max(self._peak, self._taken)
        view = slab.view(start, size)
        weakref.finalize(view, self._give_back, slab, start, size).atexit = False
        return view

    def step_begins(self) -> None:
        with self._locked():
            # an evaluation needs none, and says nothing of the next step
            if not self._used:
                return
            self._used, self._expected, self._peak = False, self._peak, self._taken
            free = [slab for slab in self._slabs if not slab.taken_bytes]
            fitting = [slab for slab in free if self._expected <= slab.size <= GENEROUS * self._expected]
            self._slabs = self._in_use() + fitting[:1]

    def let_go(self) -> None:
        with self._locked():
            self._slabs = []

    def statistics(self) -> SlabStatistics:
        with self._locked():
            size = sum(slab.size for slab in self._slabs)
            return SlabStatistics(len(self._slabs), size, self._taken, self._peak)

    def _in_use(self) -> list[Slab]:
        return [slab for slab in self._slabs if slab.taken_bytes]

    def _find(self, size: int) -> tuple[Slab, int]:
        # no name for those that are full: it would keep one that is let go
        found = next(((slab, start) for slab in self._slabs if (start := slab.take(size)) is not None), None)
        if found is not None:
            return found
        slab = self._new_slab(pages(max(size, 1)))
        self._slabs.append(slab)
        start = slab.take(size)
        assert start is not None, "the slab was made large enough"
        return slab, start

    def _new_slab(self, least: int) -> Slab:
        """Return a slab of the size that is expected; near the limit of memory, of the least that serves."""
        expected, self._expected = self._expected, 0
        try:
            return Slab(max(least, expected or GROWTH))
        except MemoryError:
            self._slabs = self._in_use()
        return Slab(least)

    def _give_back(self, slab: Slab, start: int, size: int) -> None:
        """Free a place whose view is gone; waits for nobody (rule 3)."""
        self._returned.append((slab, start, size))
        self._settle()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock; read messages before, and those that came meanwhile after."""
        with self._lock:
            self._drain()
            yield
        self._settle()

    def _settle(self) -> None:
        # again, where somebody left a message just before the lock was free
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()

    def _drain(self) -> None:
        while self._returned:
            slab, start, size = self._returned.popleft()
            slab.give_back(start, size)
            self._taken -= pages(size)
