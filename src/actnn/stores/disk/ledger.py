"""The ledger of a store: what is where, and how buffers go from one phase to the next. It knows no lock or thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from actnn.stores.disk.entries import NOWHERE, Entries, Entry, Phase
from actnn.stores.disk.fetched import Fetched
from actnn.stores.disk.file import Bytes
from actnn.stores.places import Places


@dataclass
class Counts:
    """What a store has done so far."""

    written_bytes: int = 0
    read_bytes: int = 0
    peak_memory_bytes: int = 0
    put_seconds: float = 0.0
    get_seconds: float = 0.0
    unknown_releases: int = 0


class Ledger:
    """All buffers of a store; numbers below ``first`` belong to a parent process.

    Its methods are called one at a time. An entry that is being written or read belongs to who does it (rule 4): it
    may be released meanwhile, and its place is free once ``written`` or ``read`` was called.
    """

    def __init__(self, places: Places, buffer_bytes: int, idle_bytes: int = 0, first: int = 0) -> None:
        self.counts = Counts()
        self.entries = Entries()
        self.fetched = Fetched(buffer_bytes)
        self.waiting_bytes = 0
        # so much may wait and is not written yet: what came last is asked for first, and may never have to leave
        self.idle_bytes = idle_bytes
        # more waited, and what is too much is being written
        self._leaving = False
        self.kept_bytes = 0
        self.writes = True
        self.fault: str | None = None
        self.first = self.next = first
        self._places = places
        # oldest first; the first one may be in the hands of the writer
        self._waiting: OrderedDict[int, Entry] = OrderedDict()

    @property
    def memory_bytes(self) -> int:
        """What is in memory now."""
        return self.waiting_bytes + self.fetched.nbytes + self.kept_bytes

    def inherit(self, number: int, data: Bytes) -> None:
        """Keep a buffer of a parent process, in the order of their numbers."""
        entry = Entry(number, data.size, data, Phase.KEPT)
        self.entries.add(entry)
        self._keep(entry)

    def add(self, data: Bytes, kept: Callable[[int], None] | None = None) -> int:
        """Let a new buffer wait to be written, or keep it; return its number."""
        entry = Entry(self.next, data.size, data, Phase.WAITING, kept=kept)
        self.next += 1
        self.entries.add(entry)
        if self.writes and entry.size:
            self._waiting[entry.number] = entry
            self.waiting_bytes += entry.size
        else:
            self._keep(entry)
        self._note_peak()
        return entry.number

    def has_work(self) -> bool:
        """Tell whether it is time to write, or to read ahead."""
        return self.waiting_bytes > self.idle_bytes or self.fetched.runs_short(self.entries)

    def next_write(self) -> Entry | None:
        """Return the entry to write now, or None: once more than ``idle_bytes`` wait, a third of that is to leave."""
        self._leaving = self.waiting_bytes > (self.idle_bytes * 2 // 3 if self._leaving else self.idle_bytes)
        if not self._leaving:
            return None
        entry = next(iter(self._waiting.values()))
        entry.phase = Phase.WRITING
        return entry

    def next_read(self) -> Entry | None:
        """Return the entry to read ahead now, or None."""
        entry = self.fetched.next_ahead(self.entries)
        if entry is not None:
            entry.phase = Phase.FETCHING
            self._note_peak()
        return entry

    def read_now(self, entry: Entry) -> None:
        """Note that an entry is read for who asked for it; afterwards it stays in memory for a moment if it may."""
        entry.phase = Phase.FETCHING
        self.fetched.admit(entry)
        self._note_peak()

    def written(self, entry: Entry) -> None:
        """Let an entry leave memory, as it is in the file."""
        self._wait_no_more(entry)
        self.counts.written_bytes += entry.size
        entry.phase, entry.data = Phase.FILED, None
        if entry.released:
            self._places.give_back(entry.start, entry.size)

    def not_written(self, entry: Entry, fault: str) -> None:
        """Leave an entry in memory."""
        self.fault = self.fault or fault
        self._wait_no_more(entry)
        if entry.start != NOWHERE:
            self._places.give_back(entry.start, entry.size)
            entry.start = NOWHERE
        if not entry.released:
            self._keep(entry)

    def write_no_more(self, fault: str) -> None:
        """Leave what waits in memory, and what comes later too."""
        self.fault = self.fault or fault
        self.writes = False
        for entry in list(self._waiting.values()):
            self.not_written(entry, fault)

    def read(self, entry: Entry, data: Bytes | None) -> None:
        """Settle an entry that was read, or could not be (None)."""
        if data is not None:
            self.counts.read_bytes += entry.size
        if entry.released:
            self.fetched.remove(entry)
            self._places.give_back(entry.start, entry.size)
        elif data is not None and self.fetched.holds(entry):
            entry.phase, entry.data = Phase.FETCHED, data
        else:
            self.fetched.remove(entry)
            entry.phase = Phase.FILED

    def release(self, number: int) -> None:
        """Forget a buffer."""
        entry = self.entries.pop(number)
        if entry is None:
            self.counts.unknown_releases += number >= self.first
            return
        entry.released = True
        if entry.phase is Phase.WAITING:
            self._wait_no_more(entry)
        elif entry.phase is Phase.KEPT:
            self.kept_bytes -= entry.size
        elif entry.phase in (Phase.FILED, Phase.FETCHED):
            self.fetched.remove(entry)
            self._places.give_back(entry.start, entry.size)

    def _keep(self, entry: Entry) -> None:
        entry.phase = Phase.KEPT
        self.kept_bytes += entry.size
        if entry.kept is not None:
            entry.kept(entry.size)

    def _wait_no_more(self, entry: Entry) -> None:
        del self._waiting[entry.number]
        self.waiting_bytes -= entry.size

    def _note_peak(self) -> None:
        self.counts.peak_memory_bytes = max(self.counts.peak_memory_bytes, self.memory_bytes)
