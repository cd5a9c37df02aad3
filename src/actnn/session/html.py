"""Tables as notebooks show them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table(cells: Sequence[Sequence[str]]) -> str:
    """Return rows of cells, the first of which is the heading, as a table of HTML."""
    rows = [
        "".join(f'<{tag} style="text-align:left">{escape(cell)}</{tag}>' for cell in row)
        for tag, row in zip(("th", *("td" for _ in cells[1:])), cells, strict=True)
    ]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def words(lines: Sequence[str]) -> str:
    """Return lines as they are."""
    text = "\n".join(lines).strip("\n")
    return f"<pre>{escape(text)}</pre>" if text else ""
