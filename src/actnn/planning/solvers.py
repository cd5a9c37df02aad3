"""Spend a budget of planes where they lower the gradient's variance most.

All solvers return what the greedy one would: start from the least widths, and keep buying the plane with the largest
gain per cost that still fits. Gains shrink from plane to plane of one sample, so the planes that are bought are those
above a threshold, and a threshold can be found without buying one by one. Among equal gains the lower width comes
first, then the lower index: equal sensitivities give everybody the average.

Shapes: D demands; I items, the samples of all demands; T steps, step t leading from width t + 1 to t + 2. Plane
number t · I + i is that of item i at step t: numbers have the order in which equal gains are served.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from actnn.errors import BudgetError
from actnn.format import MAX_BITS, Family
from actnn.planning.noise import Floats, noise_of_widths
from actnn.planning.problem import Demand, Widths

Numbers = NDArray[np.int64]

STEPS = MAX_BITS - 1
# a bin is a sixteenth of an octave: the exponent of a float64 and four bits of what follows
BINS = 1 << 15
BIN_SHIFT = 48


def allocate_samples(demand: Demand, planes: int) -> Widths:
    """Return the width of each sample of one code, ``planes`` planes in all: the allocation of least variance."""
    samples, least = demand.samples, demand.family.least_bits
    extra = planes - samples * least
    if extra < 0:
        raise BudgetError(planes, samples * least)
    negative, positive = relief(demand.family)
    if extra >= samples * len(positive):
        return np.full(samples, MAX_BITS, np.uint8)
    gain = np.multiply.outer(positive, demand.positive)
    if negative[0] > 0:
        gain += np.multiply.outer(negative, demand.negative)
    best = (-gain.ravel()).argsort(kind="stable")[:extra]
    return (np.bincount(best % samples, minlength=samples) + least).astype(np.uint8)


def allocate_jointly(demands: Sequence[Demand], budget: float) -> list[Widths]:
    """Return the width of each sample of each demand, all planes together costing no more than ``budget``."""
    least = sum(demand.least for demand in demands)
    if not budget >= least:
        raise BudgetError(budget, least)
    if budget >= sum(demand.most for demand in demands):
        return [np.full(demand.samples, MAX_BITS, np.uint8) for demand in demands]
    prices = Prices(demands)
    widths = (prices.least_bits + buy(prices, budget - least)).astype(np.uint8)
    return np.split(widths, np.cumsum(prices.counts)[:-1])


def allocate_layers(demands: Sequence[Demand], budget: float) -> list[int]:
    """Return one width for all samples of each demand, all planes together costing no more than ``budget``."""
    # an empty batch costs nothing and harms nothing
    widths = [demand.family.least_bits for demand in demands]
    filled = [index for index, demand in enumerate(demands) if demand.samples]
    for index, width in zip(filled, allocate_jointly([whole(demands[i]) for i in filled], budget), strict=True):
        widths[index] = int(width[0])
    return widths


def whole(demand: Demand) -> Demand:
    """Return the demand whose one sample stands for all of a demand's."""
    sides = demand.negative.sum(keepdims=True), demand.positive.sum(keepdims=True)
    return Demand(demand.family, demand.cost * demand.samples, *sides)


@lru_cache(maxsize=16)
def relief(family: Family) -> Floats:
    """Return by how much the noise falls with each plane after the least width: (2, planes), negative side first."""
    noise = noise_of_widths(family)[family.least_bits :].T
    fall = noise[:, :-1] - noise[:, 1:]
    fall.setflags(write=False)
    return fall


class Prices:
    """The gain per cost and the cost of every plane, computed where they are asked for.

    A matrix of all of them would not stay in the cache, and to have its memory mapped would take longer than the rest.
    """

    def __init__(self, demands: Sequence[Demand]) -> None:
        self.counts = np.array([demand.samples for demand in demands])
        self.items = int(self.counts.sum())
        self.owner = np.repeat(np.arange(len(demands)), self.counts)
        self.least_bits = np.repeat([demand.family.least_bits for demand in demands], self.counts)
        self._weights = np.empty((2, self.items))
        np.concatenate([demand.negative for demand in demands], out=self._weights[0])
        np.concatenate([demand.positive for demand in demands], out=self._weights[1])
        # planes below the least width are not for sale: no gain, infinite cost
        self._relief = np.zeros((2, STEPS, len(demands)))
        self._cost = np.full((STEPS, len(demands)), np.inf)
        for index, demand in enumerate(demands):
            first = demand.family.least_bits - 1
            self._relief[:, first:, index] = relief(demand.family)
            self._cost[first:, index] = demand.cost
        self.cheapest = float(self._cost.min())

    def of_step(self, step: int) -> tuple[Floats, Floats]:
        """Return the gain per cost and the cost of each item's plane at one step."""
        cost = np.repeat(self._cost[step], self.counts)
        return gain_per_cost(np.repeat(self._relief[:, step], self.counts, axis=1), self._weights, cost), cost

    def of_planes(self, planes: Numbers) -> tuple[Floats, Floats]:
        """Return the gain per cost and the cost of planes given by number."""
        step, item = np.divmod(planes, self.items)
        owner = self.owner[item]
        cost = self._cost[step, owner]
        return gain_per_cost(self._relief[:, step, owner], self._weights[:, item], cost), cost


def gain_per_cost(relief: Floats, weights: Floats, cost: Floats) -> Floats:
    """Return what both sides, (2, planes) each, gain per cost; overwrites ``relief``."""
    relief *= weights
    gain: Floats = np.add(*relief)
    gain /= cost
    return gain


def buy(prices: Prices, budget: float) -> Numbers:
    """Return how many planes of each item the greedy buys.

    Planes are counted in bins of the gain's logarithm. Bins that fit the budget as a whole are bought; what comes
    after them is sorted and bought one by one, in stretches of bins that double until nothing more fits.
    """
    bins = np.empty((STEPS, prices.items), np.uint16)
    spending = np.zeros(BINS)
    for step, row in enumerate(bins):
        density, cost = prices.of_step(step)
        # as whole numbers, the bits of floats have the floats' order; the mask takes the sign from a negative zero
        row[:] = density.view(np.int64) >> BIN_SHIFT & (BINS - 1)
        np.add.at(spending, row, cost)
    spent = np.cumsum(spending[::-1])
    fitting = int(np.searchsorted(spent, budget, side="right"))
    remaining = budget - float(spent[fitting - 1]) if fitting else budget
    high, stretch = BINS - fitting, 1
    bought: Numbers = np.add.reduce(bins >= high, axis=0, dtype=np.int64)
    while high > 0 and remaining >= prices.cheapest:
        low = max(0, high - stretch)
        candidates = np.flatnonzero((bins >= low) & (bins < high))
        chosen, remaining = buy_in_order(prices, candidates, remaining)
        bought += np.bincount(chosen % prices.items, minlength=prices.items)
        high, stretch = low, 2 * stretch
    return bought


def buy_in_order(prices: Prices, planes: Numbers, budget: float) -> tuple[Numbers, float]:
    """Return those of ``planes``, given in ascending order, that the greedy buys, and what remains of the budget."""
    density, cost = prices.of_planes(planes)
    order = np.argsort(-density, kind="stable")
    planes, cost = planes[order], cost[order]
    chosen = [planes[:0]]
    while len(planes):
        # a plane that does not fit now never will, nor will a later one of the same sample, which costs as much
        affordable = cost <= budget
        planes, cost = planes[affordable], cost[affordable]
        spent = np.cumsum(cost)
        fitting = int(np.searchsorted(spent, budget, side="right"))
        budget -= float(spent[fitting - 1]) if fitting else 0.0
        chosen.append(planes[:fitting])
        planes, cost = planes[fitting:], cost[fitting:]
    return np.concatenate(chosen), budget
