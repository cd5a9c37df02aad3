"""What the arguments of benchmarks have in common: readers of lists, sizes and pictures, and the task they ask for."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from actnn.bench.drawing import FORMATS
from actnn.console.arguments import MOST_THREADS, Parser, at_least, parser_with_example, width
from actnn.errors import ConfigError
from actnn.workloads import language, options, workload
from actnn.workloads.frameworks import FRAMEWORKS
from actnn.workloads.task import CONTESTANTS, IMAGENET_SIZE, SIZES, Task

Reader = Callable[[str], Any]


def parser_of(name: str, description: str, example: str) -> Parser:
    """Return the parser of ``actnn bench NAME``; ``description`` is the docstring of its module."""
    text = " ".join(description.partition(": ")[2].split())
    return parser_with_example(f"actnn bench {name}", text, example)


def add_recording(parser: Parser, out: Path | None = None) -> None:
    """Add where records go and whether recorded runs are measured again."""
    default = f" (default: {out})" if out else ""
    parser.add_argument("--out", type=Path, default=out, help=f"append one JSON line a run to this file{default}")
    parser.add_argument("--again", action="store_true", help="measure also what is recorded there already")


def add_table(parser: Parser) -> None:
    """Add whether a table for people is printed instead of records."""
    parser.add_argument("--table", action="store_true", help="print one table instead of a JSON line a run")


def add_training(
    parser: Parser,
    *,
    contestants: Sequence[str],
    model: str | None = "resnet50",
    known: Sequence[str] = CONTESTANTS,
) -> None:
    """Add who takes part, what is trained, and by what."""
    add_contestants(parser, contestants, known)
    if model is not None:
        parser.add_argument("--model", default=model, help=f"{workload.HELP} (default: {model})")
    parser.add_argument("--bits", type=width, help="average width of codes (default: that of each level)")
    parser.add_argument("--threads", type=at_least(1, MOST_THREADS), default=os.cpu_count() or 1)


def add_models(parser: Parser, models: Sequence[str]) -> None:
    """Add which models are measured one after the other."""
    parser.add_argument(
        "--models",
        type=options.names,
        default=list(models),
        help=f"comma-separated: {workload.HELP} (default: {','.join(models)})",
    )


def add_contestants(parser: Parser, contestants: Sequence[str], known: Sequence[str] = CONTESTANTS) -> None:
    """Add who takes part, and in which framework."""
    parser.add_argument(
        "--contestants",
        type=different(one_of(known)),
        default=list(contestants),
        help=f"comma-separated, of {', '.join(known)} (default: {','.join(contestants)})",
    )
    parser.add_argument("--framework", choices=FRAMEWORKS, default="torch")


def several(read: Reader) -> Callable[[str], list[Any]]:
    """Return a reader of comma-separated values."""
    return lambda text: [read(part) for part in text.split(",")]


def different(read: Reader) -> Callable[[str], list[Any]]:
    """Return a reader of comma-separated values that leaves out repetitions."""
    return lambda text: list(dict.fromkeys(several(read)(text)))


def one_of(known: Sequence[str]) -> Callable[[str], str]:
    """Return a reader of names."""

    def read(text: str) -> str:
        if text not in known:
            raise ArgumentTypeError(f"{text!r} is not one of {', '.join(known)}")
        return text

    return read


def size(text: str) -> tuple[int, int]:
    """Read the height and width of an image: ``224`` or ``512x1024``."""
    sides = text.split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) >= 8 for side in sides):
        raise ArgumentTypeError(f"{text!r} is not a size such as 224 or 512x1024, from 8 on")
    return int(sides[0]), int(sides[-1])


def picture(text: str) -> Path:
    """Read the path of a picture."""
    if Path(text).suffix not in FORMATS:
        raise ArgumentTypeError(f"{text!r} does not end in {' or '.join(FORMATS)}")
    return Path(text)


def task_of(arguments: Namespace, **changed: Any) -> Task:
    """Return the task that arguments describe; ``changed`` are its other fields."""
    model: str = (vars(arguments) | changed)["model"]
    given: tuple[int, int] | None = getattr(arguments, "size", None)
    if given and language.find(model) is not None:
        raise ConfigError(
            f"{model} learns from texts, not from images of {given[0]}x{given[1]}: leave --size out and name the "
            "length of a text in an option of the model, tokens=128, or choose a model for images."
        )
    height, width = given or SIZES.get(model, IMAGENET_SIZE)
    known: dict[str, Any] = {"model": model, "height": height, "width": width}
    known |= {name: getattr(arguments, name) for name in ("framework", "bits", "threads")}
    return Task(**(known | changed))
