"""``actnn bench fragmentation``: what is resident and what lives, over many steps whose batches change in shape.

Each contestant takes the same steps twice: with the allocator as it comes, and with settings under which resident
memory is what lives. Both count the peak of each step above a process that has taken a few small ones, and the first
how often the system had to bring pages. ``actnn run actnn bench fragmentation`` measures with actnn's allocator.
"""

from __future__ import annotations

import json
import os
import random
import resource
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from actnn.bench import tables
from actnn.bench.arguments import add_recording, add_training, parser_of, size, task_of
from actnn.console.arguments import at_least
from actnn.kernels.native import preload
from actnn.measuring import processes, runs
from actnn.measuring.memory import MALLOC_SETTINGS, reset_peak, resident
from actnn.measuring.processes import Told
from actnn.measuring.runs import Group
from actnn.workloads.frameworks import trainee
from actnn.workloads.task import Task

WARM_UP_STEPS = 3
LEAST_SIDE = 64
SIDES = 32
EXAMPLE = "actnn bench fragmentation --model resnet18 --batch 16 --size 192 --steps 200 --contestants L4,L5"


def main(argv: Sequence[str]) -> int:
    """Measure all contestants and print one JSON line each."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("fragmentation", __doc__, EXAMPLE)
    add_training(parser, contestants=("exact", "L3", "L4", "L5"), model="resnet18")
    parser.add_argument("--batch", type=at_least(2), default=16, help="the largest (default: 16)")
    parser.add_argument("--size", type=size, default=(192, 192), help="of the largest images (default: 192)")
    parser.add_argument("--steps", type=at_least(2), default=200)
    add_recording(parser)
    return parser.parse_args(argv)


def measure_all(arguments: Namespace) -> None:
    """Measure each contestant; each is a run of its own."""
    task = task_of(arguments, batch=arguments.batch)
    planned = [
        {"benchmark": "fragmentation"} | task.run_of(name) | {"steps": arguments.steps, "allocator": allocator()}
        for name in arguments.contestants
    ]
    records = runs.carry_out(
        [[run] for run in planned],
        lambda group, told: [measured(task, group, told)],
        out=arguments.out,
        again=arguments.again,
        words=lambda run: f"{run['model']}, up to {run['batch']} images of {run['size']}, {run['contestant']}",
        found=lambda record: f"resident ÷ alive {record['ratio']:.2f}, last half {record['ratio_of_last_half']:.2f}",
        steps=2 * arguments.steps,
    )
    for record in records:
        print(json.dumps(record))


def allocator() -> str:
    """Return what allocates large blocks here, and in processes that are started from here."""
    return tables.C_LIBRARY if preload.counts() is None else "actnn"


def measured(task: Task, group: Group, told: Told) -> dict[str, Any]:
    """Return the peaks of one contestant's steps, resident and alive, and their ratios."""
    (run,) = group
    settings = {"task": task.settings, "contestant": run["contestant"], "steps": run["steps"]}
    live, held = (
        processes.call(f"{__name__}:peaks", settings, environment=environment, told=told)
        # what lives is counted with the C library's allocator in any case
        for environment in (preload.without(os.environ) | MALLOC_SETTINGS, {})
    )
    faults, live, held = held["faults"], live["bytes"], held["bytes"]
    half = len(live) // 2
    return {
        "faults": faults,
        "live_bytes": live,
        "resident_bytes": held,
        "ratio": round(max(held) / max(live), 3),
        "ratio_of_last_half": round(sum(held[half:]) / sum(live[half:]), 3),
    }


def peaks(settings: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Return the peak of each step above what a few small steps left."""
    task = Task.of(settings["task"])
    trained = trainee(shaped(task, 2, LEAST_SIDE, LEAST_SIDE), settings["contestant"])
    for _ in range(WARM_UP_STEPS):
        trained.step(keep_gradients=True)
    before = resident("VmRSS")
    found = []
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for shape in shapes(task, settings["steps"]):
        reset_peak()
        trained.load(shaped(task, *shape))
        trained.step(keep_gradients=True)
        found.append(resident("VmHWM") - before)
        tell(1)
    return {
        "bytes": found,
        "faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults,
    }


def shapes(task: Task, steps: int) -> list[tuple[int, int, int]]:
    """Return batch, height and width of each step, the same for every contestant."""
    draw = random.Random(0)
    return [
        (
            draw.randint(2, task.batch),
            draw.randrange(LEAST_SIDE, task.height + 1, SIDES),
            draw.randrange(LEAST_SIDE, task.width + 1, SIDES),
        )
        for _ in range(steps)
    ]


def shaped(task: Task, batch: int, height: int, width: int) -> Task:
    """Return the same task with a batch of another shape."""
    return Task.of(task.settings | {"batch": batch, "height": height, "width": width})
