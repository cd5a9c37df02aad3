"""``actnn bench convergence``: the accuracy that training reaches at every level and width, over several seeds.

A run is one level, width and seed; equal seeds have equal initial weights and see equal batches in all cells. Each
finished run is appended to a file, and the same command goes on where an earlier one was interrupted: it skips the
runs that are recorded there with all settings equal. Commands with different seeds may share the file.
"""

from __future__ import annotations

import math
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actnn.bench import accuracies, harness
from actnn.bench.accuracies import EXACT, EXACT_BITS, LEVELS, PER_SAMPLE, WIDTHS
from actnn.bench.plots import FORMATS, plot
from actnn.cli import datasets
from actnn.cli.arguments import Parser, at_least
from actnn.cli.extras import require
from actnn.cli.progress import progress_bars
from actnn.cli.small_resnet import small_resnet
from actnn.cli.training import PEAK_RATE, Recipe, Training, compressed, step_count
from actnn.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

OUT = Path("results/convergence.jsonl")
INTERRUPTED = 130
# a network that guesses gets one image in ten right, give or take
CHANCE = 1.5 / datasets.CLASSES
EXAMPLE = "actnn bench convergence --images 12000 --epochs 6 --seeds 0,1,2 --plot results/convergence.svg"

Settings = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Train what is not recorded yet and print the table; 130 when interrupted, with all finished runs recorded."""
    arguments = parse(argv)
    data = datasets.chosen(arguments.data, arguments.data_dir)
    modules = ["torch", "rich"] + ["sklearn"] * (data == "digits") + ["matplotlib"] * (arguments.plot is not None)
    require("this benchmark", modules)
    try:
        runs = train_all(arguments, data)
    except KeyboardInterrupt:
        print(
            f"actnn: interrupted; finished runs are in {arguments.out}, and the same command goes on from there.",
            file=sys.stderr,
        )
        return INTERRUPTED
    recorded = harness.records(arguments.out)
    show(arguments, [newest(recorded, run) for run in runs])
    return 0


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    summary, _, details = __doc__.partition(": ")[2].partition("\n\n")
    parser = Parser(prog="actnn bench convergence", description=f"{summary} {details}", epilog=f"example: {EXAMPLE}")
    parser.add_argument("--data", choices=("auto", "fashion-mnist", "digits"), default="auto")
    parser.add_argument("--data-dir", type=Path, help=f"folder of Fashion-MNIST (default: {datasets.FASHION_MNIST})")
    parser.add_argument("--images", type=at_least(2), help="learn from only so many images (default: all)")
    parser.add_argument("--epochs", type=at_least(1), default=4, help="passes over the images (default: 4)")
    parser.add_argument("--batch", type=at_least(2), default=128, help="images in a step (default: 128)")
    parser.add_argument("--rate", type=rate, default=PEAK_RATE, help=f"peak learning rate (default: {PEAK_RATE})")
    parser.add_argument("--seeds", type=different(at_least(0)), default=[0, 1, 2], help="default: 0,1,2")
    parser.add_argument("--levels", type=different(level), default=list(LEVELS), help=f"default: {','.join(LEVELS)}")
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
        type=at_least(1),
        default=1,
        help="of one run (default: 1); to use more cores, start commands with different seeds side by side",
    )
    parser.add_argument("--out", type=Path, default=OUT, help=f"append runs to this file (default: {OUT})")
    parser.add_argument("--plot", type=picture, help="draw the table into this .svg or .png file")
    arguments = parser.parse_args(argv)
    if not list(places(arguments)):
        parser.error("no run is left: L2 takes whole numbers of bits only")
    return arguments


def several(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a reader of comma-separated values."""
    return lambda text: [read(part) for part in text.split(",")]


def different(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a reader of comma-separated values that leaves out repetitions."""
    return lambda text: list(dict.fromkeys(several(read)(text)))


def level(text: str) -> str:
    """Read a level."""
    if text not in LEVELS:
        raise ArgumentTypeError(f"{text!r} is not one of {', '.join(LEVELS)}")
    return text


def width(text: str) -> float:
    """Read an average width."""
    bits = number(text)
    if not 1 <= bits <= 8:
        raise ArgumentTypeError(f"{text!r} is not a width from 1 to 8 bits")
    return int(bits) if bits.is_integer() else bits


def rate(text: str) -> float:
    """Read a learning rate."""
    if not 0 < number(text) < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a learning rate above 0")
    return number(text)


def number(text: str) -> float:
    """Return a number, or one that compares with none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def picture(text: str) -> Path:
    """Read the path of a picture."""
    if Path(text).suffix not in FORMATS:
        raise ArgumentTypeError(f"{text!r} does not end in {' or '.join(FORMATS)}")
    return Path(text)


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


def train_all(arguments: Namespace, data: str) -> list[Settings]:
    """Train and record all runs that are not recorded yet; return the settings of all."""
    from rich.console import Console

    images = datasets.load(data, arguments.data_dir)
    images = images.limited(arguments.images or len(images.train.images))
    runs = planned(arguments, data, len(images.train.images))
    recorded = harness.records(writable(arguments.out))
    left = [run for run in runs if newest(recorded, run) is None]
    machine = harness.machine()
    console = Console(stderr=True)
    # a line for each finished run does where nobody watches
    with progress_bars(console=console, transient=True, disable=not console.is_terminal) as progress:
        every = progress.add_task("runs", total=len(runs), completed=len(runs) - len(left))
        for run in left:
            words = f"{run['level']}, {run['bits']:g} bits, seed {run['seed']}"
            bar = progress.add_task(words, total=step_count(run["images"], run["batch"], run["epochs"]))
            found = train(run, images, arguments.threads, lambda bar=bar: progress.advance(bar))
            harness.append(run | found | {"machine": machine}, arguments.out)
            console.print(f"{words}: {found['accuracy']:.2%} in {found['seconds']:.0f} s", highlight=False)
            progress.remove_task(bar)
            progress.advance(every)
    return runs


def writable(out: Path) -> Path:
    """Raise ConfigError unless runs can be recorded: a run is too dear to be lost afterwards."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.open("a").close()
    except OSError as problem:
        raise ConfigError(f"--out {out} cannot be written: {problem}. Name another file.") from problem
    return out


def newest(recorded: Sequence[Settings], run: Settings) -> Settings | None:
    """Return the last record whose settings are all those of a run."""
    same = (record for record in reversed(recorded) if all(record.get(name) == run[name] for name in run))
    return next(same, None)


def train(run: Settings, images: datasets.DataSet, threads: int, after_step: Callable[[], object]) -> Settings:
    """Carry out one run and return what it reached."""
    import torch

    torch.set_num_threads(threads)
    begin = time.perf_counter()
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
    accuracy = training.accuracy()
    return {
        "accuracy": accuracy,
        # JSON has no word for what is not finite
        "loss": loss if math.isfinite(loss) else None,
        "average_bits": average_bits,
        "diverged": not math.isfinite(loss) or accuracy <= CHANCE,
        "seconds": round(time.perf_counter() - begin, 2),
        "threads": threads,
    }


def build(run: Settings) -> nn.Module:
    """Return the network of a run, converted unless it is trained exactly."""
    import torch

    torch.manual_seed(run["seed"])
    model = small_resnet(datasets.CLASSES, run["channels"])
    if run["level"] == EXACT:
        return model
    settings = {"use_gradient": True} if run["level"] in PER_SAMPLE else {}
    return compressed(model, run["level"], run["bits"], seed=run["seed"], **settings)


def show(arguments: Namespace, records: Sequence[Settings]) -> None:
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
