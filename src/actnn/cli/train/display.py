"""What a run shows: bars while it trains, a line for each epoch, and a table at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from actnn.amounts import readable
from actnn.console.progress import progress_bars
from actnn.workloads.metrics import METRICS
from actnn.workloads.runs.figures import Figures, Outcome

if TYPE_CHECKING:
    from rich.table import Table

SMOOTHING = 0.9
# short enough for all figures to fit beside it
BAR_WIDTH = 16


class Display:
    """Bars, one for each training, where somebody watches; lines either way."""

    def __init__(self, names: Iterable[str], steps: int, taken: int) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        options = {"console": self._console, "transient": True, "disable": not self._console.is_terminal}
        self._progress = progress_bars("{task.fields[figures]}", bar_width=BAR_WIDTH, **options)
        self._bars = {name: self._progress.add_task(name, total=steps, completed=taken, figures="") for name in names}
        self._speeds: dict[str, float] = {}

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._progress.stop()

    def step(self, name: str, taken: int, figures: Figures) -> None:
        """Show a step."""
        before = self._speeds.get(name, figures.images_per_second)
        self._speeds[name] = SMOOTHING * before + (1 - SMOOTHING) * figures.images_per_second
        shown = Figures(figures.loss, self._speeds[name], figures.kept_bytes, figures.resident_bytes)
        self._progress.update(self._bars[name], completed=taken, figures=str(shown))

    def epoch(self, name: str, number: int, epochs: int, outcome: Outcome, speed: float) -> None:
        """Print a line above the bars."""
        self._console.print(epoch_line(name, number, epochs, outcome, speed), highlight=False, soft_wrap=True)


class LiveTable:
    """A table that changes while a run trains: a row for each training, and a line for each epoch above it."""

    def __init__(self, names: Iterable[str], steps: int, taken: int) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._steps, self._rows = steps, {name: [f"{taken}/{steps}", *["–"] * 4] for name in names}
        self._live = Live(self.table(), console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveTable:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._live.stop()

    def step(self, name: str, taken: int, figures: Figures) -> None:
        """Show a step."""
        resident = kept(figures.resident_bytes)
        speed = f"{figures.images_per_second:.0f}"
        row = [f"{taken}/{self._steps}", f"{figures.loss:.4f}", speed, kept(figures.kept_bytes), resident]
        self._rows[name] = row
        self._live.update(self.table())

    def epoch(self, name: str, number: int, epochs: int, outcome: Outcome, speed: float) -> None:
        """Print a line above the table."""
        self._console.print(epoch_line(name, number, epochs, outcome, speed), highlight=False, soft_wrap=True)

    def table(self) -> Table:
        """Return the table as it is now."""
        from rich.table import Table

        table = Table("training", "step", "loss", "images/s", "kept for backward", "resident")
        for name, row in self._rows.items():
            table.add_row(name, *row)
        return table


class Nothing(AbstractContextManager[Any]):
    """What a process shows that leaves it to another one."""

    def __init__(self, names: Iterable[str], steps: int, taken: int) -> None:
        pass

    def __exit__(self, *problem: object) -> None:
        """Show nothing."""

    def step(self, name: str, taken: int, figures: Figures) -> None:
        """Show nothing."""

    def epoch(self, name: str, number: int, epochs: int, outcome: Outcome, speed: float) -> None:
        """Show nothing."""


def epoch_line(name: str, number: int, epochs: int, outcome: Outcome, speed: float) -> str:
    """Return what an epoch came to."""
    metric = METRICS[outcome.metric]
    reached = f"loss {outcome.loss:.4f}, {metric.name.replace('_', ' ')} {metric.shown(outcome.score)}"
    return f"epoch {number}/{epochs}, {name}: {reached}, {speed:.0f} images/s"


def show(outcomes: Mapping[str, Outcome], epochs: int) -> None:
    """Print what all trainings reached and, where there are two, by what they differ."""
    from rich.console import Console
    from rich.table import Table

    metric = METRICS[next(iter(outcomes.values())).metric]
    rows = [
        (metric.words, [metric.shown(outcome.score) for outcome in outcomes.values()]),
        ("loss in the last epoch", [f"{outcome.loss:.4f}" for outcome in outcomes.values()]),
        ("time of an epoch", [f"{outcome.seconds / epochs:.2f} s" for outcome in outcomes.values()]),
        ("kept for backward", [kept(outcome.kept_bytes) for outcome in outcomes.values()]),
    ]
    table = Table("", *outcomes)
    differences: Sequence[tuple[str, ...]] = [()] * len(rows)
    if len(outcomes) == 2:
        table.add_column("difference")
        exact, ours = outcomes.values()
        differences = [(text,) for text in differences_of(exact, ours)]
    for (label, cells), difference in zip(rows, differences, strict=True):
        table.add_row(label, *cells, *difference)
    Console().print(table)


def kept(nbytes: int | None) -> str:
    """Return an amount that may be unknown."""
    return "not measured" if nbytes is None else readable(nbytes)


def differences_of(exact: Outcome, ours: Outcome) -> list[str]:
    """Return in words how the second of two trainings differs from the first."""
    metric = METRICS[ours.metric]
    times = ours.seconds / exact.seconds if exact.seconds else 1.0
    ratio = f"{exact.kept_bytes / ours.kept_bytes:.1f}× less" if exact.kept_bytes and ours.kept_bytes else ""
    return [
        metric.words_of(metric.difference(ours.score or 0.0, exact.score or 0.0)),
        f"{(ours.loss or 0.0) - (exact.loss or 0.0):+.4f}",
        f"{times:.2f}× the time",
        ratio,
    ]
