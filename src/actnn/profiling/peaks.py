"""The peaks of both contestants from one source, so that figures that stand side by side may be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actnn.profiling.growth import MEASURABLE_BYTES

# how far the peak that the system saw may be from the replayed one, which forecasts and pictures show
AGREEMENT = 0.2


@dataclass(frozen=True)
class Peaks:
    """The peak of a step of exact and of compressed training, as the system saw both or as replayed."""

    exact: int
    compressed: int
    replayed: bool


def peaks_of(profile: Mapping[str, Any]) -> Peaks:
    """Return both peaks as the system saw them if both agree with the replay, else both as replayed."""
    exact, compressed = profile["exact"], profile["compressed"]
    if seen(exact) and seen(compressed):
        return Peaks(exact["true_peak"], compressed["true_peak"], replayed=False)
    return Peaks(exact["peak"]["bytes"], compressed["peak"]["bytes"], replayed=True)


def seen(measured: Mapping[str, Any]) -> bool:
    """Tell whether the system saw the whole peak of a step, and nothing else.

    It sees pages that others of the process take as well, which of a small step are most, and sees none that were taken
    and never written, as those that an LSTM keeps: there it may see less than what is kept.
    """
    if not measurable(measured):
        return False
    resident, replayed = measured["true_peak"], measured["peak"]["bytes"]
    return bool(sum(measured["kept"].values()) <= resident and abs(resident - replayed) <= AGREEMENT * replayed)


def measurable(measured: Mapping[str, Any]) -> bool:
    """Tell whether the system saw a peak large enough to be measured."""
    return (measured["true_peak"] or 0) >= MEASURABLE_BYTES
