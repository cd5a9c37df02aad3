"""The buffers that a store knows, by number, and in which phase of their way to the file and back each of them is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from actnn.stores.disk.file import Bytes

# the place of a buffer that has none in the file
NOWHERE = -1


class Phase(Enum):
    """Where a buffer is: in memory in all phases but FILED and FETCHING."""

    WAITING = auto()
    WRITING = auto()
    FILED = auto()
    FETCHING = auto()
    FETCHED = auto()
    KEPT = auto()


@dataclass(eq=False)
class Entry:
    """One buffer. Where ``data`` is not None it holds the right bytes, at any moment and without a lock."""

    number: int
    size: int
    data: Bytes | None
    phase: Phase
    start: int = NOWHERE
    check: int = 0
    released: bool = False
    # told when the buffer stays in memory after all
    kept: Callable[[int], None] | None = None
    # reading ahead failed: left to the get that needs it
    doubtful: bool = False


class Entries:
    """Entries in the order of their numbers."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._order: list[int] = []

    def add(self, entry: Entry) -> None:
        """Add an entry whose number is larger than all before."""
        self._entries[entry.number] = entry
        self._order.append(entry.number)

    def get(self, number: int) -> Entry | None:
        """Return an entry, or None where there is no such number."""
        return self._entries.get(number)

    def pop(self, number: int) -> Entry | None:
        """Remove and return an entry, or None where there is no such number."""
        entry = self._entries.pop(number, None)
        if entry is not None:
            del self._order[bisect_left(self._order, number)]
        return entry

    def below(self, number: int, most: int) -> Iterator[Entry]:
        """Yield up to ``most`` entries below a number, the largest number first."""
        stop = bisect_left(self._order, number)
        for index in range(stop - 1, max(-1, stop - 1 - most), -1):
            yield self._entries[self._order[index]]

    def is_last(self, number: int) -> bool:
        """Tell whether no entry has a larger number."""
        return not self._order or self._order[-1] <= number

    def in_memory(self) -> list[tuple[int, Bytes]]:
        """Return numbers and bytes of what is in memory; needs no lock in a forked child."""
        found = [(entry.number, entry.data) for entry in list(self._entries.values())]
        return [(number, data) for number, data in sorted(found, key=lambda pair: pair[0]) if data is not None]
