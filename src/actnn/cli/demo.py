"""``actnn demo``: train a small ResNet on real images, exactly and compressed, and compare the two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from actnn.bench.memory import MALLOC_SETTINGS
from actnn.cli.arguments import Parser, at_least
from actnn.cli.datasets import DIGITS, DIGITS_SIZE
from actnn.cli.extras import require
from actnn.cli.measurement import MEMORY_STEPS, WARM_UP_STEPS, Settings
from actnn.cli.progress import progress_bars
from actnn.core.memory import readable
from actnn.errors import ActnnError

# threads that spin while they wait are slow beside whatever else the machine does
QUIET_THREADS = {"OMP_WAIT_POLICY": "passive"}


def main(argv: Sequence[str]) -> int:
    """Run the demo and print its table."""
    settings = parse(argv)
    require("the demo", ("torch", "sklearn", "rich"))
    show(settings, measure(settings))
    return 0


def parse(argv: Sequence[str]) -> Settings:
    """Read the arguments."""
    parser = Parser(prog="actnn demo", description=__doc__.partition(": ")[2])
    parser.add_argument("--epochs", type=at_least(1), default=4, help="passes over the training set (default: 4)")
    parser.add_argument("--batch", type=at_least(2), default=64, help="images in a step (default: 64)")
    parser.add_argument("--bits", type=int, choices=range(1, 9), default=2, help="width of a code (default: 2)")
    parser.add_argument("--limit", type=at_least(10), default=DIGITS, help="use only so many images (default: all)")
    given = parser.parse_args(argv)
    return Settings(given.epochs, min(given.limit, DIGITS), given.batch, given.bits)


def measure(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return all figures of each contestant; a progress bar for each shows how far it is."""
    steps = settings.training_steps + WARM_UP_STEPS + MEMORY_STEPS
    with progress_bars() as progress:
        bars = {name: progress.add_task(name, total=steps) for name in settings.contestants}

        def advance(name: str) -> None:
            progress.advance(bars[name])

        figures = child(["times", json.dumps(asdict(settings))], QUIET_THREADS, advance)
        for name in settings.contestants:
            # a process of its own: nothing else moves its peak
            figures[name] |= child(["memory", json.dumps(asdict(settings)), name], MALLOC_SETTINGS, advance)
    return figures


def child(arguments: Sequence[str], environment: dict[str, str], advance: Callable[[str], None]) -> dict[str, Any]:
    """Carry out one measurement in a fresh process; call ``advance`` after each step and return the result."""
    command = [sys.executable, "-m", "actnn.cli.measurement", *arguments]
    message: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | environment, text=True) as process:
        for line in process.stdout:
            message = json.loads(line)
            if "step" in message:
                advance(message["step"])
    if "result" not in message:
        ended = f"the process that measures {arguments[0]} ended early with exit code {process.returncode}."
        raise ActnnError(message.get("error", ended))
    return message["result"]


def show(settings: Settings, figures: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    rows: dict[str, tuple[str, Callable[[Any], str]]] = {
        "test accuracy": ("accuracy", "{:.1%}".format),
        "activations kept for backward": ("kept", readable),
        "peak memory above the model": ("peak", readable),
        "time of an epoch, median": ("seconds", "{:.2f} s".format),
    }
    title = f"ResNet on handwritten digits, {DIGITS_SIZE}×{DIGITS_SIZE}, {settings.batch} images a step"
    table = Table("", title=title, title_justify="left")
    for name in settings.contestants:
        table.add_column(name, justify="right")
    for label, (figure, text) in rows.items():
        values = [figures[name][figure] for name in settings.contestants]
        table.add_row(label, *("not available" if value is None else text(value) for value in values))
    Console().print(table)
