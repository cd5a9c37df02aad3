"""``actnn demo``: train a small ResNet on real images, exactly and compressed, and compare the two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec

from actnn.cli.arguments import Parser, at_least
from actnn.cli.peak_memory import MALLOC_SETTINGS
from actnn.cli.training import SIZE, Outcome, Run
from actnn.core.report import readable
from actnn.errors import ActnnError

IMAGES = 1797
EXTRAS = {"torch": "torch", "sklearn": "demo", "rich": "demo"}


def main(argv: Sequence[str]) -> int:
    """Run the demo and print its table."""
    arguments = parse(argv)
    missing = sorted({extra for module, extra in EXTRAS.items() if find_spec(module) is None})
    if missing:
        raise ActnnError(f"the demo needs more packages than are installed: pip install 'actnn[{','.join(missing)}]'")
    exact = Run(None, False, arguments.epochs, min(arguments.limit, IMAGES), arguments.batch)
    runs = [exact, replace(exact, bits=arguments.bits)]
    runs += [replace(run, memory=True) for run in runs]
    show(runs, carry_out_all(runs))
    return 0


def parse(argv: Sequence[str]):
    """Read the arguments."""
    parser = Parser(prog="actnn demo", description=__doc__.partition(": ")[2])
    parser.add_argument("--epochs", type=at_least(1), default=5, help="passes over the training set (default: 5)")
    parser.add_argument("--batch", type=at_least(2), default=64, help="images in a step (default: 64)")
    parser.add_argument("--bits", type=int, choices=range(1, 9), default=2, help="width of a code (default: 2)")
    parser.add_argument("--limit", type=at_least(10), default=IMAGES, help="use only so many images (default: all)")
    return parser.parse_args(argv)


def carry_out_all(runs: Sequence[Run]) -> list[Outcome]:
    """Carry out the runs one after the other, a progress bar each."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    outcomes = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        for run in runs:
            task = progress.add_task(f"{run.name}, {'memory' if run.memory else 'training'}", total=run.steps)
            outcomes.append(carry_out(run, lambda steps, task=task: progress.advance(task, steps)))
    return outcomes


def carry_out(run: Run, advance: Callable[[int], None]) -> Outcome:
    """Carry out one run in a process of its own, where nothing else moves its peak memory."""
    command = [sys.executable, "-m", "actnn.cli.training", json.dumps(asdict(run))]
    environment = {**os.environ, **(MALLOC_SETTINGS if run.memory else {})}
    last = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        for line in process.stdout:
            last = json.loads(line)
            advance(last.get("steps", 0))
    if "outcome" not in last:
        raise ActnnError(last.get("error", f"the run {run.name!r} ended early with exit code {process.returncode}."))
    return Outcome(**last["outcome"])


def show(runs: Sequence[Run], outcomes: Sequence[Outcome]) -> None:
    """Print the table; ``runs`` are exact and compressed training, then the same for memory."""
    from rich.console import Console
    from rich.table import Table

    exact, compressed, exact_memory, compressed_memory = outcomes
    rows = [
        ("test accuracy", exact.accuracy, compressed.accuracy, "{:.1%}".format),
        ("activations kept for backward", exact_memory.kept, compressed_memory.kept, readable),
        ("peak memory above the model", exact_memory.peak, compressed_memory.peak, readable),
        ("training time", exact.seconds, compressed.seconds, "{:.1f} s".format),
    ]
    batch = runs[0].batch
    table = Table("", title=f"ResNet on handwritten digits, {SIZE}×{SIZE}, {batch} images a step", title_justify="left")
    for run in runs[:2]:
        table.add_column(run.name, justify="right")
    for label, before, after, text in rows:
        table.add_row(label, *("not available" if value is None else text(value) for value in (before, after)))
    Console().print(table)
