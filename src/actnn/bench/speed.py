"""``actnn bench speed``: images a second by batch size, for exact training, checkpointing and every level.

Every turn of a contestant is a fresh process that may not have more than the memory limit (RLIMIT_DATA); contestants
take turns. One that does not fit is recorded as such, and is not tried with larger batches.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from actnn.bench import measurements
from actnn.bench.arguments import add_recording, add_training, different, parser_of, size, task_of
from actnn.console.arguments import amount, at_least
from actnn.measuring import memory, runs, timing
from actnn.measuring.processes import DoesNotFit, Told
from actnn.measuring.runs import Group
from actnn.workloads.task import CONTESTANTS, Task, words_of

WANTED = ("exact", "checkpoint", "L1", "L2", "L3", "L3.1", "L4", "L5")
BATCHES = (4, 8, 16, 32, 64, 128)
# a level learns in its first steps who reads its codes, and what noise does
WARM_UP_STEPS = 3
EXAMPLE = "actnn bench speed --model resnet50 --batches 4,8,16,32 --memory-limit 3GB"


def main(argv: Sequence[str]) -> int:
    """Measure all batch sizes and contestants and print one JSON line each."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("speed", __doc__, EXAMPLE)
    add_training(parser, contestants=[name for name in WANTED if name in CONTESTANTS])
    parser.add_argument(
        "--batches",
        type=different(at_least(1)),
        default=list(BATCHES),
        help=f"comma-separated (default: {','.join(map(str, BATCHES))})",
    )
    parser.add_argument("--size", type=size, help="of an image, such as 224 or 512x1024 (default: that of the paper)")
    parser.add_argument("--memory-limit", type=amount, default=memory.machine_total(), help="default: the machine's")
    parser.add_argument("--rounds", type=at_least(1), default=2, help="turns of each contestant (default: 2)")
    parser.add_argument("--steps", type=at_least(1), default=2, help="timed steps of a turn (default: 2)")
    add_recording(parser)
    return parser.parse_args(argv)


def measure_all(arguments: Namespace) -> None:
    """Measure one batch size after the other; the contestants of one belong together."""
    tasks = {batch: task_of(arguments, batch=batch) for batch in sorted(arguments.batches)}
    common = {"memory_limit": arguments.memory_limit, "rounds": arguments.rounds, "steps": arguments.steps}
    groups = [
        [{"benchmark": "speed"} | task.run_of(name) | common for name in arguments.contestants]
        for task in tasks.values()
    ]
    full: set[str] = set()
    runs.print_all(
        groups,
        lambda group, told: measured(tasks[group[0]["batch"]], group, full, told),
        arguments,
        words=words_of,
        found=described,
    )


def measured(task: Task, group: Group, full: set[str], told: Told) -> list[dict[str, Any]]:
    """Return the speed of each contestant; add those that do not fit to ``full``."""
    seconds: dict[str, list[float]] = {run["contestant"]: [] for run in group}
    for _ in range(group[0]["rounds"]):
        for name in seconds:
            if name not in full:
                seconds[name] += turn(task, name, group[0], full, told)
    return [figures(task.batch, each, name in full) for name, each in seconds.items()]


def turn(task: Task, name: str, run: Mapping[str, Any], full: set[str], told: Told) -> list[float]:
    """Return the seconds of the timed steps of one turn."""
    steps = WARM_UP_STEPS + run["steps"]
    try:
        options = {"contestant": name, "steps": steps, "data_limit": run["memory_limit"]}
        found = measurements.call("trial", task, told=told, **options)
    except DoesNotFit:
        full.add(name)
        return []
    taken: list[float] = found["seconds"]
    return taken[WARM_UP_STEPS:]


def figures(batch: int, seconds: list[float], full: bool) -> dict[str, Any]:
    """Return the figures of one contestant at one batch size."""
    if full:
        return {"fits": False}
    step = timing.summary(seconds)
    return {"fits": True, "step": step, "images_per_second": round(batch / step["seconds"], 3)}


def described(record: Mapping[str, Any]) -> str:
    """Return the figures of a record that matter most."""
    return f"{record['images_per_second']:.2f} images/s" if record["fits"] else "does not fit"
