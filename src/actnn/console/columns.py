"""Rows of cells as lines of text."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines: columns that hold figures to the right, all others to the left."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    right = [
        all(row[column][:1].isdigit() or row[column] in ("", "-") for row in cells[1:]) for column in range(len(widths))
    ]
    found = []
    for row in cells:
        adjusted = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        found.append("  ".join(adjusted).rstrip())
    return [found[0], "-" * max(map(len, found)), *found[1:]]
