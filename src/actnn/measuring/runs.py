"""Carry out runs that may be interrupted: what is recorded is not measured again, what is measured is recorded."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from actnn.console import INTERRUPTED
from actnn.console.columns import aligned
from actnn.console.progress import progress_bars
from actnn.errors import ConfigError
from actnn.measuring import machine
from actnn.measuring.processes import Told
from actnn.measuring.records import Record, append, recorded

Settings = Mapping[str, Any]
Group = Sequence[Settings]
# measures a group of runs that belong together; tells whenever a step of the work is done
Measure = Callable[[Group, Told], Sequence[Mapping[str, Any]]]


class Display:
    """Progress on the error stream: bars where rich is installed and somebody watches, else a line a run."""

    def __init__(self, bars: Any = None) -> None:
        self._bars = bars

    def line(self, words: str) -> None:
        """Show a line that stays."""
        if self._bars is None:
            print(words, file=sys.stderr, flush=True)
        else:
            self._bars.console.print(words, highlight=False)

    def bar(self, words: str, total: int | None) -> Callable[..., None]:
        """Show a bar; return what advances it."""
        if self._bars is None:
            return lambda count=1: None
        task = self._bars.add_task(words, total=total)

        def advance(count: int | None = 1) -> None:
            if count is None:
                self._bars.remove_task(task)
            else:
                self._bars.advance(task, count)

        return advance


@contextmanager
def display() -> Iterator[Display]:
    """Show progress while entered."""
    if find_spec("rich") is None or not sys.stderr.isatty():
        yield Display()
        return
    from rich.console import Console

    with progress_bars(console=Console(stderr=True), transient=True) as bars:
        yield Display(bars)


def carry_out(
    groups: Sequence[Group],
    measure: Measure,
    *,
    out: Path | None,
    words: Callable[[Settings], str],
    found: Callable[[Mapping[str, Any]], str],
    again: bool = False,
    any_commit: bool = False,
    steps: int | None = None,
    counts: Callable[[Record], bool] = lambda record: True,
    done: Callable[[], object] = lambda: None,
) -> list[Record]:
    """Measure the groups of which a run is not recorded yet; return the newest record of every run.

    A run is recorded when the file holds all its settings with the commit of the working directory, or with any.
    ``words`` describes a run and ``found`` its figures, for people; ``steps`` is how often a measurement tells;
    ``counts`` tells whether a record is as good as a new one; ``done`` is called for each group that was there already.
    """
    known_before = [] if out is None or again else [record for record in recorded(out) if counts(record)]
    if out is not None:
        writable(out)
    made_on = machine.facts()
    commit = None if any_commit else made_on["commit"]
    results: list[Record] = []
    with display() as shown:
        advance = shown.bar("runs", sum(map(len, groups)))
        for group in groups:
            known = [record for run in group if (record := newest(known_before, run, commit)) is not None]
            if len(known) < len(group):
                bar = shown.bar(words(group[0]), steps)
                known = [{**run, **figures, "machine": made_on} for run, figures in measured(group, measure, bar)]
                for record in known:
                    if out is not None:
                        append(record, out)
                    shown.line(f"{words(record)}: {found(record)}")
                bar(None)
            else:
                done()
            results += known
            advance(len(group))
    return results


def measured(group: Group, measure: Measure, bar: Callable[..., None]) -> Iterator[tuple[Settings, Mapping[str, Any]]]:
    """Measure a group of runs, with a bar that advances whenever a step is told, and yield each with its figures."""
    return zip(group, measure(group, lambda message: bar()), strict=True)


def print_all(
    groups: Sequence[Group],
    measure: Measure,
    arguments: Namespace,
    table: Callable[[Sequence[Record]], tuple[list[str], list[list[str]]]] | None = None,
    **options: Any,
) -> None:
    """Carry out what ``--out`` and ``--again`` ask for and print each record as a line of JSON, or all in a table."""
    records = carry_out(groups, measure, out=arguments.out, again=arguments.again, **options)
    if table is not None:
        heading, rows = table(records)
        print("\n".join(aligned([heading, *rows])))
        return
    for record in records:
        print(json.dumps(record))


def newest(records: Sequence[Record], run: Settings, commit: str | None = None) -> Record | None:
    """Return the last record whose settings are all those of a run, made at a commit if one is named."""
    for record in reversed(records):
        same = all(name in record and record[name] == run[name] for name in run)
        if same and (commit is None or record["machine"]["commit"] == commit):
            return record
    return None


def writable(out: Path) -> Path:
    """Raise ConfigError unless runs can be recorded: a run is too dear to be lost afterwards."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.open("a").close()
    except OSError as problem:
        raise ConfigError(f"--out {out} cannot be written: {problem}. Name another file.") from problem
    return out


def interruptible(out: Path | None, work: Callable[[], object]) -> int:
    """Do some work and return 0, or 130 when it was interrupted, after saying where finished runs are."""
    try:
        work()
    except KeyboardInterrupt:
        kept = f"finished runs are in {out}, and the same command goes on from there." if out else "nothing was kept."
        print(f"actnn: interrupted; {kept}", file=sys.stderr)
        return INTERRUPTED
    return 0
