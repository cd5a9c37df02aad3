"""``actnn demo``: train a small ResNet on real images, exactly and compressed, and compare the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from actnn.amounts import readable
from actnn.bench.demo import MEMORY_STEPS, WARM_UP_STEPS, Settings, settings_of
from actnn.console.arguments import at_least, parser_with_example
from actnn.console.extras import require
from actnn.console.progress import progress_bars
from actnn.measuring import processes, turns
from actnn.measuring.memory import MALLOC_SETTINGS
from actnn.workloads.datasets import DIGITS, DIGITS_SIZE

EXAMPLE = "actnn demo --epochs 2 --bits 4"
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
    parser = parser_with_example("actnn demo", __doc__.partition(": ")[2], EXAMPLE)
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

        both = {name: settings_of(settings, name) for name in settings.contestants}
        figures = turns.call("actnn.bench.demo:times", both, environment=QUIET_THREADS, told=advance)
        for name in settings.contestants:
            # a process of its own: nothing else moves its peak
            figures[name] |= processes.call(
                "actnn.bench.demo:memory",
                both[name],
                environment=QUIET_THREADS | MALLOC_SETTINGS,
                told=advance,
            )
    return figures


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
