"""``actnn bench tasks``: what every task reaches with every contestant, over several seeds.

A run is one task, contestant and seed in a process of its own, one after the other; contestants of equal seeds have
equal initial weights and see equal batches in equal order. Finished runs are appended to a file, and the same command
goes on where an earlier one was interrupted. What is trained stands in a file of TOML with a table for each task, in
the words of ``actnn train``: task, data, model, epochs, batch, rate and others.
"""

from __future__ import annotations

import os
import statistics
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actnn.amounts import readable
from actnn.bench import task_plan, task_results
from actnn.bench.accuracies import aligned
from actnn.bench.arguments import add_recording, different, parser_of
from actnn.bench.task_training import STEPS_WEIGHED
from actnn.console.arguments import MOST_THREADS, at_least
from actnn.errors import ConfigError
from actnn.measuring import processes, runs
from actnn.measuring.memory import MALLOC_SETTINGS
from actnn.measuring.processes import Told
from actnn.measuring.records import Record
from actnn.workloads import tasks
from actnn.workloads.contestant import Contestant

OUT = Path("results/tasks.jsonl")
WANTED = ("exact", "L2:4", "L3:2", "L3:1.25", "original", "checkpoint")
EXAMPLE = "actnn bench tasks --plan tasks.toml --contestants exact,L3:2,original --seeds 0,1,2"


def main(argv: Sequence[str]) -> int:
    """Train what is not recorded yet and print the table; 130 when interrupted, with all finished runs recorded."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: show(train_all(arguments)))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("tasks", __doc__, EXAMPLE)
    parser.add_argument("--plan", type=Path, required=True, help="file of TOML with a table for each task")
    parser.add_argument("--only", type=different(str), help="comma-separated: tasks of the plan (default: all)")
    parser.add_argument(
        "--contestants",
        type=different(contestant),
        default=list(map(Contestant.of, WANTED)),
        help=f"comma-separated, with a width where there is one (default: {','.join(WANTED)})",
    )
    parser.add_argument("--seeds", type=different(at_least(0)), default=[0, 1, 2], help="default: 0,1,2")
    parser.add_argument("--threads", type=at_least(1, MOST_THREADS), default=os.cpu_count() or 1)
    add_recording(parser, OUT)
    return parser.parse_args(argv)


def contestant(text: str) -> Contestant:
    """Read a contestant."""
    try:
        return Contestant.of(text)
    except ConfigError as problem:
        raise ArgumentTypeError(str(problem)) from None


def train_all(arguments: Namespace) -> list[Record]:
    """Train all runs that are not recorded yet; return the records of all."""
    plan = task_plan.read(arguments.plan)
    names = arguments.only or list(plan)
    if strange := [name for name in names if name not in plan]:
        raise ConfigError(f"--only {strange[0]}: the plan {arguments.plan} has {', '.join(plan)}.")
    # all contestants of a task and seed before the next seed, so that a whole row is complete early
    planned = [
        run_of(name, plan[name], each, seed, arguments.threads)
        for seed in arguments.seeds
        for name in names
        for each in arguments.contestants
    ]
    clock = Clock(len(planned))
    return runs.carry_out(
        [[run] for run in planned],
        lambda group, told: [clock.timed(lambda: measured(group[0], told))],
        out=arguments.out,
        again=arguments.again,
        # hours of training stay true when something else changes
        any_commit=True,
        words=lambda run: f"{run['name']}, {task_results.contestant_of(run)}, seed {run['seed']}",
        found=lambda record: f"{described(record)}; {clock.left()}",
        done=clock.skip,
    )


def run_of(name: str, task: Mapping[str, Any], who: Contestant, seed: int, threads: int) -> dict[str, Any]:
    """Return the settings of a run, which its record repeats."""
    chosen = {"contestant": who.name, "bits": who.bits, "seed": seed, "threads": threads}
    return {"benchmark": "tasks", "name": name} | dict(task) | chosen


def measured(run: Mapping[str, Any], told: Told) -> dict[str, Any]:
    """Return what one run reached, and what a step of it takes in memory, from a process for each."""
    task = {key: run[key] for key in (*task_plan.NEEDED, *task_plan.DEFAULTS)}
    settings = {key: run[key] for key in ("contestant", "bits", "seed", "threads")} | {"task": task}
    found = processes.call("actnn.bench.task_training:train", settings, told=told)
    weighed = {**settings, "steps": STEPS_WEIGHED}
    memory = processes.call("actnn.bench.task_training:weigh", weighed, environment=MALLOC_SETTINGS, told=told)
    return {"metric": tasks.find(run["task"]).metric.name} | found | memory


def described(record: Mapping[str, Any]) -> str:
    """Return the figures of a record that matter most."""
    score = task_results.metric_of(record).shown(record["score"])
    return f"{score} in {record['seconds']:.0f} s, {readable(record['kept_bytes'])} kept"


class Clock:
    """Tells how long the runs that are left will take, by those that were trained."""

    def __init__(self, count: int) -> None:
        self._left, self._seconds = count, list[float]()

    def timed(self, work: Any) -> Any:
        """Return what some work gives, and note how long it took."""
        begin = time.monotonic()
        found = work()
        self._seconds.append(time.monotonic() - begin)
        self._left -= 1
        return found

    def skip(self) -> None:
        """Note that a run was there already."""
        self._left -= 1

    def left(self) -> str:
        """Return in words what is left."""
        if not self._left:
            return "all done"
        minutes = self._left * statistics.fmean(self._seconds) / 60
        return f"{self._left} runs left, about {minutes:.0f} min"


def show(records: Sequence[Record]) -> None:
    """Print the table of the recorded runs."""
    heading, rows = task_results.table(records)
    print(aligned([heading, *rows]))
