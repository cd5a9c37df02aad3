"""Records: what is known of each code of a step, and how sites get their shares from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from actnn.format import Family, Layout
from actnn.planning.noise import noise_of_widths
from actnn.planning.problem import Demand, Widths
from actnn.planning.samples import Floats, Indices
from actnn.session.site import Site

# of which ranges a reader feels the noise: those of both sides or one, of the coded value or of a BatchNorm's output
BOTH_SIDES = np.array([1.0, 1.0, 0.0, 0.0])
POSITIVE_SIDE = np.array([0.0, 1.0, 0.0, 0.0])
OUTPUT = np.array([0.0, 0.0, 1.0, 1.0])
POSITIVE_OUTPUT = np.array([0.0, 0.0, 0.0, 1.0])
# which ranges belong to the negative and which to the positive side
SIDES = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])


@dataclass(eq=False)
class Record:
    """One code: the ranges of its samples, and, after its backward, what noise in them weighs."""

    site: Site
    layout: Layout
    ranges: Floats
    indices: Indices | None
    weights: Floats = field(default_factory=lambda: np.zeros(4))
    relative: list[Floats] = field(default_factory=list)
    observed: bool = False

    @property
    def sound(self) -> bool:
        """Whether all ranges are finite."""
        return math.isfinite(self.ranges.sum())

    @property
    def sensitivity(self) -> float:
        """What noise of one squared range in all its samples would add to the gradient's variance, once observed."""
        return float((self.ranges @ (self.weights[:, None] * SIDES)).sum())

    def noise(self, columns: Floats, factor: float) -> Floats:
        """Return the energy of each sample's noise in what a reader feels of it."""
        bits = self.layout.sample_bits or (self.layout.bits,) * self.layout.samples
        of_side = noise_of_widths(self.layout.family)[np.array(bits, np.intp)]
        felt: Floats = self.ranges @ (columns[:, None] * SIDES)
        noise: Floats = factor * (of_side * felt).sum(1)
        return noise


def set_shares(chosen: Sequence[tuple[Record, Demand]], widths: Sequence[Widths]) -> None:
    """Let each site have, from now on, the average width that its codes were given."""
    totals: dict[Site, tuple[Family, float, float]] = {}
    for (record, demand), given in zip(chosen, widths, strict=True):
        family, planes, size = totals.get(record.site, (record.layout.family, 0.0, 0.0))
        totals[record.site] = family, planes + float(given.mean()) * demand.size, size + demand.size
    for site, (family, planes, size) in totals.items():
        site.share = family, planes / size


def together(demanded: Sequence[tuple[Record, Demand]]) -> list[tuple[Record, Demand]]:
    """Let codes of one site demand as one where they have as many samples.

    They will have one share: with as many planes each, no fraction of a plane is left over.
    """
    alike: dict[tuple[Site, Family, int], list[tuple[Record, Demand]]] = {}
    for record, demand in demanded:
        alike.setdefault((record.site, demand.family, demand.samples), []).append((record, demand))
    joined = []
    for (_, family, _), own in alike.items():
        cost = sum(demand.cost for _, demand in own)
        negative, positive = (sum(getattr(demand, side) for _, demand in own) for side in ("negative", "positive"))
        joined.append((own[0][0], Demand(family, cost, negative, positive)))
    return joined
