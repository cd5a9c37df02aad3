"""``actnn train``: train an image classifier on real data, exactly resumable."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from actnn.cli.train.display import Display, Outcome, show
from actnn.cli.train.options import Settings, parse
from actnn.console.extras import require
from actnn.console.files import UNFINISHED
from actnn.errors import ConfigError
from actnn.measuring import timing
from actnn.workloads.runs import checkpoint
from actnn.workloads.runs.checkpoint import CheckpointError, said
from actnn.workloads.runs.contestants import contestants, fingerprint, load_data
from actnn.workloads.runs.interruption import Interrupted, Interruption
from actnn.workloads.runs.journal import EVENT_FILES, Board, Journal
from actnn.workloads.runs.lock import alone
from actnn.workloads.runs.run import Run, versions
from actnn.workloads.training import Training

CHECKPOINT, LOG, WEIGHTS, EVENTS = "checkpoint.pt", "log.jsonl", "model.pt", "events"


def main(argv: Sequence[str]) -> int:
    """Train, and print what was reached; 130 when interrupted, with everything saved."""
    settings, arguments = parse(argv)
    require("actnn train", ["torch", "rich", *["tensorboard"] * arguments.tensorboard])
    with Interruption() as interruption:
        try:
            train(settings, arguments, interruption)
        except Interrupted:
            say(f"interrupted{what_is_left(arguments, interruption.begun, 'all is saved')}")
            return interruption.exit_code
        except KeyboardInterrupt:
            say(f"ended at once{what_is_left(arguments, interruption.begun, 'the last checkpoint is')}")
            return interruption.exit_code
    return 0


def what_is_left(arguments: Namespace, begun: bool, saved: str) -> str:
    """Return in words what a run that was interrupted leaves, and how to go on with it."""
    out = arguments.out
    if begun:
        instead = " instead of --overwrite" if arguments.overwrite else ""
        return f"; {saved} in {out}, and the same command with --resume{instead} goes on from there."
    if (out / CHECKPOINT).exists():
        return f" before it began; the run in {out} is as it was."
    return " before the first checkpoint; nothing was kept, and the same command begins anew."


def train(settings: Settings, arguments: Namespace, interruption: Interruption) -> None:
    """Carry out a run, or what is left of it, in a folder that no other run uses meanwhile."""
    with alone(arguments.out, say):
        state = earlier(settings, arguments)
        threads = choose_threads(arguments.threads, state)
        data = load_data(settings)
        about = {"fingerprint": fingerprint(data), "threads": threads, "versions": versions()}
        if state is not None:
            check_same(state, about, arguments.out)
        trainings = contestants(settings, data)
        interruption.check()
        run = carried_out(settings, trainings, state, about, arguments, interruption)
    show(run.outcomes, settings.epochs)
    print(f"weights: {arguments.out / WEIGHTS}, log: {arguments.out / LOG}")
    run.check_memory(say)


def carried_out(
    settings: Settings,
    trainings: dict[str, Training],
    state: dict[str, Any] | None,
    about: dict[str, Any],
    arguments: Namespace,
    interruption: Interruption,
) -> Run:
    """Train to the end, and leave the weights in the folder."""
    out: Path = arguments.out
    leader = next(iter(trainings.values()))
    taken = 0 if state is None else next(iter(state["trainings"].values()))["taken"]
    replaced = files_of_a_run(out) if arguments.overwrite else []
    board = Board(out / EVENTS, taken) if arguments.tensorboard else None
    if replaced:
        remove(replaced, out)
    log = Journal(out / LOG, 0 if state is None else state["log"], board)
    with log as journal, Display(trainings, leader.steps, taken) as display:
        run = Run(
            settings,
            trainings,
            {name: Outcome() for name in trainings},
            out / CHECKPOINT,
            journal,
            display,
            interruption,
            about,
            arguments.checkpoint_every,
            arguments.log_every,
        )
        begin(run, state)
        interruption.begun = True
        run.go()
    weights = checkpoint.serialized(list(trainings.values())[-1].model.state_dict())
    checkpoint.write(out / WEIGHTS, weights, kept=out)
    return run


def files_of_a_run(out: Path) -> list[Path]:
    """Return the files that a run may have left in a folder, but for its log, which the next one begins anew."""
    written = [out / f"{name}{suffix}" for name in (CHECKPOINT, WEIGHTS) for suffix in ("", UNFINISHED)]
    return [*written, *(out / EVENTS).glob(EVENT_FILES)]


def remove(files: Sequence[Path], out: Path) -> None:
    """Remove what a run left, so that nothing of it is taken for the next one's; what is not its own stays."""
    with said(out):
        for path in files:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        # as long as there are events, or something of somebody else's, it cannot be removed
        (out / EVENTS).rmdir()


def earlier(settings: Settings, arguments: Namespace) -> dict[str, Any] | None:
    """Return the checkpoint to go on from, None for a run from the beginning."""
    path = arguments.out / CHECKPOINT
    if not path.exists():
        if arguments.resume:
            say(f"{arguments.out} has no checkpoint yet: the run begins anew.")
        return None
    if arguments.overwrite:
        return None
    if not arguments.resume:
        raise ConfigError(
            f"{arguments.out} holds a run already: go on with --resume, replace it with --overwrite, or name another "
            "--out."
        )
    state = checkpoint.load(path)
    settings.check_equal(state["settings"], arguments.out)
    return state


def choose_threads(given: int | None, state: dict[str, Any] | None) -> int:
    """Let torch work with as many threads as asked for, or as the run had before, and return how many."""
    import torch

    before = None if state is None else state["threads"]
    if given is not None and before is not None and given != before:
        raise ConfigError(
            f"--threads {given}: this run had {before}, and with another number sums round differently. Leave it out."
        )
    if given or before:
        torch.set_num_threads(given or before)
    return torch.get_num_threads()


def check_same(state: dict[str, Any], about: dict[str, Any], out: Path) -> None:
    """Raise CheckpointError where the images changed; warn where a version did."""
    if state["fingerprint"] != about["fingerprint"]:
        raise CheckpointError(
            f"the run in {out} had other images ({state['fingerprint']}, now {about['fingerprint']}): bring those "
            "back, or name another --out."
        )
    if state["versions"] != about["versions"]:
        say(f"the run began with {state['versions']}, now it is {about['versions']}: results may differ in last bits.")


def begin(run: Run, state: dict[str, Any] | None) -> None:
    """Bring a run to where it begins or goes on, and note that in its log."""
    if state is None:
        run.journal.write("run", **run.settings.as_dict(), **run.about, machine=timing.machine())
        # what cannot be saved is better known now than after an hour
        run.save()
        return
    run.load(state)
    if run.journal.missing:
        say(f"{run.journal.path} lacks its last {run.journal.missing} bytes; the run goes on without them.")
    if run.is_over:
        say(f"the run in {run.path.parent} is complete.")
        return
    run.journal.write("resume", epoch=run.leader.epoch_number, step=run.leader.taken, **run.about)
    say(f"going on after {run.leader.taken} of {run.leader.steps} steps.")


def say(line: str) -> None:
    """Print a line for whoever called."""
    print(f"actnn: {line}", file=sys.stderr, flush=True)
