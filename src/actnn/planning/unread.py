"""What a step measured and nobody has read yet.

NOTE [No look back]
1. On the host everything can be read at once. What an accelerator wrote is copied to the host once a step, beside its
   other work, and read when the copy has arrived: a step or two later. Nothing waits for it.
2. Steps are read in the order in which they were made, each of them whole.
3. Who cannot wait for the next steps (a checkpoint, ``verify``) lets the host wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from actnn.kernels.contract import Array, Arrays, Moves, Span, Stretch
from actnn.planning.learnt import Learnt
from actnn.planning.noise import Floats, Transfer
from actnn.planning.records import Observation, Passing


class Held:
    """A small float32 array that is read once the step is over."""

    __slots__ = ("_array", "_arrays", "_values", "device")

    def __init__(self, arrays: Arrays, array: Array) -> None:
        self._arrays, self._array = arrays, array
        self._values: Floats | None = None
        self.device = None if arrays.on_host(array) else arrays.device(array)

    def __call__(self) -> Floats:
        """Return its numbers."""
        if self._values is None:
            self._values = self._arrays.numpy(self._array).astype(np.float64)
            self._array = None
        return self._values

    def leave(self, copy: Copy) -> None:
        """Go to the host with a copy."""
        copy.add(self._arrays, self._arrays.as_bytes(self._array), self._land)

    def _land(self, found: Any) -> None:
        if self._values is None:
            self._values = found.view(np.float32).reshape(tuple(self._array.shape)).astype(np.float64)
            self._array = None


class Copy:
    """Bytes of one device on their way to the host, and what is to be done with each part of them."""

    __slots__ = ("_arrays", "_event", "_host", "_lane", "_parts", "_receivers", "_whole")

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self._receivers: list[tuple[int, Callable[[Any], None]]] = []
        self._arrays: Any = None
        self._whole: Array = None
        self._host: Array = None
        self._event: Any = None
        self._lane: Any = None

    def add(self, arrays: Arrays, part: Array, receiver: Callable[[Any], None]) -> None:
        """Let some bytes be copied, and given to ``receiver``."""
        self._arrays = arrays
        self._parts.append(part)
        self._receivers.append((len(part), receiver))

    def begin(self, lane: Callable[[Arrays, Array], Moves]) -> None:
        """Copy all that was added, at once, after the work that is queued so far."""
        parts, self._parts = self._parts, []
        # held until it has arrived: its memory must not be used again while it is copied
        self._whole = parts[0] if len(parts) == 1 else self._arrays.concatenate(parts, 0)
        self._lane = lane(self._arrays, self._whole)
        self._host, self._event = self._lane.out(self._whole)

    @property
    def arrived(self) -> bool:
        """Whether the bytes are on the host."""
        return self._lane is None or bool(self._lane.arrived(self._event))

    def land(self) -> None:
        """Give what was copied to whom it belongs; wait for it where it has not arrived."""
        if self._lane is None:
            return
        if not self.arrived:
            self._lane.finish(self._event)
        found, start = self._arrays.numpy(self._host), 0
        for size, receiver in self._receivers:
            receiver(found[start : start + size])
            start += size
        self._lane = self._host = self._whole = self._event = None
        self._receivers = []


class Unread:
    """What is measured in one step: what readers felt, energies of weights' gradients, transfers, other numbers.

    ``kept_bytes`` and ``settled`` are what a memory budget is to know of the step.
    """

    def __init__(self) -> None:
        self.observations: list[Observation | Passing] = []
        self.energies: list[tuple[Learnt, Span]] = []
        self.transfers: dict[Learnt, Callable[[], Transfer]] = {}
        # the squares of weights' gradients, of a whole batch and of its parts
        self.parts: dict[Learnt, tuple[Span, Sequence[Span]]] = {}
        # what is to be told numbers that were held, whatever becomes of the step
        self.notes: list[Callable[[], None]] = []
        self.kept_bytes, self.settled = 0, True
        self._held: list[Held] = []
        self._copies: list[Copy] = []

    def __bool__(self) -> bool:
        return bool(self.observations or self.energies or self.transfers or self.notes)

    def hold(self, arrays: Arrays, array: Array) -> Held:
        """Return what reads a small float32 array once the step is over."""
        held = Held(arrays, array)
        if held.device is not None:
            self._held.append(held)
        return held

    def leave(self, stretches: Iterable[Stretch], lane: Callable[[Arrays, Array], Moves]) -> None:
        """Begin to copy what accelerators have of this step, where anybody is to read it."""
        if not self:
            return
        copies: dict[str, Copy] = {}
        seen = {id(stretch): stretch for stretch in stretches}
        for observation in self.observations:
            if (stretch := observation.record.stretch) is not None:
                seen[id(stretch)] = stretch
        for stretch in seen.values():
            for name, device in stretch.devices.items():
                if device.written:
                    copy = copies.setdefault(name, Copy())
                    copy.add(device.arrays, device.memory, stretch.receiver(device))
                    stretch.coming.append(copy)
        held, self._held = self._held, []
        for each in held:
            assert each.device is not None
            each.leave(copies.setdefault(each.device, Copy()))
        self._copies = list(copies.values())
        for copy in self._copies:
            copy.begin(lane)

    @property
    def arrived(self) -> bool:
        """Whether all of it can be read without waiting."""
        return all(copy.arrived for copy in self._copies)

    def land(self) -> None:
        """Have all of it on the host; wait for what is not there yet."""
        for copy in self._copies:
            copy.land()
        self._copies = []
