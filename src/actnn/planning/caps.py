"""What noise costs single gradients, beside the sum of all: no parameter is to drown for the sake of others.

The sum of variances hardly sees a parameter whose gradient is small, such as the weights of queries and keys, and would
leave its noise as large as itself. So each gradient has a penalty of its own. With V_r the noise that reaches gradient
r, S_r what different batches let it vary by, V and S their sums, planning minimises

    V / S + λ · Σ_r h(V_r / (κ S_r))

κ being the share of its own sampling variance that noise is to stay below, and h(x) half the square of x, which goes on
in a straight line: one gradient far beyond its cap does not take the bits of all others. The slope of that sum is what
noise in a code weighs. S_r is the squared gradient of a batch less what all batches agree about, which parts of a batch
tell (``sampling_of``): early in training that may be nine tenths of it.

What a code hands to the gradients of layers below is told relative to these, as ρ, and reaches what comes to all maps
later in the backward (``reach``). Beside the gradient of a weight, which is a sum over positions, it is as much larger
as squares of positions together are than that of their sum (``incoherent``). In a branch ρ holds as it is. A
normalisation is where a branch ends: what goes on from it meets the gradient that passed the branch by, and is as much
of their sum as its square is. The square of the sum is known: it is that of the gradient which comes to the next map.
Behind the last normalisation of all nothing passed by, and its noise is in every gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from actnn.planning.learnt import Learnt
from actnn.planning.noise import Floats
from actnn.planning.records import RANGES_OF_VALUES, SIDES, Felt, Record, of_equal_samples

# the share of its own sampling variance that noise in a gradient is to stay below, κ
CAP = 0.02
# what one gradient at its cap weighs in shares of the whole sampling variance, λ
PRESSURE = 0.002
# a gradient that is a smaller share of the whole has none but what rounding leaves
LEAST_SHARE = 1e-10
# up to so many times the cap the penalty is quadratic
MOST_EXCESS = 4.0
# squares of gradients that differ by less are those of one gradient
SAME = 0.9
# of what comes to a normalisation, at least so much came through the branch above it
LEAST_PART = 0.1
# of a squared gradient, batches let vary at least so much
LEAST_SAMPLING = 0.02
# a gradient in which positions cancel more than that hardly is one
MOST_SPREAD = 30.0
# Gradients lie in few directions, of which maps further below may read little, and their noise in all: behind a
# normalisation it was a third to sixty times as large, beside what it is in, as where it arose.
BEYOND = 4.0
# what is handed down goes on to further layers: measured below BatchNorms, about half as much again
CHAIN = 1.5


def weigh(records: Sequence[Record], energies: Mapping[Learnt, float], factor: float) -> None:
    """Add to the weights of records what their noise costs single gradients, whose energies stand for S_r.

    ``factor`` is that of the rounding.
    """
    backward = sorted((felt for record in records for felt in record.felt), key=lambda felt: felt.place)
    sites = list(dict.fromkeys(felt.site for felt in backward if not felt.handed and felt.site in energies))
    handers = list(dict.fromkeys(felt.site for felt in backward if felt.handed))
    # the last one stands for whatever lies below all maps, embeddings above all, or is all there is
    whole = sum(energies[site] for site in sites) or 1.0
    typical = float(np.median([energies[site] for site in sites])) if sites else 1.0
    own = np.maximum(np.array([*(energies[site] for site in sites), typical]), LEAST_SHARE * whole)
    of_map, of_hander = ({site: row for row, site in enumerate(some)} for some in (sites, handers))
    spread = np.clip(incoherent(records, backward, of_map) / own, 1 / MOST_SPREAD, MOST_SPREAD)
    # of what lies below all maps nothing is known
    spread[-1] = 1.0
    reached = reach(backward, of_map, of_hander) * spread
    direct, handed = np.zeros(len(own)), np.zeros(len(handers))
    found = energies_by_columns(records, factor)
    for index, record in enumerate(records):
        for felt in record.felt:
            noise = felt.amount * found[id(felt.columns)][index]
            if felt.handed:
                handed[of_hander[felt.site]] += noise
            elif felt.site in of_map:
                direct[of_map[felt.site]] += noise
    excess = np.minimum((direct / own + handed @ reached) / CAP, MOST_EXCESS)
    penalty = PRESSURE * whole * excess / CAP
    of_direct, of_handed = penalty / own, reached @ (own + penalty)
    for record in records:
        for felt in record.felt:
            if felt.handed:
                cost = float(of_handed[of_hander[felt.site]])
            elif felt.site in of_map:
                cost = float(of_direct[of_map[felt.site]])
            else:
                continue
            record.weights = record.weights + felt.columns * (felt.amount * cost)


def sampling_of(whole: float, parts: float, count: int) -> float:
    """Return how much of a squared gradient batches let vary, from the squares of a batch's and of its parts' together.

    Parts of a batch vary as batches of their size do. It is never more than all: where a BatchNorm takes the mean of a
    batch away, its parts cancel, and differ by what batches do not. Of nothing, that is all.
    """
    varied = (parts - whole / count) * count / (count - 1)
    if not math.isfinite(varied):
        return math.nan
    return min(max(varied / whole, LEAST_SAMPLING), 1.0) if whole > 0 else 1.0


def sampling_variances(energies: Mapping[Learnt, float]) -> dict[Learnt, float]:
    """Return what squared gradients come to less what all batches agree about.

    Where no parts told it is as in most, all of it where they told of few.
    """
    typical = float(np.median([1.0 if site.sampling is None else site.sampling for site in energies] or [1.0]))
    return {site: energy * (typical if site.sampling is None else site.sampling) for site, energy in energies.items()}


def incoherent(records: Sequence[Record], backward: Sequence[Felt], of_map: Mapping[Learnt, int]) -> Floats:
    """Return what noise as large as the gradient that comes to a map would add to that of its weight: (maps + 1,).

    At each position it meets the activation there, and squares add up. So they do where the activation has noise as
    large as itself, of which readers have told.
    """
    values = {}
    for record in records:
        for felt in record.felt:
            values[id(felt)] = felt.amount * float((record.ranges @ felt.columns).sum()) / RANGES_OF_VALUES
    found, last = np.zeros(len(of_map) + 1), None
    for felt in backward:
        if not felt.handed and felt.site in of_map:
            # the codes of one product, which follow each other, are one activation
            found[of_map[felt.site]] += 0.0 if felt.site is last else values[id(felt)]
        last = felt.site
    return found


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


def reach(backward: Sequence[Felt], of_map: Mapping[Learnt, int], of_hander: Mapping[Learnt, int]) -> Floats:
    """Return how much of the relative noise that each hander hands down is left in each gradient: (handers, maps + 1).

    ``backward`` is what was felt, in its order. A site that several gradients come to counts where the first one did.
    """
    ends = ends_of(backward)
    places, streams = np.full(len(of_map) + 1, np.inf), np.zeros(len(of_map) + 1)
    for felt in reversed(backward):
        if not felt.handed and felt.site in of_map:
            places[of_map[felt.site]] = felt.place
    for end in ends:
        streams[places > end.place] = end.stream
    reached = np.zeros((len(of_hander), len(places)))
    outside = BEYOND if 2 * sum(end.joined for end in ends) < len(ends) else 1.0
    for felt in reversed(backward):
        if felt.handed:
            end = next((end for end in ends if end.place >= felt.place), NO_END)
            own = end.place == felt.place
            joined = np.minimum(1.0, end.left / np.maximum(streams, end.left))
            if end.joined:
                # its own noise is in all that goes on, that of the branch above it met what passed by
                joined = np.full(len(places), 1.0 if own else end.share)
            beyond = outside * joined if own else joined
            reached[of_hander[felt.site]] = np.where(places > end.place, beyond, 1.0) * (places > felt.place)
    return reached


class End(NamedTuple):
    """A normalisation, where a branch ends: its place in the backward, and the square of the gradient that goes on.

    ``stream`` is the square of what comes to the next map. ``joined`` tells that this is the same: nothing joins behind
    the normalisation, but before it. ``share`` is then the part of what came to it that came through the branch.
    """

    place: float
    left: float
    stream: float
    joined: bool
    share: float


NO_END = End(np.inf, 1.0, 1.0, True, 1.0)


def ends_of(backward: Sequence[Felt]) -> list[End]:
    """Return the normalisations of a backward, in its order."""
    normalizing = {felt.site for felt in backward if felt.handed and felt.energy > 0}
    ends: list[End] = []
    came, passed = 0.0, 0.0
    for index, felt in enumerate(backward):
        if felt.energy > 0 and felt.site in normalizing:
            if not felt.handed:
                came = felt.energy
                continue
            maps = (each for each in backward[index + 1 :] if not each.handed and each.site not in normalizing)
            stream = next((each.energy for each in maps if each.energy > 0), felt.energy)
            share = max(1.0 - passed / came, LEAST_PART) if came > passed else LEAST_PART
            ends.append(End(felt.place, felt.energy, stream, felt.energy > SAME * stream, share))
            passed = felt.energy
    return ends
