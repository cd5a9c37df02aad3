"""Records: what is known of each code of a step, and how sites get their shares from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from actnn.format import FAMILIES, MAX_BITS, Family, Layout, Rounding
from actnn.kernels.contract import DividedLayout, Span, Stretch
from actnn.planning.learnt import Learnt
from actnn.planning.noise import Floats, noise_of_widths
from actnn.planning.plain import Plain, array_of, plain_array
from actnn.planning.problem import Demand, Widths
from actnn.planning.samples import Indices

# of which ranges a reader feels the noise: those of both sides or one, of the coded value or of a BatchNorm's output
BOTH_SIDES = np.array([1.0, 1.0, 0.0, 0.0])
POSITIVE_SIDE = np.array([0.0, 1.0, 0.0, 0.0])
OUTPUT = np.array([0.0, 0.0, 1.0, 1.0])
POSITIVE_OUTPUT = np.array([0.0, 0.0, 0.0, 1.0])
NOTHING = np.zeros(4)
NOTHING.setflags(write=False)
# the sum of squared ranges over that of squared values: measured, 25 to 32 where values are normal in groups of 256
RANGES_OF_VALUES = 28.0
# bits that codes have more than others, which a depthwise convolution reads: each of its filters sees a single channel
DEPTHWISE_EXTRA = 1.5
# which ranges belong to the negative and which to the positive side
SIDES = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])


class Felt(NamedTuple):
    """Noise that one gradient felt of a code: ``amount`` for each unit of energy in some of the code's columns.

    The gradient is that of the weights of ``site``, or, with ``handed``, any that it hands noise down to; the amount is
    then relative to it. With ``loss`` that is where all gradients come from. ``place`` counts what was felt in the order
    of the backward. ``energy`` is the square of the gradient that came to a map, or, where a normalisation hands noise
    down, of the one that goes on from it; 0 where it is not known.
    """

    columns: Floats
    amount: float
    site: Learnt
    handed: bool
    loss: bool = False
    place: int = 0
    energy: float = 0.0


class Record:
    """One code: the ranges of its samples, and, after its backward, what noise in them weighs.

    ``layout`` points into memory that kernels write to while they make the code.
    """

    __slots__ = ("_ranges", "felt", "indices", "layout", "observed", "relative", "site", "weights")

    def __init__(self, site: Learnt, layout: DividedLayout | Layout, indices: Indices | None) -> None:
        self.site, self.layout, self.indices = site, layout, indices
        self._ranges: Floats | None = None
        self.weights = NOTHING
        self.felt: list[Felt] = []
        self.relative: list[Floats] = []
        self.observed = False

    @property
    def stretch(self) -> Stretch | None:
        """The memory that kernels wrote ranges and widths to, where the record is one of this process."""
        return self.layout.block.stretch if isinstance(self.layout, DividedLayout) else None

    @property
    def ranges(self) -> Floats:
        """Sums of squared ranges (A-, A+, B-, B+) of each sample."""
        if self._ranges is None:
            assert isinstance(self.layout, DividedLayout)
            self._ranges = self.layout.block.ranges.astype(np.float64)
        return self._ranges

    @property
    def fixed_layout(self) -> Layout:
        """The layout, apart from memory of this process."""
        layout = self.layout
        return Layout(layout.samples, layout.elements, layout.family, 0, layout.rounding, layout.sample_bits)

    def state(self) -> Plain:
        """Return the record as plain data; sites are named by index, and the batch is left to the planner."""
        layout = self.fixed_layout
        return {
            "site": self.site.index,
            "family": layout.family.name,
            "elements": layout.elements,
            "rounding": layout.rounding.name,
            "widths": list(layout.sample_bits or ()),
            "ranges": plain_array(self.ranges),
            "weights": plain_array(self.weights),
            "relative": [plain_array(each) for each in self.relative],
            "felt": [[each.columns.tolist(), each.amount, each.site.index, *each[3:]] for each in self.felt],
        }

    @classmethod
    def of(cls, state: Plain, sites: Sequence[Learnt], indices: Indices | None) -> Record:
        """Return the observed record that plain data stand for."""
        widths = tuple(state["widths"])
        family, rounding = FAMILIES[state["family"]], Rounding[state["rounding"]]
        layout = Layout(len(widths), state["elements"], family, 0, rounding, widths)
        record = cls(sites[state["site"]], layout, indices)
        record._ranges, record.weights = known(state["ranges"]), known(state["weights"])
        record.relative, record.observed = [known(each) for each in state["relative"]], True
        # states once did not tell what single gradients felt, nor in which order
        for columns, amount, site, *others in state.get("felt", ()):
            record.felt.append(Felt(np.array(columns), amount, sites[site], *others))
        return record

    def __getstate__(self) -> dict[str, Any]:
        # what points into memory of this process is taken out of it
        state = {"_ranges": self.ranges, "layout": self.fixed_layout}
        return {name: getattr(self, name) for name in self.__slots__} | state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def asked(self) -> float:
        """The planes that the code brings to the budget of all: more where a depthwise convolution reads it."""
        asked = self.site.asked(self.layout.family)
        if any(felt.site.depthwise and not felt.handed for felt in self.felt):
            asked += DEPTHWISE_EXTRA
        return min(asked, MAX_BITS)

    @property
    def sound(self) -> bool:
        """Whether all ranges are finite."""
        return math.isfinite(self.ranges.sum())

    @property
    def values(self) -> float:
        """What the squared values of all samples come to, as their ranges tell: those of a normalisation's output."""
        return float(self.ranges[:, 2:].sum()) / RANGES_OF_VALUES

    @property
    def sensitivity(self) -> float:
        """What noise of one squared range in all its samples would add to the gradient's variance, once observed."""
        return float((self.ranges @ (self.weights[:, None] * SIDES)).sum())

    def noise(self, columns: Floats, factor: float) -> Floats:
        """Return the energy of each sample's noise in what a reader feels of it."""
        felt: Floats = self.ranges @ (columns[:, None] * SIDES)
        noise: Floats = factor * (self.noise_of_sides * felt).sum(1)
        return noise

    @property
    def noise_of_sides(self) -> Floats:
        """The noise of each sample's width, relative to a squared range: (samples, 2), negative side first."""
        layout = self.layout
        widths = layout.block.sample_bits if isinstance(layout, DividedLayout) else list(layout.sample_bits or ())
        noise: Floats = noise_of_widths(layout.family)[widths]
        return noise


def known(plain: Plain | None) -> Floats:
    """Return an array that must be there."""
    array = array_of(plain)
    if array is None:
        raise ValueError("an array is missing")
    return array


class Observation:
    """How one reader felt the noise of a code: the energies of its gradient, which a kernel wrote, and what they mean.

    ``coefficient`` tells how much of that noise the reader's own gradient takes over, ``scale`` returns how often it
    counts, where that is not once.
    """

    __slots__ = ("coefficient", "columns", "energies", "reader", "record", "scale")

    def __init__(
        self,
        record: Record,
        reader: Learnt,
        columns: Floats,
        coefficient: float,
        energies: Span,
        scale: Callable[[], float] | None = None,
    ) -> None:
        self.record, self.reader, self.columns = record, reader, columns
        self.coefficient, self.energies, self.scale = coefficient, energies, scale


class Handing(Observation):
    """How a BatchNorm felt the noise of a code, some of which it hands down to the map below it.

    ``channels`` returns its slope and mean(g x̂) of each channel, where the planner wanted them; ``learns`` tells that
    gamma does.
    """

    __slots__ = ("channels", "learns")

    def __init__(
        self,
        record: Record,
        reader: Learnt,
        columns: Floats,
        coefficient: float,
        energies: Span,
        channels: Callable[[], tuple[Floats, Floats]] | None,
        scale: Callable[[], float] | None = None,
        learns: bool = True,
    ) -> None:
        super().__init__(record, reader, columns, coefficient, energies, scale)
        self.channels, self.learns = channels, learns


class Passing:
    """What a code's noise does to a gradient that goes on to the layers below, relative to that gradient.

    ``ratio`` returns the noise for each unit of energy in the columns of all samples together. ``loss`` tells that all
    gradients come from this one. ``left`` is where a kernel wrote the square of the gradient, for a normalisation, behind
    which it may meet others.
    """

    __slots__ = ("columns", "left", "loss", "ratio", "reader", "record")

    def __init__(
        self,
        record: Record,
        reader: Learnt,
        columns: Floats,
        ratio: Callable[[], float],
        loss: bool = False,
        left: Span | None = None,
    ) -> None:
        self.record, self.reader, self.columns, self.ratio, self.loss = record, reader, columns, ratio, loss
        self.left = left


def of_equal_samples(records: Sequence[Record]) -> list[list[int]]:
    """Return the places of records whose codes have as many samples: what is done with them at once takes less time."""
    alike: dict[int, list[int]] = {}
    for place, record in enumerate(records):
        alike.setdefault(record.layout.samples, []).append(place)
    return list(alike.values())


def set_shares(chosen: Sequence[tuple[Record, Demand]], widths: Sequence[Widths]) -> None:
    """Let each site have, from now on, the average width that its codes were given."""
    totals: dict[Learnt, tuple[Family, float, float]] = {}
    for (record, demand), given in zip(chosen, widths, strict=True):
        family, planes, size = totals.get(record.site, (record.layout.family, 0.0, 0.0))
        average = int(given.sum()) / len(given)
        totals[record.site] = family, planes + average * demand.size, size + demand.size
    for site, (family, planes, size) in totals.items():
        site.share = family, planes / size


def together(demanded: Sequence[tuple[Record, Demand]]) -> list[tuple[Record, Demand]]:
    """Let codes of one site demand as one where they have as many samples.

    They will have one share: with as many planes each, no fraction of a plane is left over.
    """
    alike: dict[tuple[Learnt, Family, int], list[tuple[Record, Demand]]] = {}
    for record, demand in demanded:
        alike.setdefault((record.site, demand.family, demand.samples), []).append((record, demand))
    joined = []
    for (_, family, _), own in alike.items():
        if len(own) == 1:
            joined += own
            continue
        cost = sum(demand.cost for _, demand in own)
        negative, positive = (sum(getattr(demand, side) for _, demand in own) for side in ("negative", "positive"))
        joined.append((own[0][0], Demand(family, cost, negative, positive)))
    return joined
