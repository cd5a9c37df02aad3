"""What the backward of one step taught: what noise in its codes cost whom, and how large gradients were."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from actnn.planning.caps import CHAIN
from actnn.planning.learnt import Learnt, smoothed
from actnn.planning.noise import Floats, handed_down
from actnn.planning.plain import Plain
from actnn.planning.records import Felt, Handing, Observation, Passing, Record
from actnn.planning.samples import Indices, numbered
from actnn.planning.unread import Unread

# what a BatchNorm hands down until that is known
HANDED_DOWN = 10.0
# codes of one site that are remembered until a forward begins: where parts of a model train alone, none ever does
MOST_CODES = 64


class Lessons:
    """What readers told since the last forward began.

    ``factor`` is that of the rounding's noise. With ``predictions``, the variance of each layer's gradient is added up
    in it.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        # of all BatchNorms, on average; steps hand it on, as they do predictions
        self.handed_down = HANDED_DOWN
        self.predictions: dict[str, float] | None = None
        # whether all gradients were finite
        self.sound = True
        # the codes that share the budget, what their readers' gradients came to, and how often they came
        self.observed: dict[Learnt, deque[Record]] = {}
        self.gradients: dict[Learnt, tuple[float, int]] = {}
        # what the energies of the gradients of weights came to
        self.energies: dict[Learnt, float] = {}
        # how much was felt so far, which counts the order of the backward
        self._felt = 0

    def next(self) -> Lessons:
        """Return those of the next step."""
        lessons = Lessons(self._factor)
        lessons.handed_down, lessons.predictions = self.handed_down, self.predictions
        return lessons

    @property
    def records(self) -> list[Record]:
        """What was learnt of each code."""
        return [record for own in self.observed.values() for record in own]

    def learn(self, unread: Unread) -> None:
        """Read what kernels have written for readers and for gradients of weights."""
        for site, span in unread.energies:
            self.energies[site] = self.energies.get(site, 0.0) + float(span.values.sum())
        for observation in unread.observations:
            if isinstance(observation, Passing):
                self._learn_what_goes_on(observation)
            else:
                self._learn(observation)

    def _learn_what_goes_on(self, seen: Passing) -> None:
        """Note noise that goes on to layers below, relative to the gradient that has it."""
        ratio = seen.ratio()
        if not math.isfinite(ratio):
            self.sound = False
            return
        self._note(seen.record)
        left = 0.0 if seen.left is None else float(seen.left.values.sum())
        self._felt += 1
        seen.record.felt.append(Felt(seen.columns, ratio, seen.reader, True, self._felt, left))

    def _note(self, record: Record) -> None:
        """Let a code be one of those that share the budget."""
        if not record.observed:
            record.observed = True
            self._remember(record)

    def _remember(self, record: Record) -> None:
        self.observed.setdefault(record.site, deque(maxlen=MOST_CODES)).append(record)

    def _learn(self, seen: Observation) -> None:
        energies = seen.energies.values.astype(np.float64)
        record, reader, coefficient = seen.record, seen.reader, seen.coefficient
        mean = float(energies.sum()) / max(1, len(energies))
        below = 0.0
        if seen.scale is not None:
            coefficient *= seen.scale()
        if isinstance(seen, Handing):
            if seen.channels is not None and math.isfinite(mean):
                self._learn_what_is_handed_down(reader, coefficient, mean, seen.channels)
            below = coefficient * (self.handed_down if reader.handed_down is None else reader.handed_down)
            coefficient = coefficient if seen.learns else 0.0
        if not math.isfinite(mean):
            self.sound = False
            return
        self._note(record)
        record.weights = record.weights + seen.columns * ((coefficient + CHAIN * below) * mean)
        self._felt += 1
        for felt_by, share in ((reader, coefficient), (reader.below, below)):
            if felt_by is not None and share:
                energy = float(energies.sum()) if felt_by is reader else 0.0
                record.felt.append(Felt(seen.columns, share * mean, felt_by, False, self._felt, energy))
        total, count = self.gradients.get(reader, (0.0, 0))
        self.gradients[reader] = total + mean, count + 1
        if record.indices is not None and len(energies) == len(record.indices) and (reader.gradient or mean) > 0:
            record.relative.append(energies / (reader.gradient or mean))
        if self.predictions is not None:
            felt = float(energies @ record.noise(seen.columns, self._factor))
            for felt_by, share in ((reader, coefficient), (reader.below, below)):
                if felt_by is not None:
                    self.predictions[felt_by.name] = self.predictions.get(felt_by.name, 0.0) + share * felt

    def _learn_what_is_handed_down(
        self, reader: Learnt, coefficient: float, energy: float, channels: Callable[[], tuple[Floats, Floats]]
    ) -> None:
        """Find out what noise in a BatchNorm costs the layer below it."""
        transfer = None if reader.below is None else reader.below.transfer
        if transfer is None:
            return
        found = handed_down(*channels(), transfer, coefficient, energy)
        if math.isfinite(found):
            reader.handed_down, reader.transfer = found, transfer
            # a BatchNorm above a sum or a concatenation hands down to many: as much as the others do, on average
            self.handed_down = smoothed(self.handed_down, found)

    def state(self, batches: list[Indices]) -> Plain:
        """Return what a checkpoint holds of them; batches that records know are added to ``batches``."""
        return {
            "sound": self.sound,
            "handed_down": self.handed_down,
            "records": [record.state() | {"batch": numbered(batches, record.indices)} for record in self.records],
            "energies": [[site.index, energy] for site, energy in self.energies.items()],
            "gradients": [[site.index, total, count] for site, (total, count) in self.gradients.items()],
        }

    def load(self, state: Plain, sites: Sequence[Learnt], batches: Sequence[Indices | None]) -> None:
        """Go on where those of another planner of the same sites were."""
        self.predictions = None
        self.sound, self.handed_down = state["sound"], state["handed_down"]
        self.observed = {}
        for each in state["records"]:
            record = Record.of(each, sites, None if each["batch"] is None else batches[each["batch"]])
            self._remember(record)
        # states once did not tell these
        self.energies = {sites[index]: energy for index, energy in state.get("energies", ())}
        self.gradients = {sites[index]: (total, count) for index, total, count in state["gradients"]}
