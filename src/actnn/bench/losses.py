"""``actnn bench losses``: the loss of real models over their first steps, compressed against exact, in each framework.

A run is one contestant and seed in a process of its own; contestants of equal seeds have equal initial weights and see
equal batches of Fashion-MNIST, resized. Commands with different seeds may share the file.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actnn.bench.arguments import add_recording, add_training, different, parser_of, size, task_of
from actnn.console.arguments import at_least, rate
from actnn.errors import ConfigError
from actnn.measuring import processes, runs
from actnn.measuring.processes import Told
from actnn.workloads import datasets
from actnn.workloads.frameworks import trainee
from actnn.workloads.task import EXACT, Task

if TYPE_CHECKING:
    from numpy.typing import NDArray

# which share of the steps is the beginning, and which the end
SHARE = 5
DIGITS = 4
EXAMPLE = "actnn bench losses --framework paddle --model densenet121 --size 64 --seeds 0,1,2 --contestants exact,L3"


def main(argv: Sequence[str]) -> int:
    """Train what is not recorded yet and print one JSON line a run."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("losses", __doc__, EXAMPLE)
    add_training(parser, contestants=(EXACT, "L3"), model="resnet18")
    parser.add_argument(
        "--data-dir", type=Path, default=datasets.FASHION_MNIST, help="folder of Fashion-MNIST (default: %(default)s)"
    )
    parser.add_argument("--batch", type=at_least(2), default=16)
    parser.add_argument("--size", type=size, default=(64, 64), help="of an image (default: 64)")
    parser.add_argument("--steps", type=at_least(SHARE), default=100)
    parser.add_argument("--rate", type=rate, default=Task.rate, help="learning rate (default: %(default)s)")
    parser.add_argument("--seeds", type=different(at_least(0)), default=[0, 1, 2], help="default: 0,1,2")
    add_recording(parser)
    return parser.parse_args(argv)


def measure_all(arguments: Namespace) -> None:
    """Train all contestants, seed by seed."""
    own = {"steps": arguments.steps, "rate": arguments.rate}

    def task(seed: int) -> Task:
        return task_of(arguments, batch=arguments.batch, seed=seed, rate=arguments.rate, label_count=datasets.CLASSES)

    planned = [
        {"benchmark": "losses"} | task(seed).run_of(name) | own | {"seed": seed}
        for seed in arguments.seeds
        for name in arguments.contestants
    ]

    def measured(group: runs.Group, told: Told) -> list[dict[str, Any]]:
        (run,) = group
        settings = {"task": task(run["seed"]).settings, "contestant": run["contestant"], "steps": run["steps"]}
        settings["folder"] = str(arguments.data_dir)
        return [summary(processes.call(f"{__name__}:train", settings, told=told)["losses"])]

    runs.print_all(
        [[run] for run in planned],
        measured,
        arguments,
        words=lambda run: f"{run['model']}, {run['contestant']}, seed {run['seed']}",
        found=lambda record: f"loss {record['first']:.3f}, at the end {record['last']:.3f}",
        steps=arguments.steps,
        # a loss stays true when something else changes
        any_commit=True,
    )


def train(settings: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Return the loss of each step of one contestant."""
    task = Task.of(settings["task"])
    pixels, labels = datasets.pixels_and_labels(Path(settings["folder"]), "train", task.classes)
    draw = np.random.default_rng(task.seed)
    trained = trainee(task, settings["contestant"])
    losses = []
    for _ in range(settings["steps"]):
        chosen = draw.integers(len(pixels), size=task.batch)
        trained.take(resized(pixels[chosen], task.height, task.width), labels[chosen].astype(np.int64))
        losses.append(trained.step())
        if not np.isfinite(losses[-1]):
            raise ConfigError(
                f"the loss of {settings['contestant']} became {losses[-1]} in step {len(losses)}: use a lower --rate."
            )
        tell(1)
    return {"losses": losses}


def resized(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.float32]:
    """Return grey images ``[count, height, width]`` in three channels from -1 to 1, of another size."""
    rows, columns = (np.arange(side) * old // side for side, old in zip((height, width), pixels.shape[1:], strict=True))
    grey = pixels[:, None, rows[:, None], columns].repeat(3, axis=1)
    return grey.astype(np.float32) / np.float32(127.5) - 1


def summary(losses: Sequence[float]) -> dict[str, Any]:
    """Return the mean loss of the first and of the last steps, and all losses."""
    count = len(losses) // SHARE
    return {
        "first": round(statistics.fmean(losses[:count]), DIGITS),
        "last": round(statistics.fmean(losses[-count:]), DIGITS),
        "losses": [round(loss, DIGITS) for loss in losses],
    }
