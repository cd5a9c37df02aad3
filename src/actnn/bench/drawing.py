"""How pictures look: colours, scales and files; and the picture of ``actnn bench convergence``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actnn.bench.accuracies import EXACT, LEVELS, Cell, Cells
from actnn.workloads.peers import PEERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png")
# one colour a contestant in all pictures; told apart by people who see fewer colours, and by their markers in print
STYLES = {
    "exact": ("#555555", "o"),
    "checkpoint": ("#e69f00", "v"),
    "L0": ("#999999", "x"),
    "L1": ("#cc79a7", "P"),
    "L2": ("#d55e00", "o"),
    "L2.5": ("#0072b2", "s"),
    "L3": ("#009e73", "D"),
    "L3.1": ("#56b4e9", "^"),
    "L4": ("#6a51a3", "X"),
    "L5": ("#222222", "*"),
    "swap": ("#8c6d31", "<"),
    **{name: (peer.colour, peer.marker) for name, peer in PEERS.items()},
}
EXACT_COLOUR = STYLES["exact"][0]
# lines a little apart, so that error bars at one width stay readable
APART = 1.02
# text stays text, and equal figures give an equal file
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "actnn",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
Draw = Callable[["Figure"], object]


def save(draw: Draw, size: tuple[float, float], *paths: Path) -> None:
    """Draw a figure of some inches into SVG and PNG files, by the paths' endings."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            # a date or a version would change a file whose figures are the same
            metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
            figure.savefig(path, dpi=200, metadata=metadata)


def plot(cells: Cells, title: str, *paths: Path) -> None:
    """Draw accuracies as SVG or PNG files, by the paths' endings."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for (level, _), cell in cells.items():
            if level == EXACT:
                draw_exact(axes, cell)
        lines = [level for level in LEVELS if level != EXACT and any(level == drawn for drawn, _ in cells)]
        for place, level in enumerate(lines):
            draw_level(axes, level, cells, APART ** (place - (len(lines) - 1) / 2))
        finish(axes, sorted({bits for level, bits in cells if level != EXACT}), title)
        # below the axes: within them it would lie over the band or over error bars
        figure.legend(loc="outside lower center", ncols=len(lines) + 2, frameon=False, fontsize=9, columnspacing=1.2)

    save(draw, (6.4, 4.2), *paths)


def draw_exact(axes: Axes, cell: Cell) -> None:
    """Draw exact training, which has no width, as a band: mean and spread."""
    axes.axhline(cell.mean, color=EXACT_COLOUR, linewidth=1, linestyle="--", label="exact, 32 bits")
    low, high = cell.mean - cell.spread, cell.mean + cell.spread
    axes.axhspan(low, high, color=EXACT_COLOUR, alpha=0.15, linewidth=0, label="exact, ± one deviation")


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
    """Give the axes their scales, ticks, labels and title."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [f"{bits:g}" for bits in widths])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("bits per activation, on average")
    axes.set_ylabel("test accuracy, %: mean ± one deviation")
    axes.set_title(title, fontsize=9, loc="left")
    axes.grid(axis="y", alpha=0.3, linewidth=0.6)
