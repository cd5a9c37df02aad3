"""Places in a file or a slab: found first fit, and one again with their free neighbours once they are given back."""

from __future__ import annotations

import mmap
from bisect import bisect_left

# whole pages: a buffer that shared one with another would make the system read it before it is written, and only whole
# ones can be given back to it
PAGE = mmap.PAGESIZE


class Places:
    """Which of ``end`` bytes are taken; sizes are rounded up to whole pages."""

    def __init__(self) -> None:
        self.end = 0
        self.taken_bytes = 0
        # (start, stop), ascending, with something taken between any two
        self._holes: list[tuple[int, int]] = []

    def take(self, size: int) -> int | None:
        """Return the start of the first place that holds ``size`` bytes, or None where the file has to grow."""
        size = pages(size)
        for index, (start, stop) in enumerate(self._holes):
            if stop - start >= size:
                self._holes[index : index + 1] = [(start + size, stop)] if start + size < stop else []
                self.taken_bytes += size
                return start
        return None

    def give_back(self, start: int, size: int) -> None:
        """Free the place of ``size`` bytes that ``take`` returned."""
        self.taken_bytes -= pages(size)
        self._free(start, start + pages(size))

    def least_end(self, size: int) -> int:
        """Return where the file has to end for a place of ``size`` bytes, now that it has none."""
        last_start, last_stop = self._holes[-1] if self._holes else (self.end, self.end)
        return (last_start if last_stop == self.end else self.end) + pages(size)

    def extend(self, end: int) -> None:
        """Note that the file now reaches to ``end``."""
        start, self.end = self.end, end
        self._free(start, end)

    def _free(self, start: int, stop: int) -> None:
        index = bisect_left(self._holes, (start, stop))
        first = last = index
        if first > 0 and self._holes[first - 1][1] == start:
            first -= 1
            start = self._holes[first][0]
        if last < len(self._holes) and self._holes[last][0] == stop:
            stop = self._holes[last][1]
            last += 1
        self._holes[first:last] = [(start, stop)]


def pages(size: int) -> int:
    """Return ``size`` rounded up to whole pages."""
    return -(-size // PAGE) * PAGE
