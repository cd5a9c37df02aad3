"""What noise costs single gradients, beside the sum of all: no parameter is to drown for the sake of others.

The sum of variances hardly sees a parameter whose gradient is small, such as the weights of queries and keys, and would
leave its noise as large as itself. So each gradient has a penalty of its own. With V_r the noise that reaches gradient
r, S_r what different batches let it vary by, V and S their sums, planning minimises

    V / S + λ · Σ_r h(V_r / (κ S_r))

κ being the share of its own sampling variance that noise is to stay below, and h(x) half the square of x, which goes on
in a straight line: one gradient far beyond its cap does not take the bits of all others. The slope of that sum is what
noise in a code weighs. The squared gradient of a batch stands for S_r: in networks that were partly trained it was a
third of it to three times as much in nearly all parameters.

What a code hands to the gradients of layers below is told relative to these, ρ = V_r / S_r: it holds for as many layers
as there are, until a sum thins it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from actnn.planning.learnt import Learnt
from actnn.planning.records import SIDES, Record, of_equal_samples

# the share of its own sampling variance that noise in a gradient is to stay below, κ
CAP = 0.05
# what one gradient at its cap weighs in shares of the whole sampling variance, λ
PRESSURE = 0.01
# a gradient that is a smaller share of the whole has none but what rounding leaves
LEAST_SHARE = 1e-10
# up to so many times the cap the penalty is quadratic
MOST_EXCESS = 2.0
# what is handed down goes on to further layers: measured below BatchNorms, about half as much again
CHAIN = 1.5


def weigh(records: Sequence[Record], energies: Mapping[Learnt, float], factor: float) -> None:
    """Add to the weights of records what their noise costs single gradients, whose energies stand for S_r.

    ``factor`` is that of the rounding.
    """
    # where nobody's weights learn, what is handed down is all there is
    whole = sum(energies.values()) or 1.0
    typical = float(np.median(list(energies.values()))) if energies else 1.0
    noise: dict[tuple[Learnt, bool], float] = {}
    energies_of = energies_by_columns(records, factor)
    for place, record in enumerate(records):
        for felt in record.felt:
            key = felt.site, felt.handed
            noise[key] = noise.get(key, 0.0) + felt.amount * energies_of[id(felt.columns)][place]
    for record in records:
        for felt in record.felt:
            own = 1.0 if felt.handed else energies.get(felt.site)
            if own is None:
                continue
            own = max(own, LEAST_SHARE * whole)
            excess = min(noise[felt.site, felt.handed] / (CAP * own), MOST_EXCESS)
            cost = PRESSURE * whole * excess / (CAP * own)
            if felt.handed:
                cost += whole if felt.loss else CHAIN * typical
            record.weights = record.weights + felt.columns * (felt.amount * cost)


def energies_by_columns(records: Sequence[Record], factor: float) -> dict[int, list[float]]:
    """Return, for each kind of columns that somebody felt, by identity, the energy of every record's noise in them."""
    kinds = {id(felt.columns): felt.columns for record in records for felt in record.felt}
    found = {kind: [0.0] * len(records) for kind in kinds}
    for places in of_equal_samples(records):
        ranges = np.array([records[place].ranges for place in places])
        of_side = np.array([records[place].noise_of_sides for place in places])
        for kind, columns in kinds.items():
            felt = ranges @ (columns[:, None] * SIDES)
            energies = (factor * (of_side * felt).sum(2)).sum(1).tolist()
            for place, energy in zip(places, energies, strict=True):
                found[kind][place] = energy
    return found
