"""A stand-in for an accelerator: numpy arrays whose copies to and from the host are done only when somebody waits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from actnn.kernels.numpy_arrays import NumpyArrays

GARBAGE = 0xA5


@dataclass(eq=False)
class Copy:
    """A copy that was begun: its target holds garbage until it is done."""

    target: np.ndarray
    source: np.ndarray | None
    done: bool = False
    waited: bool = False

    def perform(self) -> None:
        if not self.done:
            self.target[:] = self.source
            self.done, self.source = True, None


@dataclass
class StandInTransfers:
    """Moves in which nothing moves by itself: ``run`` does the oldest copies, as a device would in its own time."""

    begun: list[Copy] = field(default_factory=list)

    def out(self, buffer):
        return self._begin(buffer)

    def back(self, host):
        return self._begin(host)

    def arrived(self, event: Copy) -> bool:
        return event.done

    def finish(self, event: Copy) -> None:
        self.run(self.begun.index(event) + 1)

    def wait(self, buffer, event: Copy) -> None:
        assert event.target is buffer, "the event is not that of the buffer"
        event.waited = True
        self.finish(event)

    def run(self, count: int) -> None:
        """Do the first ``count`` copies, in the order in which they were begun, as on one stream."""
        for copy in self.begun[:count]:
            copy.perform()

    def _begin(self, source):
        copy = Copy(np.full_like(source, GARBAGE), source)
        self.begun.append(copy)
        return copy.target, copy


class StandInArrays(NumpyArrays):
    """numpy arrays that count as those of an accelerator."""

    def __init__(self) -> None:
        self.lane = StandInTransfers()

    def on_host(self, x) -> bool:
        return False

    def device(self, x) -> str:
        return "stand-in"

    def moves(self, x) -> StandInTransfers:
        return self.lane
