"""``actnn demo``: train a small ResNet on real images, exactly and compressed, and compare the two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec

from actnn.cli.arguments import Parser, at_least
from actnn.cli.peak_memory import MALLOC_SETTINGS
from actnn.cli.training import SIZE, Outcome, Run
from actnn.core.report import readable
from actnn.errors import ActnnError

IMAGES = 1797
# threads that spin while they wait slow down whoever else computes, such as the other run
QUIET_THREADS = {"OMP_WAIT_POLICY": "passive"}
EXTRAS = {"torch": "torch", "sklearn": "demo", "rich": "demo"}


def main(argv: Sequence[str]) -> int:
    """Run the demo and print its table."""
    arguments = parse(argv)
    missing = sorted({extra for module, extra in EXTRAS.items() if find_spec(module) is None})
    if missing:
        raise ActnnError(f"the demo needs more packages than are installed: pip install 'actnn[{','.join(missing)}]'")
    exact = Run(None, False, arguments.epochs, min(arguments.limit, IMAGES), arguments.batch)
    contestants = [exact, replace(exact, bits=arguments.bits)]
    with progress_bars() as bars:
        trained = compete(contestants, bars)
        measured = compete([replace(run, memory=True) for run in contestants], bars)
    show(contestants, trained, measured)
    return 0


def parse(argv: Sequence[str]):
    """Read the arguments."""
    parser = Parser(prog="actnn demo", description=__doc__.partition(": ")[2])
    parser.add_argument("--epochs", type=at_least(1), default=5, help="passes over the training set (default: 5)")
    parser.add_argument("--batch", type=at_least(2), default=64, help="images in a step (default: 64)")
    parser.add_argument("--bits", type=int, choices=range(1, 9), default=2, help="width of a code (default: 2)")
    parser.add_argument("--limit", type=at_least(10), default=IMAGES, help="use only so many images (default: all)")
    return parser.parse_args(argv)


def progress_bars():
    """Return the display of the bars."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


class Child:
    """A run in a process of its own, where nothing else moves its peak memory."""

    def __init__(self, run: Run, advance: Callable[[int], None]) -> None:
        self.run, self.advance = run, advance
        command = [sys.executable, "-m", "actnn.cli.training", json.dumps(asdict(run))]
        environment = {**QUIET_THREADS, **os.environ, **(MALLOC_SETTINGS if run.memory else {})}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        # after an error of another run this one is not done yet
        self.process.terminate()
        self.process.__exit__(None, None, None)

    def begin_turn(self) -> None:
        """Let the child go on."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def listen(self) -> Outcome | None:
        """Follow the child until it passes the turn back or ends; return its outcome in the latter case."""
        for line in self.process.stdout:
            message = json.loads(line)
            self.advance(message.get("steps", 0))
            if "turn" in message:
                return None
            if "outcome" in message:
                return Outcome(**message["outcome"])
            if "error" in message:
                raise ActnnError(message["error"])
        raise ActnnError(f"the run {self.run.name!r} ended early with exit code {self.process.wait()}.")


def compete(runs: Sequence[Run], bars) -> list[Outcome]:
    """Carry out the runs in turns, a progress bar each."""
    with ExitStack() as stack:
        children = []
        for run in runs:
            bar = bars.add_task(f"{run.name}, {'memory' if run.memory else 'training'}", total=run.steps)
            children.append(stack.enter_context(Child(run, partial(bars.advance, bar))))
        # nobody begins before everybody is ready
        outcomes = [child.listen() for child in children]
        for _ in range(runs[0].turns):
            for place, child in enumerate(children):
                child.begin_turn()
                outcomes[place] = child.listen()
    return outcomes


def show(contestants: Sequence[Run], trained: Sequence[Outcome], measured: Sequence[Outcome]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    rows = [
        ("test accuracy", [outcome.accuracy for outcome in trained], "{:.1%}".format),
        ("activations kept for backward", [outcome.kept for outcome in measured], readable),
        ("peak memory above the model", [outcome.peak for outcome in measured], readable),
        ("training time, median epoch", [outcome.seconds for outcome in trained], "{:.2f} s".format),
    ]
    title = f"ResNet on handwritten digits, {SIZE}×{SIZE}, {contestants[0].batch} images a step"
    table = Table("", title=title, title_justify="left")
    for run in contestants:
        table.add_column(run.name, justify="right")
    for label, values, text in rows:
        table.add_row(label, *("not available" if value is None else text(value) for value in values))
    Console().print(table)
