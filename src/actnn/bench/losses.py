"""``actnn bench losses``: the loss of real models over their first steps, compressed against exact, in each framework.

A run is one contestant and seed in a process of its own; contestants of equal seeds have equal initial weights and see
equal batches: of Fashion-MNIST or scikit-learn's digits, resized, or of a text, byte by byte. The contestant ``floor``
is exact training with the samples of every batch in another order: what rounding alone does to the loss. Commands with
different seeds may share the file.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actnn.bench import tables
from actnn.bench.arguments import add_recording, add_table, add_training, different, one_of, parser_of, size, task_of
from actnn.console.arguments import at_least, rate
from actnn.console.extras import require
from actnn.errors import ConfigError
from actnn.measuring import processes, runs
from actnn.measuring.processes import Told
from actnn.workloads import datasets, language, texts
from actnn.workloads.frameworks import trainee
from actnn.workloads.frameworks.trainee import ADAMW, SGD, Trainee
from actnn.workloads.task import CONTESTANTS, EXACT, FLOOR, Task

if TYPE_CHECKING:
    from numpy.typing import NDArray

# which share of the steps is the beginning, and which the end
SHARE = 5
DIGITS = 6
# what is trained where nobody says it, small enough for many seeds
MODELS = {
    "fashion-mnist": "resnet18",
    "digits": "timm:vit_tiny_patch16_224:depth=3,embed_dim=64,num_heads=4,img_size=32,patch_size=4",
    texts.TEXT: "gpt2:layers=3,width=64,heads=4,tokens=64,vocabulary=256",
}
EXAMPLE = "actnn bench losses --data text --optimizer adamw --rate 0.001 --contestants exact,floor,L3 --table"


def main(argv: Sequence[str]) -> int:
    """Train what is not recorded yet and print one JSON line a run."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("losses", __doc__, EXAMPLE)
    add_training(parser, contestants=(EXACT, "L3"), model=None, known=(FLOOR, *CONTESTANTS))
    parser.add_argument("--model", help="default: a small one of each set, resnet18 for fashion-mnist")
    parser.add_argument(
        "--data",
        type=data,
        default="fashion-mnist",
        help=f"fashion-mnist, digits, {texts.TEXT} (Python's documentation) or {texts.FILE}FILE (default: %(default)s)",
    )
    parser.add_argument(
        "--data-dir", type=Path, default=datasets.FASHION_MNIST, help="folder of Fashion-MNIST (default: %(default)s)"
    )
    parser.add_argument("--batch", type=at_least(2), default=16)
    parser.add_argument("--size", type=size, help="of an image (default: 64, 32 of digits)")
    parser.add_argument("--steps", type=at_least(SHARE), default=100)
    parser.add_argument("--rate", type=rate, default=Task.rate, help="learning rate (default: %(default)s)")
    parser.add_argument("--optimizer", type=one_of((SGD, ADAMW)), default=SGD, help="sgd or adamw (default: sgd)")
    parser.add_argument("--seeds", type=different(at_least(0)), default=[0, 1, 2], help="default: 0,1,2")
    add_recording(parser)
    add_table(parser)
    arguments = parser.parse_args(argv)
    of_text = texts.is_text(arguments.data)
    arguments.model = arguments.model or MODELS[texts.TEXT if of_text else arguments.data]
    if of_text != (language.find(arguments.model) is not None):
        raise ConfigError(
            f"{arguments.model} does not learn from --data {arguments.data}: expected a model of language for texts, "
            "one for images otherwise."
        )
    if arguments.size is None and not of_text:
        arguments.size = (32, 32) if arguments.data == "digits" else (64, 64)
    return arguments


def data(text: str) -> str:
    """Read what is learnt from."""
    if texts.is_text(text):
        return text
    return one_of(("fashion-mnist", "digits"))(text)


def measure_all(arguments: Namespace) -> None:
    """Train all contestants, seed by seed."""
    own = {"steps": arguments.steps, "rate": arguments.rate}
    if arguments.data != "fashion-mnist":
        own["data"] = arguments.data
    fixed = {"batch": arguments.batch, "rate": arguments.rate, "optimizer": arguments.optimizer}

    def task(seed: int) -> Task:
        return task_of(arguments, seed=seed, label_count=datasets.CLASSES, **fixed)

    planned = [
        {"benchmark": "losses"} | task(seed).run_of(name) | own | {"seed": seed}
        for seed in arguments.seeds
        for name in arguments.contestants
    ]

    def measured(group: runs.Group, told: Told) -> list[dict[str, Any]]:
        (run,) = group
        settings = {"task": task(run["seed"]).settings, "contestant": run["contestant"], "steps": run["steps"]}
        settings |= {"folder": str(arguments.data_dir), "data": arguments.data}
        return [summary(processes.call(f"{__name__}:train", settings, told=told)["losses"])]

    runs.print_all(
        [[run] for run in planned],
        measured,
        arguments,
        table=tables.losses if arguments.table else None,
        words=lambda run: f"{run['model']}, {run['contestant']}, seed {run['seed']}",
        found=lambda record: f"loss {record['first']:.3f}, at the end {record['last']:.3f}",
        steps=arguments.steps,
        # a loss stays true when something else changes
        any_commit=True,
    )


def train(settings: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Return the loss of each step of one contestant."""
    task = Task.of(settings["task"])
    source = source_of(settings, task)
    draw, mix = np.random.default_rng(task.seed), np.random.default_rng([task.seed, 1])
    trained = trainee(task, settings["contestant"])
    losses = []
    for _ in range(settings["steps"]):
        # drawn by all, used by one
        order = mix.permutation(task.batch)
        source(trained, draw, order if settings["contestant"] == FLOOR else np.arange(task.batch))
        losses.append(trained.step())
        if not np.isfinite(losses[-1]):
            raise ConfigError(
                f"the loss of {settings['contestant']} became {losses[-1]} in step {len(losses)}: use a lower --rate."
            )
        tell(1)
    return {"losses": losses}


def source_of(settings: Mapping[str, Any], task: Task) -> Callable[[Trainee, np.random.Generator, Any], None]:
    """Return what draws a batch, puts it in an order and hands it to a contestant."""
    name = settings.get("data", "fashion-mnist")
    if texts.is_text(name):
        text, model = texts.load(name), language.find(task.model)
        length = 0 if model is None else model.tokens

        def read(trained: Trainee, draw: np.random.Generator, order: Any) -> None:
            trained.read(texts.pieces(text, task.batch, length, draw)[order])

        return read
    pixels, labels = digits() if name == "digits" else fashion(Path(settings["folder"]), task.classes)

    def take(trained: Trainee, draw: np.random.Generator, order: Any) -> None:
        chosen = draw.integers(len(pixels), size=task.batch)[order]
        trained.take(resized(pixels[chosen], task.height, task.width), labels[chosen].astype(np.int64))

    return take


def fashion(folder: Path, classes: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return images and labels of Fashion-MNIST."""
    return datasets.pixels_and_labels(folder, "train", classes)


def digits() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return scikit-learn's digits as bytes, and their labels."""
    require("--data digits", ["sklearn"])
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return (pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), labels


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
