"""Which family of codes serves which kind of values: levels lie along a curve where that lowers noise at equal bits."""

from __future__ import annotations

from actnn.format import (
    AFFINE,
    COMPANDED,
    NORMALIZED,
    ROOT,
    TWO_SIDED,
    TWO_SIDED_NORMALIZED,
    ZERO_EXACT,
    ZERO_EXACT_COMPANDED,
    Family,
)
from actnn.settings import Policy


def of_values(policy: Policy) -> Family:
    """Return the family for values of any kind."""
    return COMPANDED if policy.companding else AFFINE


def of_normalized(policy: Policy) -> Family:
    """Return the family for values whose mean square is one, of which nobody reads the sides."""
    return NORMALIZED if policy.companding else AFFINE


def of_probabilities(policy: Policy) -> Family:
    """Return the family for numbers from 0 to 1 of which most are small."""
    return ROOT if policy.companding else AFFINE


def of_rectified(policy: Policy) -> Family:
    """Return the family for what a ReLU returns: zero is exact, and one word of the code tells it."""
    return ZERO_EXACT_COMPANDED if policy.companding else ZERO_EXACT


def with_sides(policy: Policy) -> Family:
    """Return the family for normalised values of which a rectifier reads the sides."""
    return TWO_SIDED_NORMALIZED if policy.companding else TWO_SIDED
