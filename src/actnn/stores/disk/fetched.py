"""What came back from the file: read ahead of a backward pass, or read a moment ago, within one bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from actnn.stores.disk.entries import Entries, Entry, Phase

# how far from the last number a get may be to count as the same backward pass, and how far ahead of it is looked
NEAR = 16
WINDOW = 64

IN_FILE = (Phase.FILED, Phase.FETCHING, Phase.FETCHED)


class Fetched:
    """Entries that are being read or were read back, the least recently used first; they take ``nbytes`` in all."""

    def __init__(self, bound: int) -> None:
        self.nbytes = 0
        self._bound = bound
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._last: int | None = None
        self._follows = False

    def asked(self, number: int, entries: Entries) -> None:
        """Note that a number was asked for.

        Passes that alternate between distant numbers would throw out what was read ahead for one another: reading
        ahead pauses while numbers jump. A second reader, of what a pass has left behind, does not turn it back.
        """
        if self._last is not None and number > self._last and number in self._entries:
            return
        near = self._last is not None and abs(number - self._last) <= NEAR
        self._follows = near or entries.is_last(number)
        self._last = number
        if number in self._entries:
            self._entries.move_to_end(number)

    def runs_short(self, entries: Entries) -> bool:
        """Tell whether what is to be read next is so near that reading ahead should go on."""
        if not self._follows or self._last is None:
            return False
        room = self._bound // 4
        for entry in entries.below(self._last, WINDOW):
            if entry.phase is Phase.FILED and not entry.doubtful:
                return True
            room -= entry.size
            if room < 0:
                break
        return False

    def next_ahead(self, entries: Entries) -> Entry | None:
        """Return the entry to read next, with room for it made, or None.

        Half of the bound is for what lies ahead. The other half leaves what was read to its second reader.
        """
        if not self._follows or self._last is None:
            return None
        window: list[Entry] = []
        room = self._bound // 2
        for entry in entries.below(self._last, WINDOW):
            if entry.phase in IN_FILE:
                room -= entry.size
                if room < 0 and window:
                    break
                window.append(entry)
        for entry in window:
            if entry.phase is Phase.FILED and not entry.doubtful:
                keep = {self._last, *(near.number for near in window)}
                return entry if self.admit(entry, keep) else None
        return None

    def admit(self, entry: Entry, keep: Container[int] = ()) -> bool:
        """Make room for an entry that is about to be read, not at the cost of those to ``keep``; tell whether."""
        victims = []
        excess = self.nbytes + entry.size - self._bound
        for other in self._entries.values():
            if excess <= 0:
                break
            if other.phase is Phase.FETCHED and other.number not in keep:
                victims.append(other)
                excess -= other.size
        if excess > 0:
            return False
        for victim in victims:
            self.remove(victim)
            victim.phase, victim.data = Phase.FILED, None
        self._entries[entry.number] = entry
        self.nbytes += entry.size
        return True

    def remove(self, entry: Entry) -> None:
        """Give up the room of an entry, if it has any."""
        if self._entries.pop(entry.number, None) is not None:
            self.nbytes -= entry.size

    def holds(self, entry: Entry) -> bool:
        """Tell whether an entry has room."""
        return entry.number in self._entries
