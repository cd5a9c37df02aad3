"""``actnn train``: train for a task on real data, exactly resumable."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from actnn.cli.train.display import Display, LiveTable, Nothing, show
from actnn.cli.train.options import parse
from actnn.console.extras import require
from actnn.workloads.processes import joined
from actnn.workloads.runs.execution import CHECKPOINT, LOG, WEIGHTS, carry_out
from actnn.workloads.runs.interruption import Interrupted, Interruption
from actnn.workloads.runs.settings import Options, Settings


def main(argv: Sequence[str]) -> int:
    """Train, and print what was reached; 130 when interrupted, with everything saved."""
    settings, options = parse(argv)
    require("actnn train", ["torch", "rich", *["tensorboard"] * options.tensorboard])
    with Interruption() as interruption:
        try:
            train(settings, options, interruption)
        except Interrupted:
            say(f"interrupted{what_is_left(options, interruption.begun, 'all is saved')}")
            return interruption.exit_code
        except KeyboardInterrupt:
            say(f"ended at once{what_is_left(options, interruption.begun, 'the last checkpoint is')}")
            return interruption.exit_code
    return 0


def train(settings: Settings, options: Options, interruption: Interruption) -> None:
    """Carry out a run, or what is left of it, and print its table; of several processes the first one speaks."""
    with joined(settings.parallel) as processes:
        display = (LiveTable if options.table else Display) if processes.writes else Nothing
        run = carry_out(settings, options, interruption, display, say if processes.writes else silently, processes)
        if not processes.writes:
            return
        show(run.outcomes, settings.epochs)
        print(f"weights: {options.out / WEIGHTS}, log: {options.out / LOG}")
        run.check_memory(say)


def what_is_left(options: Options, begun: bool, saved: str) -> str:
    """Return in words what a run that was interrupted leaves, and how to go on with it."""
    out = options.out
    if begun:
        instead = " instead of --overwrite" if options.overwrite else ""
        return f"; {saved} in {out}, and the same command with --resume{instead} goes on from there."
    if (out / CHECKPOINT).exists():
        return f" before it began; the run in {out} is as it was."
    return " before the first checkpoint; nothing was kept, and the same command begins anew."


def silently(line: str) -> None:
    """Say nothing: the first process does."""


def say(line: str) -> None:
    """Print a line for whoever called."""
    print(f"actnn: {line}", file=sys.stderr, flush=True)
