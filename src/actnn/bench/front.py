"""The picture of ``actnn bench step``: memory against time, all contestants of each model, and their front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actnn.bench.drawing import EXACT_COLOUR, STYLES, save
from actnn.bench.tables import model_of
from actnn.measuring.records import Record
from actnn.workloads.task import CHECKPOINT, EXACT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# what is drawn against time: a row of panels each
AMOUNTS = {"kept_bytes": "kept for backward, MB", "peak_bytes": "peak of a step, MB"}
ALLOCATOR = "step_default"

Points = Mapping[str, tuple[float, float]]


def picture(records: Sequence[Record], paths: Sequence[Path]) -> None:
    """Draw a column of panels for each model and batch: what is kept, and the peak, against the time of a step."""
    newest: dict[Any, dict[str, Record]] = {}
    for record in records:
        # records of an earlier form name their contestants otherwise
        if ALLOCATOR in record and record["contestant"] in STYLES:
            place = (model_of(record), record["batch"], record["size"])
            newest.setdefault(place, {})[words_of(record)] = record
    # a single contestant has nobody to be compared with
    newest = {place: found for place, found in newest.items() if len(found) > 1}

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(AMOUNTS), len(newest), squeeze=False)
        for column, ((model, batch, size), found) in enumerate(newest.items()):
            for row, (amount, words) in enumerate(AMOUNTS.items()):
                draw_panel(panels[row][column], found, amount)
                panels[row][0].set_ylabel(words)
            panels[0][column].set_title(f"{model}\n{batch} × {size}", fontsize=8, loc="left")
            panels[-1][column].set_xlabel("time of a step, of exact training's" if has_exact(found) else "seconds")
        legends = [axes.get_legend_handles_labels() for axes in panels.flatten()]
        labels = {label: handle for each in legends for handle, label in zip(*each, strict=True)}
        figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)

    save(draw, (3.4 * len(newest) + 0.6, 3.0 * len(AMOUNTS) + 1.0), *paths)


def words_of(record: Mapping[str, Any]) -> str:
    """Return the contestant of a record, with its width where it makes codes."""
    name: str = record["contestant"]
    return f"{name}, {record['bits']:g} bits" if record["bits"] and name not in (EXACT, CHECKPOINT) else name


def has_exact(found: Mapping[str, Record]) -> bool:
    """Tell whether exact training took part, which times are then relative to."""
    return EXACT in found


def points_of(found: Mapping[str, Record], amount: str) -> dict[str, tuple[float, float]]:
    """Return time and megabytes of each contestant."""
    unit = found[EXACT][ALLOCATOR]["seconds"] if has_exact(found) else 1.0
    return {name: (each[ALLOCATOR]["seconds"] / unit, each[amount] / 1e6) for name, each in found.items()}


def front_of(points: Points) -> list[str]:
    """Return those whom nobody beats in both, by time."""
    best: list[str] = []
    for name in sorted(points, key=lambda name: points[name]):
        if not best or points[name][1] < points[best[-1]][1]:
            best.append(name)
    return best


def draw_panel(axes: Axes, found: Mapping[str, Record], amount: str) -> None:
    """Draw all contestants, and a line through the best of them."""
    points = points_of(found, amount)
    for name, (time, size) in points.items():
        colour, marker = STYLES[found[name]["contestant"]]
        axes.plot(time, size, marker=marker, color=colour, linestyle="", markersize=6, label=name)
    times, sizes = zip(*(points[name] for name in front_of(points)), strict=True)
    axes.step(times, sizes, where="post", color=EXACT_COLOUR, linewidth=0.8, zorder=1)
    axes.set_yscale("log")
    axes.grid(alpha=0.3, linewidth=0.6)
