"""What the runs of ``actnn bench tasks`` add up to: differences to exact training, paired by seed; rows, a picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actnn.bench.accuracies import NOTHING
from actnn.bench.drawing import EXACT_COLOUR, STYLES, save
from actnn.measuring.records import Record
from actnn.workloads.contestant import Contestant
from actnn.workloads.metrics import METRICS, Metric
from actnn.workloads.task import EXACT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADING = ["task", "training", "metric", "seeds", "reached", "better than exact", "kept", "", "peak", "time"]


@dataclass(frozen=True)
class Cell:
    """The newest runs of one task and contestant by seed, beside those of exact training."""

    runs: Mapping[int, Record]
    exact: Mapping[int, Record]

    @property
    def metric(self) -> Metric:
        """What the runs are judged by."""
        return metric_of(next(iter(self.runs.values())))

    @property
    def scores(self) -> list[float]:
        """What was reached, by those that did not diverge."""
        return [run["score"] for run in self.runs.values() if run["score"] is not None]

    @property
    def differences(self) -> list[float]:
        """By how much each seed is better than exact training of the same seed, in points or percent."""
        pairs = [(run, self.exact.get(seed)) for seed, run in self.runs.items()]
        return [
            self.metric.difference(run["score"], exact["score"])
            for run, exact in pairs
            if exact is not None and None not in (run["score"], exact["score"])
        ]

    def mean(self, figure: str) -> float:
        """Return the mean of a figure over seeds."""
        return statistics.fmean(run[figure] for run in self.runs.values())

    def ratio(self, figure: str) -> float | None:
        """Return a figure of exact training over this one's, None where that took no part."""
        if not self.exact:
            return None
        return Cell(self.exact, {}).mean(figure) / self.mean(figure)


def metric_of(record: Mapping[str, Any]) -> Metric:
    """Return what a run is judged by."""
    return METRICS[record["metric"]]


def contestant_of(record: Mapping[str, Any]) -> str:
    """Return who trained, in words."""
    return str(Contestant(record["contestant"], record["bits"]))


def cells(records: Sequence[Record]) -> dict[tuple[str, str], Cell]:
    """Return the cells by task and contestant; of several runs of one seed the last counts."""
    newest: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        newest.setdefault((record["name"], contestant_of(record)), {})[record["seed"]] = record
    return {key: Cell(runs, newest.get((key[0], EXACT), {})) for key, runs in newest.items()}


def table(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return a row for each task and contestant, those of a task together."""
    found = cells(records)
    names = list(dict.fromkeys(name for name, _ in found))
    in_order = sorted(found, key=lambda key: names.index(key[0]))
    return HEADING, [row(*key, found[key]) for key in in_order]


def row(name: str, who: str, cell: Cell) -> list[str]:
    """Return one cell as words."""
    kept, seconds = cell.ratio("kept_bytes"), cell.ratio("processor_seconds")
    peak = f"{cell.mean('peak_bytes') / 1e6:.0f} MB"
    return [
        name,
        who,
        cell.metric.words,
        str(len(cell.runs)),
        reached(cell),
        NOTHING if who == EXACT else better(cell),
        f"{cell.mean('kept_bytes') / 1e6:.2f} MB",
        NOTHING if kept is None else f"{kept:.1f}×",
        peak,
        NOTHING if seconds is None else f"{1 / seconds:.2f}",
    ]


def reached(cell: Cell) -> str:
    """Return the mean of what was reached with its deviation over seeds, and how many diverged."""
    lost = len(cell.runs) - len(cell.scores)
    words = f" ({lost} diverged)" if lost else ""
    if not cell.scores:
        return words.strip()
    spread = f" ± {cell.metric.shown(statistics.stdev(cell.scores))}" if len(cell.scores) > 1 else ""
    return f"{cell.metric.shown(statistics.fmean(cell.scores))}{spread}{words}"


def better(cell: Cell) -> str:
    """Return the mean of differences to exact training with its standard error."""
    if not cell.differences:
        return NOTHING
    unit = "points" if cell.metric.is_share else "%"
    error = standard_error(cell.differences)
    return f"{statistics.fmean(cell.differences):+.2f}{f' ± {error:.2f}' if error else ''} {unit}"


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean, 0 where a single value tells none."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def picture(records: Sequence[Record], paths: Sequence[Path]) -> None:
    """Draw a panel for each task: how much better than exact training, by what is kept."""
    found = cells(records)
    names = list(dict.fromkeys(name for name, _ in found))

    def draw(figure: Figure) -> None:
        columns = min(3, len(names))
        panels = figure.subplots(-(-len(names) // columns), columns, squeeze=False).flatten()
        for axes, name in zip(panels, names, strict=False):
            draw_task(axes, name, {who: cell for (other, who), cell in found.items() if other == name})
        for axes in panels[len(names) :]:
            axes.set_axis_off()
        legends = [axes.get_legend_handles_labels() for axes in panels]
        labels = {label: handle for each in legends for handle, label in zip(*each, strict=True)}
        figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=5, frameon=False, fontsize=8)

    rows = -(-len(names) // 3)
    save(draw, (3.2 * min(3, len(names)) + 0.6, 2.8 * rows + 0.7), *paths)


def draw_task(axes: Axes, name: str, found: Mapping[str, Cell]) -> None:
    """Draw the contestants of one task with the standard errors of their differences."""
    axes.axhline(0, color=EXACT_COLOUR, linewidth=0.8, linestyle="--")
    for who, cell in found.items():
        if not cell.differences:
            continue
        colour, marker = STYLES[next(iter(cell.runs.values()))["contestant"]]
        error = standard_error(cell.differences)
        place, height = cell.mean("kept_bytes") / 1e6, statistics.fmean(cell.differences)
        axes.errorbar(place, height, yerr=error, color=colour, marker=marker, linestyle="", capsize=3, label=who)
    metric = next(iter(found.values())).metric
    axes.set_xscale("log")
    axes.set_xlabel("kept for backward, MB")
    axes.set_ylabel(f"better than exact, {'points' if metric.is_share else '%'}")
    axes.set_title(f"{name}: {metric.words}", fontsize=9, loc="left")
    axes.grid(axis="y", alpha=0.3, linewidth=0.6)
