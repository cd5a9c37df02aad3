"""Contestants in turns, each in a process of its own: one works while the others wait.

NOTE [Turns]
1. In one process contestants would share its heap and its threads. Conversion tells the C library to keep the blocks
   that a step frees, and plain training beside it would be a sixth faster than it is by itself.
2. The processes form a ring of pipes, in which one byte goes round: who holds it works. In a first lap nobody does: it
   is over when all have loaded what they need.
3. Whoever ends, for whatever reason, closes its pipes. The next one then finds the end of its own, and ends too.
4. Threads of who worked last may spin for a while: whoever is next waits until they sleep.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from actnn.errors import ActnnError
from actnn.measuring import processes, timing
from actnn.measuring.processes import Told

BYTE = b"1"
# longer than threads of any of the frameworks spin
SETTLING_SECONDS = 0.25
# a turn is so much work that the caches of who worked before do not count
LEAST_SECONDS = 0.5


def call(
    function: str,
    settings: Mapping[str, Mapping[str, Any]],
    *,
    environment: Mapping[str, str] | None = None,
    told: Told = processes.nobody,
) -> dict[str, dict[str, Any]]:
    """Return, by name, what ``module:function`` returns in a fresh process for each of some settings.

    The function finds in its settings, as ``baton``, what ``Baton.of`` takes, and holds it as often as all others do.
    Where one of them fails, all end, and its error is raised.
    """
    started: list[subprocess.Popen[bytes]] = []
    pipes = [os.pipe() for _ in settings]
    os.write(pipes[0][1], BYTE)
    with ThreadPoolExecutor(len(settings)) as pool:
        calls: dict[Future[dict[str, Any]], str] = {}
        for place, (name, own) in enumerate(settings.items()):
            baton = pipes[place][0], pipes[(place + 1) % len(pipes)][1]
            work = partial(processes.call, environment=environment, told=told, lent=baton, started=started.append)
            calls[pool.submit(work, function, {**own, "baton": baton})] = name
        try:
            # the first to end is the one that failed
            found = {calls[each]: each.result() for each in as_completed(calls)}
        except BaseException:
            for process in started:
                process.kill()
            raise
    return {name: found[name] for name in settings}


class Baton:
    """What only one of the processes holds at a time; a process alone has one that nobody else wants."""

    def __init__(self, reading: int | None = None, writing: int | None = None) -> None:
        self._reading, self._writing = reading, writing

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Baton:
        """Return the baton that settings name."""
        return cls(*settings.get("baton") or ())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for it, and pass it on in the end."""
        if self._reading is None or self._writing is None:
            yield
            return
        if not os.read(self._reading, 1):
            raise ActnnError("a process in turns with this one has ended.")
        try:
            yield
        finally:
            # nobody may be left to take it
            with suppress(BrokenPipeError):
                os.write(self._writing, BYTE)

    def seconds(
        self, work: Callable[[], object], rounds: int, warm_up: int = 0, least: float = LEAST_SECONDS
    ) -> list[float]:
        """Return how long some work takes in each turn of this process, where it is repeated for ``least`` seconds."""
        with self.held():
            pass
        taken: list[float] = []
        count = 1
        for turn in range(warm_up + rounds):
            with self.held():
                if self._reading is not None:
                    time.sleep(SETTLING_SECONDS)
                (whole,) = timing.timed(partial(repeat, work, count))
            if turn < warm_up:
                count = max(1, math.ceil(least * count / whole))
            else:
                taken.append(whole / count)
        return taken


def repeat(work: Callable[[], object], count: int) -> None:
    """Do some work so many times."""
    for _ in range(count):
        work()
