"""Find the largest of something that fits, with few trials: each of them may take minutes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from actnn.errors import ConfigError


class Found(NamedTuple):
    """The largest value that fitted, the least that did not, and what was tried, in order."""

    largest: int
    too_large: int
    trials: dict[int, bool]


def extrapolated(first: tuple[int, int], second: tuple[int, int], limit: int, power: float = 1) -> int:
    """Return where a need that grows with a power of the value meets a limit; points are (value, need)."""
    (low, low_need), (high, high_need) = first, second
    slope = (high_need - low_need) / (high**power - low**power)
    if slope <= 0:
        return high
    return int(max(0.0, low**power + (limit - low_need) / slope) ** (1 / power))


def largest(fits: Callable[[int], bool], guess: int, *, least: int = 1, tolerance: float = 0.04) -> Found:
    """Return the largest value that fits, to within ``tolerance``: from a guess in doubling strides, then by halves.

    Values fit up to some value and not beyond it. Raises ConfigError where not even ``least`` fits.
    """
    trials: dict[int, bool] = {}
    low: int | None = None
    high: int | None = None
    value = max(guess, least)
    stride = max(1, int(value * tolerance))
    while low is None or high is None:
        trials[value] = fits(value)
        if trials[value]:
            low, value = value, value + stride
        elif value == least:
            raise ConfigError(f"not even {least} fits: raise the memory limit.")
        else:
            high, value = value, max(least, value - stride)
        stride *= 2
    while high - low > max(1, int(low * tolerance)):
        middle = (low + high) // 2
        trials[middle] = fits(middle)
        low, high = (middle, high) if trials[middle] else (low, middle)
    return Found(low, high, trials)
