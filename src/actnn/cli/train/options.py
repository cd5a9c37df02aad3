"""The arguments of ``actnn train``, read into the settings of a run and the options of how it is carried out."""

from __future__ import annotations

import os
import re
from argparse import SUPPRESS, ArgumentTypeError, BooleanOptionalAction, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from actnn.console.arguments import LARGEST, MOST_THREADS, Parser, amount, at_least, folder, number_from, width
from actnn.settings import LEVELS
from actnn.workloads import models
from actnn.workloads.images import IDX, SIZE
from actnn.workloads.processes import WAYS
from actnn.workloads.runs.settings import Every, Options, Settings
from actnn.workloads.tasks import CLASSIFICATION, TASKS
from actnn.workloads.training import OPTIMIZERS, PEAK_RATE, SCHEDULES

EXAMPLE = "actnn train --data digits --model small_resnet --level L3 --epochs 2 --out runs/digits"
DESCRIPTION = """\
Train with compressed activations, for one of several tasks. A run that was killed or interrupted goes on with the same
command and --resume, and ends with the very weights that it would have had anyway."""
MOST_SIZE = 16384
MOMENTUM, WARM_UP = 0.9, 0.1
MOST_SEED = 2**63 - 1


class Default(NamedTuple):
    """What an optimizer has where nothing is given."""

    rate: float
    decay: float


DEFAULTS = {"sgd": Default(PEAK_RATE, 5e-4), "adamw": Default(1e-3, 0.05)}

positive = number_from(5e-324, LARGEST, f"a number above 0 and up to {LARGEST:g}")
share = number_from(0, 0.999, "a share from 0 to 0.999")


def parse(argv: Sequence[str]) -> tuple[Settings, Options]:
    """Read the arguments into the settings of a run and its options."""
    parser = Parser(
        prog="actnn train",
        description=DESCRIPTION,
        epilog=f"example:\n  {EXAMPLE}\n  {EXAMPLE} --resume",
        formatter_class=RawDescriptionHelpFormatter,
        argument_default=SUPPRESS,
    )
    add_data(parser)
    add_model(parser)
    add_recipe(parser)
    add_run(parser)
    given = vars(parser.parse_args(argv))
    default = DEFAULTS[given["optimizer"]]
    given["rate"] = default.rate if given["rate"] is None else given["rate"]
    given["weight_decay"] = default.decay if given["weight_decay"] is None else given["weight_decay"]
    settings = Settings(**{name: given.pop(name) for name in Settings.__dataclass_fields__})
    if settings.compare and settings.level == "L0":
        parser.error("--compare exact compares with --level L0, which is exact already: choose another level")
    if given["resume"] and given["overwrite"]:
        parser.error("--resume goes on with a run and --overwrite replaces it: choose one")
    if given["out"] is None:
        given["out"] = Path("runs") / own_name(settings)
    return settings, Options(**given)


def own_name(settings: Settings) -> str:
    """Return the name of a run's folder where none is given; it does not begin with a dot, which would hide it."""
    images = os.path.basename(os.path.abspath(settings.data.removeprefix(IDX)))
    return re.sub(r"[^\w.-]+", "-", "-".join((images, settings.model, settings.level))).lstrip("-.")


def add_data(parser: Parser) -> None:
    """Add the arguments that choose what is learnt, and from what."""
    group = parser.add_argument_group("task and data")
    group.add_argument(
        "--task", choices=tuple(TASKS), default=CLASSIFICATION, help=f"what is learnt (default: {CLASSIFICATION})"
    )
    group.add_argument(
        "--data",
        type=images,
        default="digits",
        help="digits, fashion-mnist, idx:FOLDER with IDX files, or a folder with a sub-folder for each class, "
        "or with such folders in train and val (default: digits); of other tasks masks:FOLDER, voc:FOLDER, coco:FOLDER, "
        "text:PATH or tsv:FOLDER",
    )
    group.add_argument("--data-dir", metavar="FOLDER", default=None, help="where the files of fashion-mnist lie")
    group.add_argument(
        "--size",
        type=at_least(8, MOST_SIZE),
        default=None,
        help=f"side of a folder's images in pixels (default: {SIZE}), or the length of a text",
    )
    group.add_argument("--images", type=at_least(2), default=None, help="learn from only so many (default: all)")
    group.add_argument(
        "--augment",
        action=BooleanOptionalAction,
        default=False,
        help="vary images at random: shift small ones, crop and mirror those of a folder",
    )


def add_model(parser: Parser) -> None:
    """Add the arguments that choose a model and what it keeps."""
    group = parser.add_argument_group("model")
    group.add_argument("--model", default="small_resnet", help=f"{models.HELP} (default: small_resnet)")
    group.add_argument("--level", choices=tuple(LEVELS), default="L3", help="what is kept (default: L3)")
    group.add_argument("--bits", type=width, default=None, help="average width of codes (default: the level's)")
    group.add_argument("--memory", type=amount, default=None, help="all that is kept fits, such as 400MB")
    group.add_argument(
        "--samples",
        action=BooleanOptionalAction,
        default=True,
        help="remember which samples are hard, and give them more bits (levels from L2.5 on; default: yes)",
    )
    group.add_argument(
        "--compare", choices=("exact",), default=None, help="train exactly as well, in turns, and print the difference"
    )


def add_recipe(parser: Parser) -> None:
    """Add the arguments that say how weights learn."""
    group = parser.add_argument_group("training")
    group.add_argument("--epochs", type=at_least(1), default=4, help="passes over the images (default: 4)")
    group.add_argument("--batch", type=at_least(2), default=64, help="images in a step (default: 64)")
    group.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="sgd", help="default: sgd, with momentum")
    rates = " and ".join(f"{default.rate:g} with {name}" for name, default in DEFAULTS.items())
    group.add_argument("--rate", type=positive, default=None, help=f"peak learning rate (default: {rates})")
    group.add_argument(
        "--schedule", choices=tuple(SCHEDULES), default="cosine", help="of the rate from its peak on (default: cosine)"
    )
    group.add_argument(
        "--warm-up", type=share, default=WARM_UP, help=f"share of steps until the peak (default: {WARM_UP})"
    )
    group.add_argument("--momentum", type=share, default=MOMENTUM, help=f"default: {MOMENTUM}")
    group.add_argument(
        "--weight-decay",
        type=number_from(0, LARGEST, f"a number from 0 to {LARGEST:g}"),
        default=None,
        help=f"default: {' and '.join(f'{default.decay:g} with {name}' for name, default in DEFAULTS.items())}",
    )
    group.add_argument("--label-smoothing", type=share, default=0.0, help="default: 0")
    group.add_argument("--amp", choices=("bf16",), default=None, help="compute in bfloat16 where that is safe")
    group.add_argument(
        "--parallel",
        choices=WAYS,
        default=None,
        help="how the processes that torchrun started train together, each on its part of a batch (default: ddp)",
    )
    group.add_argument(
        "--sync-batch-norm",
        action=BooleanOptionalAction,
        default=True,
        help="several processes: normalise by the whole batch (levels from L2 on; default: yes)",
    )
    group.add_argument("--channels-last", action="store_true", default=False, help="lay images out channels last")
    group.add_argument(
        "--seed", type=at_least(0, MOST_SEED), default=0, help="of weights, order and noise (default: 0)"
    )


def add_run(parser: Parser) -> None:
    """Add the arguments on which the result does not depend."""
    group = parser.add_argument_group("run")
    group.add_argument("--out", type=folder, default=None, help="folder of checkpoint and log (default: in runs/)")
    group.add_argument("--resume", action="store_true", default=False, help="go on where the run in --out was")
    group.add_argument("--overwrite", action="store_true", default=False, help="replace the run in --out")
    group.add_argument(
        "--checkpoint-every",
        type=every,
        default=Every(seconds=60),
        metavar="N",
        help="steps, or seconds such as 30s (default: 60s), besides after each epoch",
    )
    group.add_argument("--log-every", type=at_least(1), default=10, metavar="N", help="steps (default: 10)")
    group.add_argument(
        "--threads", type=at_least(1, MOST_THREADS), default=None, help="default: as many as torch chooses"
    )
    group.add_argument("--tensorboard", action="store_true", default=False, help="write events for TensorBoard too")
    group.add_argument(
        "--logger",
        metavar="MODULE:NAME",
        default=None,
        help="an object with a method log(values, step=…), or what returns one, such as wandb:init",
    )
    group.add_argument("--table", action="store_true", default=False, help="show a live table instead of bars")


def every(text: str) -> Every:
    """Read how often to save."""
    seconds = text.endswith("s")
    read: Callable[[str], float] = positive if seconds else at_least(1)
    try:
        number = read(text.removesuffix("s"))
    except ArgumentTypeError:
        raise ArgumentTypeError(f"{text!r} is neither a number of steps nor of seconds, such as 30s") from None
    return Every(seconds=number) if seconds else Every(steps=int(number))


def images(text: str) -> str:
    """Read which images; a folder without a name would be the working directory."""
    folder(text.removeprefix(IDX))
    return text
