"""Widths decided while training: between layers after each step, between the samples of a code when it is made.

NOTE [Widths]
1. What noise in a sample costs is the squared range of its groups, known from this forward, times the squared gradient
   of whoever reads it, known from backwards before it. Until there was one, every sample has the average width.
2. Gradients of a step count only if all of them are finite: an overflow, which a loss scaler skips, teaches nothing.
3. A site's share changes only when a forward of the whole model begins: a recomputed forward must make codes of the
   same size as the first one.
4. The budget is what fixed widths of the same average would take; only its distribution is decided here. Where a code
   cannot use a fraction of a plane, later codes of the same forward get it.
5. A site that took no part in the last step has the average width: the others share their own budget only.
6. Kernels write what they measure into memory of the step (``Statistics``). The planner reads it once the step is over,
   that of an accelerator when it has arrived on the host (``planning/unread.py``, NOTE [No look back]); how many planes
   a code has is decided before it is made, how its samples divide them by the kernel that makes it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from actnn.format import GROUP, MAX_BITS, Family, Layout, plane_bytes
from actnn.kernels.contract import Array, Arrays, DividedLayout, Division, Span
from actnn.planning.budget import MemoryBudget
from actnn.planning.caps import sampling_of, sampling_variances, weigh
from actnn.planning.learnt import Learnt, smoothed
from actnn.planning.lessons import Lessons
from actnn.planning.noise import Floats, Transfer, rounding_factor
from actnn.planning.plain import Plain, array_of, plain_array
from actnn.planning.problem import Demand
from actnn.planning.records import (
    SIDES,
    Observation,
    Passing,
    Record,
    of_equal_samples,
    set_shares,
    together,
)
from actnn.planning.samples import Indices, SampleNorms, numbered
from actnn.planning.solvers import allocate_jointly
from actnn.planning.statistics import Statistics
from actnn.planning.unread import Held, Unread
from actnn.settings import Policy

# Enough groups of a sample to know its range, and how far apart they may be: primes that sizes of images are seldom
# multiples of. Every eighth group would be the same rows of every channel, or the same columns of every row.
LEAST_GROUPS = 8
STRIDES = (11, 7, 5, 3)
# steps after which what changes slowly is measured again
RENEWED = 128
# steps in which gradients are measured: the first ones, then one of so many, and later, when they change less, fewer
FIRST_STEPS = 4
OBSERVED = 4
EARLY_STEPS = 64
OBSERVED_LATER = 8
# observed steps in which gradients of weights are measured, too: their squares change slowly
WEIGHED = 2
MOST_PENDING = 4096
# fractions of a plane that are nothing but float rounding
CLOSE = 1e-3


class Planner:
    """The part of a session that decides widths."""

    def __init__(self, policy: Policy, memory: int | None = None) -> None:
        self.policy = policy
        self.budget = None if memory is None else MemoryBudget(memory)
        self.norms = SampleNorms()
        self.indices: Indices | None = None
        self.statistics = Statistics()
        # changes whenever sites may have other numbers of planes than before
        self.epoch = 0
        self.active = policy.adaptive or memory is not None
        # whether this step's gradients are measured, those of weights too, and who made what is normalised
        self.observing = self.weighing = True
        self.traces = self.active
        # what this step measured, and what steps before it did whose numbers have not arrived yet
        self._unread = Unread()
        self._waiting: deque[Unread] = deque()
        self.lessons = Lessons(rounding_factor(policy.rounding))
        self._steps = 0
        self._coding = False
        self._batch_norms: tuple[Indices, Floats] | None = None
        # copies of them, by the name of the device that has one
        self._placed_norms: dict[str, Any] = {}
        self._sharing: set[Learnt] = set()
        self._left_over: dict[int, float] = {}
        self._added: dict[tuple[Learnt, int, int], int] = {}

    @property
    def predictions(self) -> dict[str, float] | None:
        """The variance predicted for each layer's gradient, summed over backwards; None where nobody asked for it."""
        self.settle()
        return self.lessons.predictions

    @predictions.setter
    def predictions(self, predictions: dict[str, float] | None) -> None:
        self.settle()
        self.lessons.predictions = predictions
        # with them, all groups are measured
        self.epoch += 1
        self.active = self.policy.adaptive or self.budget is not None or predictions is not None
        self._decide_observing()

    @property
    def records(self) -> list[Record]:
        """What was learnt of each code since the last forward began."""
        self.settle()
        return self.lessons.records

    def stride(self, elements: int) -> int:
        """Return which groups of a sample are measured: every one, or one of so many."""
        if self.lessons.predictions is None:
            for stride in STRIDES:
                if elements >= stride * LEAST_GROUPS * GROUP:
                    return stride
        return 1

    def planes(self, site: Learnt, samples: int, elements: int, family: Family) -> int:
        """Return the planes of all samples of a site's next code together."""
        if self.budget is not None:
            self.budget.expect(site, samples * elements)
        planes = site.planes(family) * samples
        whole = math.floor(planes + CLOSE)
        if planes - whole > CLOSE and (self.budget is None or site.share is None):
            whole += self._add(site, samples, elements, planes - whole)
        return min(max(whole, family.least_bits * samples), MAX_BITS * samples)

    def record(self, site: Learnt, layout: Layout, planes: int) -> Record:
        """Return the record of a code to be made, whose readers complete it in backward."""
        self._coding = True
        samples, indices = layout.samples, self.indices
        divided = DividedLayout(layout, planes, self.statistics.block(samples))
        return Record(site, divided, indices if indices is not None and len(indices) == samples else None)

    def division(self, record: Record) -> Division:
        """Return how the samples of a code divide its planes."""
        site, layout = record.site, record.layout
        stride = self.stride(layout.elements)
        if layout.samples < 2 or site.weights is None or not site.adaptive:
            return Division(stride, None, None)
        weights = tuple(site.weights.tolist())
        if record.indices is None:
            return Division(stride, weights)
        return Division(stride, weights, self._norms_of(record.indices), self._placed_norms)

    def wants_handing(self, reader: Learnt) -> bool:
        """Tell whether what a BatchNorm hands down is to be found anew: the layer below it was measured anew."""
        below = reader.below
        if below is None:
            return False
        return below in self._unread.transfers or (below.transfer is not None and below.transfer is not reader.transfer)

    def wants_transfer(self, site: Learnt) -> bool:
        """Tell whether it is to be measured how a map hands noise on to its weights: at first, and then seldom."""
        if site.transfer is not None and not self.is_time(site):
            return False
        return not any(site in unread.transfers for unread in (self._unread, *self._waiting))

    def wants_passing(self, site: Learnt) -> bool:
        """Tell whether it is to be measured how much noise of an input goes on: at first, and then seldom."""
        return self.active and (site.passing is None or self.is_time(site))

    def wants_sampling(self, site: Learnt) -> bool:
        """Tell whether it is to be measured how the gradient of a map's weight varies between parts of a batch."""
        if site.sampling is not None and not self.is_time(site, WEIGHED * OBSERVED_LATER):
            return False
        return not any(site in unread.parts for unread in (self._unread, *self._waiting))

    def sampled(self, site: Learnt, whole: Span, parts: Sequence[Span]) -> None:
        """Take the squared gradients of a site's weights, of a batch and of its parts; they are read with the rest."""
        self._unread.parts[site] = whole, parts

    def measured(self, site: Learnt, transfer: Callable[[], Transfer]) -> None:
        """Take what reads the transfer of a map; it is looked at once the step is over."""
        self._unread.transfers[site] = transfer

    def hold(self, arrays: Arrays, array: Array) -> Held:
        """Return what reads a small float32 array once the step is over: to read it at once might be to wait for it."""
        return self._unread.hold(arrays, array)

    def tell(self, held: Held, note: Callable[[], None]) -> None:
        """Have something done once an array that is held can be read: at once on the host."""
        if held.device is None:
            note()
        else:
            self._unread.notes.append(note)
            if len(self._unread.notes) >= MOST_PENDING:
                self.settle()

    def energy(self, site: Learnt, energies: Span) -> None:
        """Take the squared gradient of a site's own weights, which a kernel writes; it is looked at with the rest."""
        self._unread.energies.append((site, energies))
        if len(self._unread.energies) >= MOST_PENDING:
            self.settle()

    def observe(self, observation: Observation | Passing) -> None:
        """Take what a reader felt of a code's noise; it is looked at once the step is over."""
        self._unread.observations.append(observation)
        if len(self._unread.observations) >= MOST_PENDING:
            self.settle()

    def settle(self) -> None:
        """Read what was measured so far; wait for what accelerators have not told yet."""
        waiting, self._waiting = self._waiting, deque()
        unread, self._unread = self._unread, Unread()
        for each in (*waiting, unread):
            self._read(each)

    def _read(self, unread: Unread) -> None:
        """Read what a step measured: transfers of maps, and what kernels have written for observations."""
        unread.land()
        for site, read in unread.transfers.items():
            transfer = read()
            # a batch that overflows tells nothing
            if math.isfinite(transfer.patch) and np.isfinite(transfer.aligned).all():
                site.transfer = transfer
        for site, (whole, parts) in unread.parts.items():
            of_whole, of_parts = (float(sum(span.values.sum() for span in spans)) for spans in ((whole,), parts))
            share = sampling_of(of_whole, of_parts, len(parts))
            if math.isfinite(share):
                site.sampling = smoothed(site.sampling, share)
        for note in unread.notes:
            note()
        self.lessons.learn(unread)

    def is_time(self, site: Learnt, apart: int = OBSERVED_LATER) -> bool:
        """Tell whether what changes slowly is to be measured again: not at all sites in the same step.

        In steps ``apart``, which are those that are observed: in others nobody would ask.
        """
        return self._steps > 0 and (self._steps + apart * site.index) % RENEWED == 0

    def forward_begins(self, indices: Indices | None, settled: bool, kept_bytes: Callable[[], int]) -> None:
        """Learn from the last backward, and decide every site's share."""
        unread, self._unread = self._unread, Unread()
        unread.settled = settled
        if self.budget is not None:
            unread.kept_bytes = kept_bytes()
        unread.leave(self.statistics.stretches, self.statistics.lane)
        self._waiting.append(unread)
        self.indices = indices
        if self._coding:
            # an evaluation is no step
            self._steps += 1
            self._coding = False
            self.statistics.step_begins()
        if self._steps == 0:
            self._steps, self.epoch = 1, self.epoch + 1
        self._decide_observing()
        if self.budget is not None:
            self.budget.forward_begins()
        self._left_over.clear()
        while self._waiting and self._waiting[0].arrived:
            unread = self._waiting.popleft()
            self._read(unread)
            self._decide_shares(unread)

    def _decide_shares(self, unread: Unread) -> None:
        """Learn from what was read of a step, and decide every site's share."""
        lessons, self.lessons = self.lessons, self.lessons.next()
        if not lessons.sound or not lessons.observed or not self.active:
            return
        self.epoch += 1
        self._added.clear()
        for reader, (total, count) in lessons.gradients.items():
            reader.gradient = smoothed(reader.gradient, total / count)
        records = lessons.records
        self._weigh(records, lessons.energies)
        for site, own in lessons.observed.items():
            weights = own[0].weights if len(own) == 1 else np.mean([record.weights for record in own], axis=0)
            site.weights = smoothed(site.weights, weights)
        self._update_norms(records)
        if self.budget is not None:
            demanded = self._demanded(records, lambda record: plane_bytes(record.layout.elements))
            self.budget.measured(demanded, unread.kept_bytes, unread.settled)
        elif self.policy.per_layer:
            sharing = share_averages(self._demanded(records, lambda record: record.layout.elements))
            for site in self._sharing - sharing:
                site.share = None
            self._sharing = sharing

    def _weigh(self, records: Sequence[Record], energies: Mapping[Learnt, float]) -> None:
        """Let records weigh what their noise costs single gradients, too."""
        for site, energy in energies.items():
            if math.isfinite(energy):
                site.energy = smoothed(site.energy, energy)
        felt_by = {felt.site for record in records for felt in record.felt if not felt.handed}
        known = {site: site.energy for site in felt_by if site.energy is not None}
        weigh(records, sampling_variances(known), rounding_factor(self.policy.rounding))

    def _decide_observing(self) -> None:
        """Decide whether this step's gradients are measured: samples are seen once an epoch, layers in every step."""
        always, steps = self.lessons.predictions is not None or self.indices is not None, self._steps
        apart = OBSERVED if steps <= EARLY_STEPS else OBSERVED_LATER
        self.observing = always or steps <= FIRST_STEPS or steps % apart == 0
        self.weighing = self.observing and (steps <= FIRST_STEPS or steps % (WEIGHED * apart) == 0)
        self.traces = self.active and self.observing

    def _add(self, site: Learnt, samples: int, elements: int, fraction: float) -> int:
        """Return the planes, one a sample at most, that a code gets of what it and those before it could not use."""
        if self._steps == 0:
            return 0
        # a code that is computed anew must have the same planes as the first time
        key = site, samples, elements
        if key not in self._added:
            left = self._left_over.get(site.group, 0.0) + fraction * elements
            self._added[key] = min(math.floor(left / elements + CLOSE), samples)
            self._left_over[site.group] = left - self._added[key] * elements
        return self._added[key]

    def _sensitivities(self, records: Sequence[Record]) -> list[tuple[Floats, Floats] | None]:
        """Return what noise costs on the negative and on the positive side of each sample; None where ranges overflow.

        Codes of as many samples are weighed at once.
        """
        found: list[tuple[Floats, Floats] | None] = [None] * len(records)
        for places in of_equal_samples(records):
            ranges = np.array([records[place].ranges for place in places])
            weights = np.array([records[place].site.weights for place in places])
            sides = ranges @ (weights[:, :, None] * SIDES)
            sound = np.isfinite(ranges.reshape(len(places), -1).sum(1)).tolist()
            for place, own, is_sound in zip(places, sides, sound, strict=True):
                if is_sound:
                    negative, positive = own.T
                    indices = records[place].indices
                    if indices is not None:
                        norms = self._norms_of(indices)
                        negative, positive = negative * norms, positive * norms
                    found[place] = negative, positive
        return found

    def _norms_of(self, indices: Indices) -> Floats:
        """Return the norms of a batch's samples, looked up once for all sites."""
        if self._batch_norms is None or self._batch_norms[0] is not indices:
            self._batch_norms, self._placed_norms = (indices, self.norms.of(indices)), {}
        return self._batch_norms[1]

    def _demanded(self, records: Iterable[Record], cost: Callable[[Record], int]) -> list[tuple[Record, Demand]]:
        """Return the demand of each record; a site whose samples share one width demands as a whole."""
        weighed = [record for record in records if record.site.weights is not None]
        demands = []
        for record, sides in zip(weighed, self._sensitivities(weighed), strict=True):
            if sides is None:
                continue
            negative, positive = sides
            price = float(cost(record))
            if not record.site.adaptive:
                price *= record.layout.samples
                negative, positive = negative.sum(keepdims=True), positive.sum(keepdims=True)
            demands.append((record, Demand(record.layout.family, price, negative, positive)))
        return demands

    def _update_norms(self, records: Iterable[Record]) -> None:
        """Average what all layers tell of each batch's samples."""
        batches: dict[int, tuple[Indices, list[Floats]]] = {}
        for record in records:
            if record.indices is not None:
                batches.setdefault(id(record.indices), (record.indices, []))[1].extend(record.relative)
        for indices, relative in batches.values():
            if relative:
                self.norms.update(indices, np.mean(relative, axis=0))
        self._batch_norms = None

    def state(self) -> Plain:
        """Return, between steps, all that the next ones depend on; sites are named by index."""
        self.settle()
        batches: list[Indices] = []
        lessons = self.lessons.state(batches)
        indices = numbered(batches, self.indices)
        return lessons | {
            "steps": self._steps,
            "coding": self._coding,
            "norms": self.norms.state(),
            "batches": [plain_array(batch) for batch in batches],
            "indices": indices,
            "sharing": sorted(site.index for site in self._sharing),
            "left_over": [[group, left] for group, left in self._left_over.items()],
            "added": [[site.index, *rows, planes] for (site, *rows), planes in self._added.items()],
            "budget": None if self.budget is None else self.budget.state(),
        }

    def load(self, state: Plain, sites: Sequence[Learnt]) -> None:
        """Go on where another planner of the same sites was."""
        batches = [array_of(batch) for batch in state["batches"]]
        self._unread, self._waiting = Unread(), deque()
        self.lessons.load(state, sites, batches)
        self._batch_norms = None
        self._steps, self._coding = state["steps"], state["coding"]
        self.indices = None if state["indices"] is None else batches[state["indices"]]
        self.norms.load(state["norms"])
        self._sharing = {sites[index] for index in state["sharing"]}
        self._left_over = dict(state["left_over"])
        self._added = {(sites[index], samples, elements): planes for index, samples, elements, planes in state["added"]}
        if self.budget is not None:
            self.budget.load(state["budget"], sites)
        self.epoch += 1
        self._decide_observing()

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return self.__dict__


def share_averages(demanded: Sequence[tuple[Record, Demand]]) -> set[Learnt]:
    """Divide the bits of each group of layers between its sites; return the sites."""
    for group in {record.site.group for record, _ in demanded}:
        chosen = together([(record, demand) for record, demand in demanded if record.site.group == group])
        asked = [record.asked for record, _ in chosen]
        bits = sum(demand.size * planes for (_, demand), planes in zip(chosen, asked, strict=True))
        set_shares(chosen, allocate_jointly([demand for _, demand in chosen], bits))
    return {record.site for record, _ in demanded}
