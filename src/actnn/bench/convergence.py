"""``actnn bench convergence``: the accuracy that training reaches at every level and width, over several seeds.

A run is one level, width and seed; equal seeds have equal initial weights and see equal batches in all cells. Each
finished run is appended to a file, and the same command goes on where an earlier one was interrupted: it skips the
runs that are recorded there with all settings equal. Commands with different seeds may share the file.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from actnn.bench import accuracies
from actnn.bench.accuracies import EXACT, EXACT_BITS, LEVELS, PER_SAMPLE, WIDTHS
from actnn.bench.arguments import add_recording, different, one_of, parser_of, picture, several
from actnn.bench.drawing import plot
from actnn.console.arguments import MOST_THREADS, at_least, rate, width
from actnn.console.extras import require
from actnn.measuring import runs, timing
from actnn.measuring.records import Record
from actnn.measuring.runs import Settings
from actnn.workloads import datasets
from actnn.workloads.small_resnet import small_resnet
from actnn.workloads.training import PEAK_RATE, Recipe, Training, compressed, step_count

OUT = Path("results/convergence.jsonl")
# a network that guesses gets one image in ten right, give or take
CHANCE = 1.5 / datasets.CLASSES
EXAMPLE = "actnn bench convergence --images 12000 --epochs 6 --seeds 0,1,2 --plot results/convergence.svg"


def main(argv: Sequence[str]) -> int:
    """Train what is not recorded yet and print the table; 130 when interrupted, with all finished runs recorded."""
    arguments = parse(argv)
    data = datasets.chosen(arguments.data, arguments.data_dir)
    modules = ["torch"] + ["sklearn"] * (data == "digits") + ["matplotlib"] * (arguments.plot is not None)
    require("this benchmark", modules)
    return runs.interruptible(arguments.out, lambda: show(arguments, train_all(arguments, data)))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("convergence", __doc__, EXAMPLE)
    parser.add_argument("--data", choices=("auto", "fashion-mnist", "digits"), default="auto")
    parser.add_argument("--data-dir", type=Path, help=f"folder of Fashion-MNIST (default: {datasets.FASHION_MNIST})")
    parser.add_argument("--images", type=at_least(2), help="learn from only so many images (default: all)")
    parser.add_argument("--epochs", type=at_least(1), default=4, help="passes over the images (default: 4)")
    parser.add_argument("--batch", type=at_least(2), default=128, help="images in a step (default: 128)")
    parser.add_argument("--rate", type=rate, default=PEAK_RATE, help=f"peak learning rate (default: {PEAK_RATE})")
    parser.add_argument("--seeds", type=different(at_least(0)), default=[0, 1, 2], help="default: 0,1,2")
    parser.add_argument(
        "--levels", type=different(one_of(LEVELS)), default=list(LEVELS), help=f"default: {','.join(LEVELS)}"
    )
    parser.add_argument(
        "--bits",
        type=different(width),
        default=list(WIDTHS),
        help=f"average widths (default: {','.join(map(str, WIDTHS))}); {EXACT} has none, L2 the whole ones",
    )
    parser.add_argument(
        "--channels", type=several(at_least(1)), default=[8, 16, 32], help="width of each stage (default: 8,16,32)"
    )
    parser.add_argument(
        "--threads",
        type=at_least(1, MOST_THREADS),
        default=1,
        help="of one run (default: 1); to use more cores, start commands with different seeds side by side",
    )
    add_recording(parser, OUT)
    parser.add_argument("--plot", type=picture, help="draw the table into this .svg or .png file")
    arguments = parser.parse_args(argv)
    if not list(places(arguments)):
        parser.error("no run is left: L2 takes whole numbers of bits only")
    return arguments


def places(arguments: Namespace) -> Iterator[tuple[str, float]]:
    """Yield the level and width of every cell that exists."""
    for name in arguments.levels:
        for bits in [EXACT_BITS] if name == EXACT else arguments.bits:
            if name in PER_SAMPLE or float(bits).is_integer():
                yield name, bits


def planned(arguments: Namespace, data: str, images: int) -> list[Settings]:
    """Return the settings of every run: a whole table for each seed in turn, so that one is complete early."""
    common = {
        "benchmark": "convergence",
        "data": data,
        "model": "small_resnet",
        "channels": arguments.channels,
        "images": images,
        "epochs": arguments.epochs,
        "batch": arguments.batch,
        "rate": arguments.rate,
    }
    return [
        common | {"level": name, "bits": bits, "seed": seed}
        for seed in arguments.seeds
        for name, bits in places(arguments)
    ]


def train_all(arguments: Namespace, data: str) -> list[Record]:
    """Train all runs that are not recorded yet; return the records of all."""
    images = datasets.load(data, arguments.data_dir)
    images = images.limited(arguments.images or images.train.image_count)
    planned_runs = planned(arguments, data, images.train.image_count)
    return runs.carry_out(
        [[run] for run in planned_runs],
        lambda group, told: [train(group[0], images, arguments.threads, lambda: told(1))],
        out=arguments.out,
        again=arguments.again,
        # hours of training stay true when something else changes
        any_commit=True,
        steps=step_count(planned_runs[0]["images"], arguments.batch, arguments.epochs),
        words=lambda run: f"{run['level']}, {run['bits']:g} bits, seed {run['seed']}",
        found=lambda record: f"{record['accuracy']:.2%} in {record['seconds']:.0f} s",
    )


def train(run: Settings, images: datasets.DataSet, threads: int, after_step: Callable[[], object]) -> Record:
    """Carry out one run and return what it reached."""
    import torch

    torch.set_num_threads(threads)
    found: Record = {"threads": threads}
    (seconds,) = timing.timed(lambda: found.update(reached(run, images, after_step)))
    return found | {"seconds": round(seconds, 2)}


def reached(run: Settings, images: datasets.DataSet, after_step: Callable[[], object]) -> Record:
    """Train a network from its beginning; return its accuracy, loss and average width."""
    model = build(run)
    training = Training(
        model,
        images,
        batch=run["batch"],
        steps=step_count(run["images"], run["batch"], run["epochs"]),
        seed=run["seed"],
        recipe=Recipe(rate=run["rate"]),
        before_step=model.set_samples if run["level"] in PER_SAMPLE else lambda positions: None,
        after_step=after_step,
    )
    loss = math.nan
    for _ in range(run["epochs"]):
        loss = training.epoch()
        if not math.isfinite(loss):
            break
    average_bits = None if run["level"] == EXACT else model.report().average_bits
    accuracy = training.score()
    return {
        "accuracy": accuracy,
        # JSON has no word for what is not finite
        "loss": loss if math.isfinite(loss) else None,
        "average_bits": average_bits,
        "diverged": not math.isfinite(loss) or accuracy <= CHANCE,
    }


def build(run: Settings) -> Any:
    """Return the network of a run, converted unless it is trained exactly."""
    import torch

    torch.manual_seed(run["seed"])
    model = small_resnet(datasets.CLASSES, run["channels"])
    if run["level"] == EXACT:
        return model
    settings = {"use_gradient": True} if run["level"] in PER_SAMPLE else {}
    return compressed(model, run["level"], run["bits"], seed=run["seed"], **settings)


def show(arguments: Namespace, records: Sequence[Record]) -> None:
    """Print the table of the recorded runs, and draw it."""
    found = accuracies.cells(records)
    title = accuracies.described(records[0])
    columns = accuracies.widths(records)
    lines = [["", *(f"{bits:g}" for bits in columns)], *accuracies.rows(found, columns)]
    seeds = ", ".join(map(str, arguments.seeds))
    over = f"mean ± standard deviation over seeds {seeds}" if len(arguments.seeds) > 1 else f"seed {seeds}"
    print(f"test accuracy in percent by bits, {over}")
    print(f"{title}\n\n{accuracies.aligned(lines)}")
    if arguments.plot is not None:
        plot(found, title, arguments.plot)
