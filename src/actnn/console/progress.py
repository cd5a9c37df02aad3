"""The progress bars of long commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


def progress_bars(*more: str, bar_width: int = 40, **options: Any) -> Progress:
    """Return bars with a name, a count, times and the texts ``more``; ``options`` go to rich's Progress."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    times = TimeElapsedColumn(), TimeRemainingColumn()
    columns = TextColumn("{task.description}"), BarColumn(bar_width), MofNCompleteColumn(), *times
    texts = [TextColumn(text, table_column=Column(no_wrap=True, overflow="ellipsis")) for text in more]
    return Progress(*columns, *texts, **options)
