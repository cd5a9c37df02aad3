"""What is to be allocated: the samples of each code, what their noise costs, what their planes cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from actnn.errors import DemandError
from actnn.format import MAX_BITS, Family
from actnn.planning.noise import Floats, noise_of_widths

Widths = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Demand:
    """The samples of one code, and what noise in them costs; one plane of one sample takes ``cost``.

    ``negative`` and ``positive`` are the sensitivities of the two sides, one a sample: the gradient's variance where
    the squared step equals the squared range. Costs are elements or bytes: sums of whole numbers are exact.
    """

    family: Family
    cost: float
    negative: Floats
    positive: Floats

    def __post_init__(self) -> None:
        if not 0 < self.cost < inf:
            raise DemandError(f"a plane that costs {self.cost} cannot be weighed: expected a finite cost above 0.")
        if self.negative.ndim != 1 or self.negative.shape != self.positive.shape:
            raise DemandError(
                f"sensitivities have shapes {self.negative.shape} and {self.positive.shape}: "
                f"expected (samples,) on both sides."
            )
        for side in (self.negative, self.positive):
            # not finite is not comparable or not below infinity, so that two reductions see everything
            if side.size and not 0 <= side.min() <= side.max() < inf:
                raise DemandError(
                    f"sensitivities range from {side.min()} to {side.max()}: expected finite numbers of at least 0. "
                    f"Leave out steps whose gradients overflow."
                )

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.positive)

    @property
    def size(self) -> float:
        """Cost of one plane of all samples."""
        return self.samples * self.cost

    @property
    def least(self) -> float:
        """Cost of all samples at the least width."""
        return self.samples * self.family.least_bits * self.cost

    @property
    def most(self) -> float:
        """Cost of all samples at the greatest width."""
        return self.samples * MAX_BITS * self.cost

    def damage(self) -> Floats:
        """Return the variance at each width, least first: (samples, MAX_BITS + 1 - least_bits), convex, decreasing."""
        noise = noise_of_widths(self.family)[self.family.least_bits :]
        return np.stack([self.negative, self.positive], axis=1) @ noise.T


def variance(demands: Sequence[Demand], widths: Sequence[Widths | int]) -> float:
    """Return the gradient's variance under the given widths, for each demand one a sample or one for all."""
    total = 0.0
    for demand, width in zip(demands, widths, strict=True):
        noise = noise_of_widths(demand.family)[width]
        total += float(np.sum(demand.negative * noise[..., 0] + demand.positive * noise[..., 1]))
    return total
