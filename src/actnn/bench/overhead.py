"""``actnn bench overhead``: the host time that conversion adds to a training step, on tensors too small to count.

All contestants take turns in one process with one thread; a turn is a few steps, and its time is what the processor
worked for the process, whatever else the machine does. A leaf layer is a module of the plain model that holds no other.
"""

from __future__ import annotations

import math
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from actnn.bench.arguments import add_contestants, add_models, add_recording, parser_of, size, task_of
from actnn.console.arguments import at_least, width
from actnn.errors import UnsupportedError
from actnn.measuring import processes, runs, timing
from actnn.measuring.processes import Told
from actnn.measuring.runs import Group
from actnn.workloads import models
from actnn.workloads.frameworks import trainee
from actnn.workloads.task import EXACT, OF_WHOLE_PROCESS, Task, words_of

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "small_resnet")
SIZE = (32, 32)
CONTESTANTS = (EXACT, "L2", "L3")
# what a level learns in its first steps, and what frameworks allocate once, is no part of a step
WARM_UP_STEPS = 10
# Paddle reads it when it is imported
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
EXAMPLE = "actnn bench overhead --models resnet18,mobilenet_v2 --contestants exact,L3 --rounds 5"


def main(argv: Sequence[str]) -> int:
    """Measure all models and contestants and print one JSON line each."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments; exact training always takes part, since all others are compared with it."""
    parser = parser_of("overhead", __doc__, EXAMPLE)
    add_models(parser, MODELS)
    parser.set_defaults(models=None)
    add_contestants(parser, CONTESTANTS)
    parser.add_argument("--bits", type=width, default=2, help="average width of codes (default: 2)")
    parser.add_argument("--batch", type=at_least(2), default=2, help="examples in a step (default: 2)")
    parser.add_argument("--size", type=size, help="of an image (default: 32)")
    parser.add_argument("--rounds", type=at_least(1), default=15, help="turns of each contestant (default: 15)")
    parser.add_argument("--steps", type=at_least(1), default=5, help="steps of a turn (default: 5)")
    add_recording(parser)
    parser.set_defaults(threads=1)
    arguments = parser.parse_args(argv)
    disturbing = [name for name in arguments.contestants if name in OF_WHOLE_PROCESS]
    if disturbing:
        parser.error(f"{' and '.join(disturbing)} changes how the whole process works, others in turns with it too")
    arguments.contestants = list(dict.fromkeys((EXACT, *arguments.contestants)))
    return arguments


def measure_all(arguments: Namespace) -> None:
    """Measure one model after the other; the contestants of one are compared with each other."""
    names = arguments.models or available(arguments.framework)
    tasks = {name: small_task(arguments, name) for name in names}
    common = {"rounds": arguments.rounds, "steps": arguments.steps}
    groups = [
        [{"benchmark": "overhead"} | task.run_of(name) | common for name in arguments.contestants]
        for task in tasks.values()
    ]
    runs.print_all(
        groups,
        lambda group, told: measured(tasks[group[0]["model"]], group, told),
        arguments,
        words=words_of,
        found=described,
        steps=len(arguments.contestants) * (arguments.rounds + warm_up(arguments.steps)),
    )


def small_task(arguments: Namespace, model: str) -> Task:
    """Return a step on small images; how long texts are is for the name of a language model to say."""
    small = {} if arguments.size else dict(zip(("height", "width"), SIZE, strict=True))
    return task_of(arguments, model=model, batch=arguments.batch, **small)


def available(framework: str) -> list[str]:
    """Return the models to measure where nobody names any; say which are left out because a package is missing."""
    found = []
    for name in MODELS:
        try:
            if framework == "torch":
                build_without_memory(name)
        except UnsupportedError as problem:
            print(f"actnn bench overhead: {name} is left out: {problem}", file=sys.stderr)
        else:
            found.append(name)
    return found


def build_without_memory(name: str) -> None:
    """Build a model of torch whose tensors have shapes and no memory; raise what building it raises."""
    import torch

    with torch.device("meta"):
        models.build(name)


def measured(task: Task, group: Group, told: Told) -> list[dict[str, Any]]:
    """Return the figures of each contestant."""
    names = [run["contestant"] for run in group]
    settings = {"task": task.settings, "contestants": names, "rounds": group[0]["rounds"], "steps": group[0]["steps"]}
    found = processes.call(f"{__name__}:times", settings, environment=ONE_THREAD, told=told)
    return [figures(found["times"][name], found["times"][EXACT], found["leaf_layers"]) for name in names]


def times(settings: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Return the processor time of a step of all contestants, which take turns, and the leaf layers of their model."""
    task, steps = Task.of(settings["task"]), settings["steps"]
    trained = {name: trainee(task, name) for name in settings["contestants"]}

    def turn(name: str) -> None:
        for _ in range(steps):
            trained[name].step(keep_gradients=True)
        tell(name)

    turns = {name: lambda name=name: turn(name) for name in trained}
    seconds = timing.interleaved(turns, settings["rounds"], warm_up(steps), time.process_time)
    return {
        "leaf_layers": trained[EXACT].leaf_count(),
        "times": {name: timing.summary([each / steps for each in own]) for name, own in seconds.items()},
    }


def warm_up(steps: int) -> int:
    """Return how many turns of so many steps are not timed."""
    return math.ceil(WARM_UP_STEPS / steps)


def figures(step: Mapping[str, float], exact: Mapping[str, float], leaf_layers: int) -> dict[str, Any]:
    """Return the figures of one contestant: the time of a step, its ratio to exact training, and what a layer adds."""
    added = step["seconds"] - exact["seconds"]
    return {
        "step": dict(step),
        "milliseconds": round(1e3 * step["seconds"], 3),
        "time_ratio": round(step["seconds"] / exact["seconds"], 4),
        "leaf_layers": leaf_layers,
        "added_milliseconds_per_layer": round(1e3 * added / leaf_layers, 4),
    }


def described(record: Mapping[str, Any]) -> str:
    """Return the figures of a record that matter most."""
    added = f"{record['added_milliseconds_per_layer']:.3f} ms a layer"
    return f"{record['milliseconds']:.1f} ms a step, {record['time_ratio']:.2f} of exact training's, {added}"
