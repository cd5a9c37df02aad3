"""What the runs of ``actnn bench convergence`` add up to: accuracies over seeds, a cell for each level and width."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from actnn.measuring.records import Record

EXACT, EXACT_BITS = "FP", 32
# the levels that give each sample a width of its own, so that an average need not be whole
PER_SAMPLE = ("L2.5", "L3")
LEVELS = (EXACT, "L2", *PER_SAMPLE)
WIDTHS = (4, 3, 2, 1.5, 1.25)

NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """Test accuracies in percent of one level and width, by seed, and the seeds whose training diverged."""

    accuracies: Mapping[int, float]
    diverged: frozenset[int]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.accuracies.values())

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; 0 for a single one."""
        return statistics.stdev(self.accuracies.values()) if len(self.accuracies) > 1 else 0.0

    def __str__(self) -> str:
        figures = f"{self.mean:.2f}" + (f" ± {self.spread:.2f}" if len(self.accuracies) > 1 else "")
        return figures + (f" ({len(self.diverged)} diverged)" if self.diverged else "")


Cells = Mapping[tuple[str, float], Cell]


def cells(records: Iterable[Record]) -> dict[tuple[str, float], Cell]:
    """Return the cells of some records by level and width; of several records of one seed the last counts."""
    newest: dict[tuple[str, float], dict[int, Record]] = {}
    for record in records:
        newest.setdefault((record["level"], record["bits"]), {})[record["seed"]] = record
    return {
        place: Cell(
            {seed: 100 * record["accuracy"] for seed, record in seeds.items()},
            frozenset(seed for seed, record in seeds.items() if record["diverged"]),
        )
        for place, seeds in newest.items()
    }


def by_settings(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Return records by what their runs have in common, as words."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(described(record), []).append(record)
    return found


def described(record: Record) -> str:
    """Say what a run has in common with the others of its table."""
    channels = "-".join(map(str, record["channels"]))
    epochs = "1 epoch" if record["epochs"] == 1 else f"{record['epochs']} epochs"
    return (
        f"{record['data']}, {record['images']} images, {epochs}, batch {record['batch']}, "
        f"rate {record['rate']:g}, {record['model']} {channels}"
    )


def widths(records: Iterable[Record]) -> list[float]:
    """Return the columns of a table: all widths, widest first."""
    return sorted({record["bits"] for record in records}, reverse=True)


def rows(found: Cells, columns: Sequence[float]) -> list[list[str]]:
    """Return a table's rows, one for each level: its name, then what it reached at each width."""
    levels = sorted({level for level, _ in found}, key=LEVELS.index)
    return [[level, *(str(found.get((level, bits), NOTHING)) for bits in columns)] for level in levels]


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as text, the first column to the left and all others to the right."""
    room = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        [line[0].ljust(room[0]), *(cell.rjust(width) for cell, width in zip(line[1:], room[1:], strict=True))]
        for line in lines
    ]
    return "\n".join("  ".join(line) for line in padded)
