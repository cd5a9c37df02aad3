"""The report: bytes kept of the whole model and per layer, with exact training and with codes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from actnn.amounts import readable
from actnn.session import html
from actnn.session.site import Site
from actnn.session.whole import Whole, listed, some

HEADING = ("layer", "kind", "exact", "kept", "ratio", "bits", "also read by")


@dataclass(frozen=True)
class Row:
    """What one layer kept in the last step, and the layers that read its code instead of keeping one of their own.

    ``bits`` is the average width of its codes, None where it has none; ``elements`` were coded, and ``sign_bits`` of
    their width serve a mask that a ReLU would keep by itself. ``swapped_bytes`` of those kept are not in memory.
    """

    layer: str
    kind: str
    exact_bytes: int
    kept_bytes: int
    readers: tuple[str, ...] = ()
    bits: float | None = None
    elements: int = 0
    sign_bits: float = 0.0
    swapped_bytes: int = 0

    @classmethod
    def of(cls, site: Site) -> Row:
        """Return the row of a site."""
        account = site.account
        bits = account.planes / account.elements if account.elements else None
        return cls(
            site.name,
            site.kind,
            account.exact_bytes,
            account.kept_bytes,
            account.readers,
            bits,
            account.elements,
            account.signs / max(1, account.elements),
            account.swapped_bytes,
        )


@dataclass(frozen=True, repr=False)
class Report:
    """Bytes kept for backward by the last step's forward; prints as a table.

    Rows are those of compressed layers, and of functions that other modules call; ``exact_bytes``, ``kept_bytes`` and
    all widths are theirs. ``whole`` is what autograd keeps of the whole model, where that was counted. ``idle`` names
    those that took no part in the step, ``left_exact`` holds (layer, kind, reason) of those that could be compressed,
    ``other_kinds`` counts layers that have no row, ``later`` holds (layer, kind) of those that came after the
    conversion. With a memory budget, ``limit`` is what it allows and ``other_bytes`` what everything else keeps.
    """

    rows: Sequence[Row]
    idle: Sequence[str]
    left_exact: Sequence[tuple[str, str, str]]
    limit: int | None = None
    other_bytes: int = 0
    other_kinds: Sequence[tuple[str, int]] = ()
    compresses: bool = True
    whole: Whole | None = None
    later: Sequence[tuple[str, str]] = ()

    @property
    def exact_bytes(self) -> int:
        """Bytes that these layers would keep in exact training."""
        return sum(row.exact_bytes for row in self.rows)

    @property
    def kept_bytes(self) -> int:
        """Bytes that they keep."""
        return sum(row.kept_bytes for row in self.rows)

    @property
    def swapped_bytes(self) -> int:
        """How many of them are not in memory."""
        return sum(row.swapped_bytes for row in self.rows)

    @property
    def ratio(self) -> float:
        """How many times less the whole model keeps or, where that was not counted, its compressed layers."""
        return self.coded_ratio if self.whole is None else self.whole.ratio

    @property
    def coded_ratio(self) -> float:
        """How many times less the compressed layers keep; 1 where nothing was kept."""
        return self.exact_bytes / self.kept_bytes if self.kept_bytes else 1.0

    @property
    def average_bits(self) -> float | None:
        """Average width of all codes, the signs that ReLU layers read not counted; None where there is no code."""
        elements = sum(row.elements for row in self.rows)
        values = sum((row.bits - row.sign_bits) * row.elements for row in self.rows if row.bits is not None)
        return values / elements if elements else None

    @property
    def planes_per_element(self) -> float | None:
        """Average width of all codes, signs and all; None where there is no code."""
        elements = sum(row.elements for row in self.rows)
        planes = sum(row.bits * row.elements for row in self.rows if row.bits is not None)
        return planes / elements if elements else None

    def __str__(self) -> str:
        if not self.compresses:
            counted = [] if self.whole is None else self.whole.lines()
            lines = ["no layer of this model is compressed: training keeps what it keeps without actnn", *counted]
        elif not self.rows and self.whole is None:
            lines = ["nothing was kept yet: run a training step, then ask again"]
        else:
            lines = [*([] if self.whole is None else [*self.whole.lines(), ""]), *self._table(), *self._sentences()]
        return "\n".join([*lines, *self._notes()])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the report as notebooks show it: the headline, the table, and the notes in plain words."""
        if not self.rows:
            return html.words([str(self)])
        head = [] if self.whole is None else self.whole.lines()
        notes = [*self._sentences(), *self._notes()]
        return f"{html.words(head)}{html.table(self._cells())}{html.words(notes)}"

    def _table(self) -> list[str]:
        return _aligned(self._cells())

    def _cells(self) -> list[tuple[str, ...]]:
        cells: list[tuple[str, ...]] = [HEADING]
        for row in self.rows:
            sizes = _sizes(row.exact_bytes, row.kept_bytes)
            cells.append((row.layer, row.kind, *sizes, _width(row.bits), ", ".join(row.readers)))
        sizes = _sizes(self.exact_bytes, self.kept_bytes)
        cells.append(("total", "", *sizes, _width(self.planes_per_element), ""))
        return cells

    def _notes(self) -> list[str]:
        """Return what there is to say of what has no row."""
        notes = []
        if self.idle:
            notes += ["", f"kept nothing in this step: {', '.join(self.idle)}"]
        if self.left_exact:
            notes += ["", "left exact:", *(f"  {line}" for line in listed(self.left_exact))]
        if self.later:
            kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(kind for _, kind in self.later).items())
            names = some([layer for layer, _ in self.later])
            notes += [
                "",
                f"came after the conversion: {kinds} ({names}). "
                "They have no codes of their own: call restore(), then QModule again.",
            ]
        if self.other_kinds:
            others = ", ".join(f"{count} {kind}" for kind, count in self.other_kinds)
            notes += ["", f"not compressed, and not in the table: {others}"]
        return notes

    def _sentences(self) -> list[str]:
        sentences = []
        if self.average_bits is not None:
            sentences.append(
                f"codes hold {self.average_bits:.2f} bits a value on average, "
                f"{self.planes_per_element:.2f} with the signs that ReLU layers read from them"
            )
        if self.swapped_bytes:
            sentences.append(f"{readable(self.swapped_bytes)} of what is kept was swapped out")
        if self.limit is not None:
            held = self.kept_bytes + self.other_bytes
            sentences.append(
                f"memory budget {readable(self.limit)}: {readable(held)} kept, "
                f"{readable(self.other_bytes)} of it by layers that are not compressed"
            )
        elif self.whole is None:
            sentences.append("what other layers and functions keep is not counted here: actnn profile shows all")
        return ["", *sentences] if sentences else []


def _width(bits: float | None) -> str:
    return "-" if bits is None else f"{bits:.2f}"


def _sizes(exact: int, kept: int) -> tuple[str, str, str]:
    return readable(exact), readable(kept), f"{exact / kept:.1f}x" if kept else "-"


def _aligned(cells: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows of cells as lines: words to the left, figures to the right of their columns."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = []
    for row in cells:
        adjusted = [
            cell.rjust(width) if 2 <= column <= 5 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(adjusted).rstrip())
    rule = "-" * min(100, max(len(line) for line in lines))
    return [lines[0], rule, *lines[1:-1], rule, lines[-1]]
