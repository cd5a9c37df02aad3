"""Linear maps: linear layers and convolutions of every kind.

Keeps: a code of the input, whoever made it. Where a code of that tensor is there already, nothing of its own.
Shares: its code with everybody who reads the same tensor.
Reads in backward: the decoded input for the gradient of the weight, and nothing for the gradient of the input.
Noise: sample n of the code adds c |g_n|² E_n to the variance of the weight's gradient, g being the gradient of the
output, E_n the energy of the code's noise and c the map's coefficient (``planning.noise``). A BatchNorm that reads the
output also hands noise down to this map; ``Transfer`` tells how much reaches its weight.
"""

from __future__ import annotations

from collections.abc import Callable

from actnn.kernels.contract import Array
from actnn.planning.noise import Transfer
from actnn.planning.planner import Planner
from actnn.session.site import Site
from actnn.session.tensors import Tensors

# positions over which the statistics of a layer's transfer are averaged, and the variance of a channel that has none
ENOUGH_POSITIONS = 2048
LEAST_VARIANCE = 1e-12


class ReadTransfer:
    """A transfer that was measured and that nobody has read yet: small arrays, which are its own."""

    __slots__ = ("_aligned", "_coefficient", "_count", "_energy", "_samples", "_tensors")

    def __init__(
        self, tensors: Tensors, aligned: Array, count: int, energy: Array, coefficient: float, samples: int
    ) -> None:
        self._tensors, self._aligned, self._count, self._energy = tensors, aligned, count, energy
        self._coefficient, self._samples = coefficient, samples

    def held(self, planner: Planner) -> Callable[[], Transfer]:
        """Return what reads it once the step is over: to read at once would let a forward wait for an accelerator."""
        aligned, energy = (planner.hold(self._tensors, array) for array in (self._aligned, self._energy))
        coefficient, samples, squared = self._coefficient, self._samples, float(self._count) ** 2
        return lambda: Transfer(aligned() / squared, coefficient * (float(energy()) / samples))


def note_source(tensors: Tensors, site: Site, y: Array, measure: Callable[[], ReadTransfer]) -> None:
    """Let a BatchNorm that reads ``y`` find the map that made it, and how that map hands noise on to its weights.

    ``measure`` computes that. Called in training, where the weight learns and the planner ``traces``.
    """
    planner = site.session.planner
    site.session.tags.current(tensors, y, tensors.form(y)).source = site
    if planner.wants_transfer(site):
        planner.measured(site, measure().held(planner))


def transfer_of(tensors: Tensors, sums: Array, count: int, x: Array, coefficient: float = 1.0) -> ReadTransfer:
    """Return a transfer from each channel's sums of x̂ h over ``count`` positions, and from x, whose patches h are."""
    aligned, energy = (sums * sums).sum(1), (x * x).sum()
    return ReadTransfer(tensors, aligned, count, energy, coefficient, max(1, len(x)))


def few(tensors: Tensors, values: Array, positions: int) -> Array:
    """Return, as float32, as many samples as have enough positions to average over."""
    return tensors.cast(tensors.detach(values)[: -(-ENOUGH_POSITIONS // max(1, positions))], "float32")
