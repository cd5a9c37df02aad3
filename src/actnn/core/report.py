"""The report: bytes kept per layer, with exact training and with codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actnn.core.site import Site

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Row:
    """What one layer kept in the last step, and the layers that read its code instead of keeping one of their own."""

    layer: str
    kind: str
    exact_bytes: int
    kept_bytes: int
    readers: tuple[str, ...]

    @classmethod
    def of(cls, site: Site) -> Row:
        """Return the row of a site."""
        account = site.account
        return cls(site.name, site.kind, account.exact_bytes, account.kept_bytes, tuple(account.readers))


@dataclass(frozen=True)
class Report:
    """Bytes kept for backward by the last step's forward; prints as a table.

    ``idle`` names layers that took no part in it, ``left_exact`` holds (layer, kind, reason).
    """

    rows: Sequence[Row]
    idle: Sequence[str]
    left_exact: Sequence[tuple[str, str, str]]

    @property
    def exact_bytes(self) -> int:
        """Bytes that these layers would keep in exact training."""
        return sum(row.exact_bytes for row in self.rows)

    @property
    def kept_bytes(self) -> int:
        """Bytes that they keep."""
        return sum(row.kept_bytes for row in self.rows)

    @property
    def ratio(self) -> float:
        """How many times less that is; 1 where nothing was kept."""
        return self.exact_bytes / self.kept_bytes if self.kept_bytes else 1.0

    def __str__(self) -> str:
        if not self.rows:
            table = ["nothing was kept yet: run a training step, then ask again"]
        else:
            cells = [("layer", "kind", "exact", "kept", "ratio", "also read by")]
            for row in self.rows:
                cells.append((row.layer, row.kind, *_sizes(row.exact_bytes, row.kept_bytes), ", ".join(row.readers)))
            cells.append(("total", "", *_sizes(self.exact_bytes, self.kept_bytes), ""))
            table = _aligned(cells)
        if self.idle:
            table += ["", f"kept nothing in this step: {', '.join(self.idle)}"]
        if self.left_exact:
            table += ["", "left exact:"]
            table += [f"  {layer} ({kind}): {reason}" for layer, kind, reason in self.left_exact]
        return "\n".join(table)


def readable(count: float) -> str:
    """Return a number of bytes for people."""
    unit = 0
    while count >= 1024 and unit < len(UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {UNITS[unit]}" if unit == 0 else f"{count:.1f} {UNITS[unit]}"


def _sizes(exact: int, kept: int) -> tuple[str, str, str]:
    return readable(exact), readable(kept), f"{exact / kept:.1f}x" if kept else "-"


def _aligned(cells: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows of cells as lines: words to the left, figures to the right of their columns."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = []
    for row in cells:
        adjusted = [
            cell.rjust(width) if 2 <= column <= 4 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(adjusted).rstrip())
    rule = "-" * min(100, max(len(line) for line in lines))
    return [lines[0], rule, *lines[1:-1], rule, lines[-1]]
