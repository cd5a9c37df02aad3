"""The one place that takes times: contestants in turns, warm-up, medians and quartiles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

# tells seconds since some moment: those of the wall, or those that processors worked for this process
Clock = Callable[[], float]


def interleaved(
    contestants: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Let all contestants work once a round, in turns; return the seconds of each, the warm-up left out."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warm_up + rounds):
        for name, work in contestants.items():
            taken = timed(work, clock)
            if turn >= warm_up:
                seconds[name] += taken
    return seconds


def timed(work: Callable[[], object], clock: Clock = time.perf_counter) -> list[float]:
    """Return the seconds that some work takes by a clock, as a list of one."""
    start = clock()
    work()
    return [clock() - start]


def summary(seconds: list[float]) -> dict[str, float]:
    """Return the median and the quartiles of some times."""
    if len(seconds) < 2:
        return {"seconds": seconds[0], "first_quartile": seconds[0], "third_quartile": seconds[0]}
    first, median, third = statistics.quantiles(seconds, n=4, method="inclusive")
    return {"seconds": median, "first_quartile": first, "third_quartile": third}
