"""What training tells of one site, and what it may spend of the budget."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from actnn.format import MAX_BITS, Family
from actnn.planning.noise import Floats, Transfer

Average = TypeVar("Average", float, Floats)

# what an average has of its old value after a step
SMOOTHING = 0.5


class NoiseOfLogits(NamedTuple):
    """The variance of noise in an attention's logits, the planes that queries and keys had when it was measured.

    ``encoded`` is how many keys the site of the queries had taken by then.
    """

    planes: list[int]
    variance: float
    encoded: int


class Learnt:
    """What planning knows of one site; a session's sites derive from it.

    ``bits`` is the average width that the settings ask for, ``adaptive`` tells whether samples of a code may differ in
    width. What training tells is smoothed over steps: ``gradient``, the mean squared gradient norm that the site reads
    codes with, ``energy``, the squared gradient of its own weights, ``sampling``, how much of that batches let vary,
    and ``weights``, what noise in its own codes costs by the sides of their values. ``share`` is the family and the
    average width that it was given of the budget. ``transfer`` is how a map hands noise on to its weights, ``below``
    the map whose output a BatchNorm reads, and ``handed_down`` what noise in the BatchNorm costs it, found with the
    ``transfer`` that the BatchNorm then remembers. ``passing`` is how much of the relative noise of an input an
    attention hands on to gradients, ``noise`` that in its logits. A ``depthwise`` convolution has one filter for each
    channel of its input.
    """

    def __init__(self, name: str, index: int, group: int, bits: float, adaptive: bool) -> None:
        self.name, self.index, self.group = name, index, group
        self.bits, self.adaptive = bits, adaptive
        self.gradient: float | None = None
        self.energy: float | None = None
        self.sampling: float | None = None
        self.weights: Floats | None = None
        self.share: tuple[Family, float] | None = None
        self.transfer: Transfer | None = None
        self.below: Learnt | None = None
        self.handed_down: float | None = None
        self.passing: float | None = None
        self.depthwise = False
        self.noise: NoiseOfLogits | None = None

    def asked(self, family: Family) -> float:
        """Return the planes that the settings ask of a code of this family, on average."""
        return min(self.bits + signs(family, self.bits), MAX_BITS)

    def planes(self, family: Family) -> float:
        """Return the planes of the next code, on average: the site's share of the budget where it was given one."""
        if self.share is None:
            return self.asked(family)
        of, planes = self.share
        return min(max(planes + signs(family, self.bits) - signs(of, self.bits), family.least_bits), MAX_BITS)


def signs(family: Family, bits: float) -> float:
    """Return the part of a code's width that serves a ReLU's mask rather than values of ``bits`` bits.

    A two-sided code has one plane more than an affine one of the same fineness. A zero-exact code serves its mask
    without, but cannot do with less than its least width.
    """
    if family.affine:
        return 0.0
    # one negative word is exact zero: such a code has no sides of several levels
    return max(0.0, family.least_bits - bits) if family.negative[MAX_BITS] == 1 else 1.0


def smoothed(old: Average | None, new: Average) -> Average:
    """Return a running average."""
    return new if old is None else old + (1.0 - SMOOTHING) * (new - old)
