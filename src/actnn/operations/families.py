"""Which family of codes serves which kind of values."""

from __future__ import annotations

from actnn.format import AFFINE, Family
from actnn.settings import Policy


def of_values(policy: Policy) -> Family:
    """Return the family for values of any kind."""
    return AFFINE


def of_normalized(policy: Policy) -> Family:
    """Return the family for values whose mean square is one."""
    return AFFINE


def of_probabilities(policy: Policy) -> Family:
    """Return the family for numbers from 0 to 1 of which most are small."""
    return AFFINE
