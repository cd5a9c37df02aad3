"""How large a training step can be under a memory limit: real steps in children that may not have more."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from actnn.bench import measurements
from actnn.console.arguments import Parser, amount, at_least, number, share
from actnn.errors import ConfigError
from actnn.measuring.memory import MALLOC_SETTINGS
from actnn.measuring.processes import DoesNotFit, Told
from actnn.measuring.search import extrapolated, largest
from actnn.workloads.task import Task

# a level that decides widths needs two to settle, and momentum is there from the second on
LEAST_STEPS = 2


@dataclass(frozen=True)
class Scale:
    """What grows: the task of a value, the least value, two small ones to begin from, and the power memory grows by."""

    task: Callable[[int], Task]
    least: int
    probes: tuple[int, int]
    power: float = 1


@dataclass(frozen=True)
class Limits:
    """How a search is carried out; all but the time-out tell one run from another."""

    memory_limit: int
    steps: int
    tolerance: float
    timeout: float

    @staticmethod
    def of(arguments: Namespace) -> Limits:
        """Return the limits that the arguments name."""
        return Limits(arguments.memory_limit, arguments.steps, arguments.tolerance, arguments.timeout)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a run that the search adds."""
        return {"memory_limit": self.memory_limit, "steps": self.steps, "tolerance": self.tolerance}


def add_limits(parser: Parser, memory_limit: str) -> None:
    """Add the arguments of a search."""
    parser.add_argument(
        "--memory-limit",
        type=amount,
        default=amount(memory_limit),
        help=f"the most private memory a process may have (RLIMIT_DATA; default: {memory_limit})",
    )
    parser.add_argument("--steps", type=at_least(LEAST_STEPS), default=LEAST_STEPS, help="of each trial (default: 2)")
    parser.add_argument("--tolerance", type=share, default=0.04, help="how near to search (default: 0.04)")
    parser.add_argument("--timeout", type=number, default=3600, help="seconds that a trial may take (default: 3600)")


def search(scale: Scale, contestant: str, limits: Limits, told: Told) -> dict[str, Any]:
    """Return the largest value at which one contestant can take steps, the least at which it cannot, and all trials."""
    done: dict[int, dict[str, Any]] = {}

    def fits(value: int) -> bool:
        try:
            done[value] = measurements.call(
                "trial",
                scale.task(value),
                contestant=contestant,
                steps=limits.steps,
                data_limit=limits.memory_limit,
                timeout=limits.timeout,
                environment=MALLOC_SETTINGS,
                told=told,
            )
        except DoesNotFit:
            return False
        return True

    guess = scale.least
    if all(fits(value) for value in scale.probes):
        first, second = ((value, done[value]["private_bytes"]) for value in scale.probes)
        guess = extrapolated(first, second, limits.memory_limit, scale.power)
    try:
        found = largest(fits, guess, least=scale.least, tolerance=limits.tolerance)
    except ConfigError as problem:
        raise ConfigError(f"{contestant}: {problem}") from problem
    return {"too_large": found.too_large, "trials": list(found.trials.items())} | last(found.largest, done)


def last(value: int, done: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of the trial of the largest value."""
    return {"largest": value, "seconds": done[value]["seconds"], "private_bytes": done[value]["private_bytes"]}
