"""Memory in which kernels leave what planning reads: ranges and widths of codes, energies of gradients."""

from __future__ import annotations

import weakref

import numpy as np

from actnn.kernels.contract import Array, Arrays, Block, Moves, Span, Stretch

LEAST_BYTES = 1 << 14
# where no step ever begins, stretches stop growing here
MOST_BYTES = 1 << 20
FLOAT_BYTES = 4


class Statistics:
    """One stretch of memory a step, which kernels write to and the planner reads once the step is over.

    A stretch lives as long as a code or an energy of its step: a backward that comes late still finds its own.
    """

    def __init__(self) -> None:
        self._size = LEAST_BYTES
        self._taken = 0
        # those of this step
        self.stretches: weakref.WeakSet[Stretch] = weakref.WeakSet()
        self._lanes: dict[str, Moves] = {}
        self._fresh()

    def step_begins(self) -> None:
        """Begin a new stretch, as large as the last step needed."""
        self._size = max(LEAST_BYTES, self._taken)
        self._taken = 0
        self.stretches.clear()
        self._fresh()

    def lane(self, arrays: Arrays, like: Array) -> Moves:
        """Return what copies from the device of an array, beside its other work."""
        device = arrays.device(like)
        if device not in self._lanes:
            self._lanes[device] = arrays.moves(like)
        return self._lanes[device]

    def block(self, samples: int) -> Block:
        """Return room for what is measured and decided of one code."""
        address = self._take(Block.nbytes(samples))
        return Block(self._stretch, address, samples)

    def span(self, samples: int) -> Span:
        """Return room for one number a sample."""
        address = self._take(FLOAT_BYTES * samples)
        return Span(self._stretch, address, samples)

    def _take(self, nbytes: int) -> int:
        nbytes = (nbytes + 7) & ~7
        self._taken += nbytes
        if self._used + nbytes > self._room:
            self._size = max(min(2 * self._size, MOST_BYTES), nbytes)
            self._fresh()
        address = self._stretch.address + self._used
        self._used += nbytes
        return address

    def _fresh(self) -> None:
        # of whole numbers of eight bytes: offsets must be aligned
        memory = np.zeros(-(-self._size // 8), np.int64).view(np.uint8)
        self._stretch, self._room = Stretch(memory), len(memory)
        self.stretches.add(self._stretch)
        self._used = 0

    def __getstate__(self) -> dict[str, int]:
        # addresses mean nothing elsewhere
        return {"_size": self._size}

    def __setstate__(self, state: dict[str, int]) -> None:
        self._size, self._taken, self.stretches, self._lanes = state["_size"], 0, weakref.WeakSet(), {}
        self._fresh()
