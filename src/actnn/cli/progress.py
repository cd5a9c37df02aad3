"""The progress bars of long commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


def progress_bars(*more: str, **options: Any) -> Progress:
    """Return bars with a name, a count and the time; ``more`` are texts behind them, ``options`` rich's Progress's."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, *map(TextColumn, more), **options)
