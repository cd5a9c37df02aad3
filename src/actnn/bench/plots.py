"""The picture of ``actnn bench convergence``: accuracy over width, a line for each level."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from actnn.bench.accuracies import EXACT, LEVELS, Cell, Cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png")
# told apart by people who see fewer colours, and by their markers in print
STYLES = {"L2": ("#d55e00", "o"), "L2.5": ("#0072b2", "s"), "L3": ("#009e73", "D")}
EXACT_COLOUR = "#555555"
# lines a little apart, so that error bars at one width stay readable
APART = 1.02
# text stays text, and equal figures give an equal file
SVG_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "actnn", "font.size": 10}


def plot(cells: Cells, title: str, path: Path) -> None:
    """Draw accuracies as an SVG or PNG file, by the path's ending."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(SVG_STYLE):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for (level, _), cell in cells.items():
            if level == EXACT:
                draw_exact(axes, cell)
        lines = [level for level in LEVELS if level != EXACT and any(level == drawn for drawn, _ in cells)]
        for place, level in enumerate(lines):
            draw_level(axes, level, cells, APART ** (place - (len(lines) - 1) / 2))
        finish(axes, sorted({bits for level, bits in cells if level != EXACT}), title)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=200, metadata={"Date": None} if path.suffix == ".svg" else {})


def draw_exact(axes: Axes, cell: Cell) -> None:
    """Draw exact training, which has no width, as a band: mean and spread."""
    axes.axhspan(cell.mean - cell.spread, cell.mean + cell.spread, color=EXACT_COLOUR, alpha=0.15, linewidth=0)
    axes.axhline(cell.mean, color=EXACT_COLOUR, linewidth=1, linestyle="--", label="exact, 32 bits")


def draw_level(axes: Axes, level: str, cells: Cells, shift: float) -> None:
    """Draw one level's means, joined, with their spread as error bars."""
    colour, marker = STYLES[level]
    drawn = sorted((bits, cell) for (name, bits), cell in cells.items() if name == level)
    axes.errorbar(
        [bits * shift for bits, _ in drawn],
        [cell.mean for _, cell in drawn],
        yerr=[cell.spread for _, cell in drawn],
        label=level,
        color=colour,
        marker=marker,
        markersize=5,
        linewidth=1.5,
        capsize=3,
    )


def finish(axes: Axes, widths: list[float], title: str) -> None:
    """Give the axes their scales and words, and take away what says nothing."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [f"{bits:g}" for bits in widths])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("bits per activation, on average")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(title, fontsize=9, loc="left")
    axes.grid(axis="y", alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
