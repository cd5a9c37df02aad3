"""Codes of an accelerator that wait in host memory between forward and backward, moved beside its other work.

NOTE: rules of the way out and back.

1. A copy that was begun is done only when its event says so. Until then its source stays as it is, and both ends alive.
2. Whoever gets a buffer back may use it at once: the device's own work waits for the copy, the program does not.
3. Finalizers only leave a message (``release``), which the next ``put`` or ``get`` reads.
4. A device belongs to the process that first used it. What a forked child was born with it never touches, nor lets go
   of, nor finds again; what it puts itself is its own.
"""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from actnn.errors import SwapError
from actnn.kernels.contract import Array, Arrays, Moves

# buffers that are looked at, in reverse, for what to fetch next
WINDOW = 64


@dataclass(eq=False)
class Entry:
    """One buffer: on its way out while ``leaving`` holds it, ahead of its reader while ``fetched`` does."""

    number: int
    nbytes: int
    lane: Moves
    host: Array
    event: Any
    leaving: Array | None
    fetched: tuple[Array, Any] | None = None


@dataclass(frozen=True)
class OffloadStatistics:
    """What an offload did and holds: bytes in host memory, and on the device on their way out or fetched ahead."""

    out_bytes: int
    back_bytes: int
    host_bytes: int
    leaving_bytes: int
    fetched_bytes: int


class Offload:
    """Buffers of accelerators in host memory; at most ``bound`` bytes are on their way out, or fetched ahead."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._next = 0
        self._closed = False
        self._of_parents: list[Any] = []
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._first = self._next
        self._lanes: dict[str, Moves] = {}
        self._entries: dict[int, Entry] = {}
        self._order: list[int] = []
        self._leaving: deque[Entry] = deque()
        # copies back that nobody waits for any more, with both ends
        self._abandoned: list[tuple[Moves, Any, Array, Array]] = []
        self._released: deque[int] = deque()
        self._lock = threading.Lock()
        self._out_bytes = self._back_bytes = 0

    def _own(self) -> threading.Lock:
        """Return the lock of this process; a forked child begins with nothing (rule 4)."""
        if self._process != os.getpid():
            self._of_parents.append((self._lanes, self._entries, self._leaving, self._abandoned, self._lock))
            self._begin()
        return self._lock

    def put(self, arrays: Arrays, buffer: Array) -> int:
        """Begin to move a buffer to the host, and return the number to ask for it with."""
        with self._own():
            self._settle()
            self._check_open()
            nbytes = len(buffer)
            while self._leaving and self._leaving_bytes() + nbytes > self._bound:
                oldest = self._leaving.popleft()
                # the device waits, not the program: what uses its memory again comes after the copy
                oldest.lane.wait(oldest.host, oldest.event)
                oldest.leaving = None
            lane = self._lane(arrays, buffer)
            host, event = lane.out(buffer)
            entry = Entry(self._next, nbytes, lane, host, event, buffer)
            self._next += 1
            self._entries[entry.number] = entry
            self._order.append(entry.number)
            self._leaving.append(entry)
            self._out_bytes += nbytes
        return entry.number

    def get(self, number: int) -> Array:
        """Return a buffer on its device; begin to fetch those that were put before it."""
        with self._own():
            self._settle()
            self._check_open()
            entry = self._entries.get(number)
            if entry is None and number < self._first:
                raise SwapError(
                    errno.ECHILD,
                    f"code {number} was put by the parent of this process, which was forked: a device belongs to one "
                    "process. Start processes that train with spawn.",
                )
            if entry is None:
                raise SwapError(
                    errno.ENOENT,
                    f"there is no code {number}: it was released, or never put. Run forward again before backward.",
                )
            if entry.leaving is not None:
                buffer = entry.leaving
            else:
                buffer, event = self._fetched(entry)
                entry.lane.wait(buffer, event)
            self._look_ahead(number)
        return buffer

    def release(self, number: int) -> None:
        """Forget a buffer; waits for nobody (rule 3)."""
        self._released.append(number)

    def step_begins(self) -> None:
        """Let go of what was released since: in evaluation nothing else asks for that."""
        with self._own():
            self._settle()

    def close(self) -> None:
        """Forget all buffers, once no copy needs them any more."""
        with self._own():
            self._closed = True
            self._forget_all()

    def statistics(self) -> OffloadStatistics:
        """Return what was moved and is held."""
        with self._own():
            self._settle()
            entries = list(self._entries.values())
            return OffloadStatistics(
                self._out_bytes,
                self._back_bytes,
                sum(entry.nbytes for entry in entries),
                self._leaving_bytes(),
                sum(entry.nbytes for entry in entries if entry.fetched is not None),
            )

    def _forget_all(self) -> None:
        for entry in self._leaving:
            entry.lane.finish(entry.event)
        for entry in self._entries.values():
            self._abandon(entry)
        for lane, event, _, _ in self._abandoned:
            lane.finish(event)
        for held in (self._leaving, self._abandoned, self._entries, self._order):
            held.clear()

    def _fetched(self, entry: Entry) -> tuple[Array, Any]:
        """Return a buffer that is on its way back, or sent on it now."""
        if entry.fetched is None:
            entry.fetched = entry.lane.back(entry.host)
            self._back_bytes += entry.nbytes
        return entry.fetched

    def _look_ahead(self, number: int) -> None:
        """Fetch what a backward pass will ask for next; keep what it left behind, for a second reader."""
        room = self._bound
        for entry in self._below(number):
            room -= entry.nbytes
            if room < 0:
                break
            if entry.leaving is None:
                self._fetched(entry)
        behind = [entry for entry in self._entries.values() if entry.number > number and entry.fetched is not None]
        room = self._bound
        for entry in sorted(behind, key=lambda entry: entry.number):
            room -= entry.nbytes
            if room < 0:
                self._abandon(entry)

    def _abandon(self, entry: Entry) -> None:
        """Give up what was fetched, once its copy is done (rule 1)."""
        if entry.fetched is not None:
            (buffer, event), entry.fetched = entry.fetched, None
            self._abandoned.append((entry.lane, event, entry.host, buffer))

    def _below(self, number: int) -> Iterator[Entry]:
        stop = bisect_left(self._order, number)
        for index in range(stop - 1, max(-1, stop - 1 - WINDOW), -1):
            yield self._entries[self._order[index]]

    def _lane(self, arrays: Arrays, buffer: Array) -> Moves:
        device = arrays.device(buffer)
        if device not in self._lanes:
            self._lanes[device] = arrays.moves(buffer)
        return self._lanes[device]

    def _leaving_bytes(self) -> int:
        return sum(entry.nbytes for entry in self._leaving)

    def _settle(self) -> None:
        """Let go of what has left the device, and of what was released."""
        while self._leaving and self._leaving[0].lane.arrived(self._leaving[0].event):
            self._leaving.popleft().leaving = None
        self._abandoned = [copy for copy in self._abandoned if not copy[0].arrived(copy[1])]
        while self._released:
            number = self._released.popleft()
            # a copy on its way out holds what it reads until it is done
            if (entry := self._entries.pop(number, None)) is not None:
                del self._order[bisect_left(self._order, number)]
                self._abandon(entry)

    def _check_open(self) -> None:
        if self._closed:
            raise SwapError(errno.EBADF, "this store was closed. Convert the model again.")
