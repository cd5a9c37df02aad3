"""Carry out a run in a folder: from its beginning, or from the checkpoint that an earlier command left there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from actnn import __version__
from actnn.errors import ConfigError
from actnn.files import UNFINISHED
from actnn.measuring import machine
from actnn.workloads.processes import ALONE, Processes, restarted
from actnn.workloads.runs import checkpoint
from actnn.workloads.runs.checkpoint import CheckpointError, said
from actnn.workloads.runs.contestants import contestants, fingerprint, load_data
from actnn.workloads.runs.figures import Opens, Outcome
from actnn.workloads.runs.interruption import Interruption
from actnn.workloads.runs.journal import EVENT_FILES, Board, Journal, Logger, Named, Silence
from actnn.workloads.runs.lock import alone
from actnn.workloads.runs.run import Run
from actnn.workloads.runs.settings import Options, Settings
from actnn.workloads.training import Training

CHECKPOINT, LOG, WEIGHTS, EVENTS = "checkpoint.pt", "log.jsonl", "model.pt", "events"

Say = Callable[[str], object]


def carry_out(
    settings: Settings,
    options: Options,
    interruption: Interruption,
    opens: Opens,
    say: Say,
    processes: Processes = ALONE,
) -> Run:
    """Train, or train what is left, in a folder that no other run uses meanwhile; return the run at its end."""
    with alone(options.out, say) if processes.writes else nullcontext():
        state = earlier(settings, options, say)
        # the first process may replace a checkpoint when all have read it
        processes.wait()
        threads = choose_threads(options.threads, state)
        data = load_data(settings, processes)
        about = {"fingerprint": fingerprint(data), "threads": threads, "versions": versions()}
        about["processes"] = processes.count
        if state is not None:
            check_same(state, about, options.out, say)
        trainings = contestants(settings, data, processes)
        interruption.check()
        run = trained(settings, trainings, state, about, options, interruption, opens, say, processes)
        weights = list(trainings.values())[-1].state_dict()["model"]
        if processes.writes:
            checkpoint.write(options.out / WEIGHTS, checkpoint.serialized(weights), kept=options.out)
    return run


def trained(
    settings: Settings,
    trainings: dict[str, Training],
    state: dict[str, Any] | None,
    about: dict[str, Any],
    options: Options,
    interruption: Interruption,
    opens: Opens,
    say: Say,
    processes: Processes = ALONE,
) -> Run:
    """Train to the end, with a log and a display that are open meanwhile."""
    out = options.out
    leader = next(iter(trainings.values()))
    taken = 0 if state is None else next(iter(state["trainings"].values()))["taken"]
    log: AbstractContextManager[Any] = Silence()
    if processes.writes:
        replaced = files_of_a_run(out) if options.overwrite and state is None else []
        loggers: list[Logger] = [Board(out / EVENTS, taken)] if options.tensorboard else []
        loggers += [Named.found(options.logger)] if options.logger is not None else []
        if replaced:
            remove(replaced, out)
        log = Journal(out / LOG, 0 if state is None else state["log"], loggers)
    with log as journal, opens(trainings, leader.steps, taken) as display:
        outcomes = {name: Outcome() for name in trainings}
        run = Run(
            settings, trainings, outcomes, out / CHECKPOINT, journal, display, interruption, about, options, processes
        )
        begin(run, state, say)
        interruption.begun = True
        run.go()
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


def earlier(settings: Settings, options: Options, say: Say) -> dict[str, Any] | None:
    """Return the checkpoint to go on from, None for a run from the beginning."""
    path = options.out / CHECKPOINT
    if not path.exists():
        if options.resume:
            say(f"{options.out} has no checkpoint yet: the run begins anew.")
        return None
    if options.overwrite and not restarted():
        return None
    if not (options.resume or restarted()):
        raise ConfigError(
            f"{options.out} holds a run already: go on with --resume, replace it with --overwrite, or name another "
            "--out."
        )
    state = checkpoint.load(path)
    settings.check_equal(state["settings"], options.out)
    return state


def choose_threads(given: int | None, state: dict[str, Any] | None) -> int:
    """Let torch work with as many threads as asked for, or as the run had before, and return how many."""
    import torch

    before = None if state is None else state["threads"]
    if given is not None and before is not None and given != before:
        raise ConfigError(
            f"--threads {given}: this run had {before}, and with another number sums round differently. Leave it out."
        )
    if threads := given or before:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def check_same(state: dict[str, Any], about: dict[str, Any], out: Path, say: Say) -> None:
    """Raise CheckpointError where the images changed; warn where a version did."""
    if state["fingerprint"] != about["fingerprint"]:
        raise CheckpointError(
            f"the run in {out} had other images ({state['fingerprint']}, now {about['fingerprint']}): bring those "
            "back, or name another --out."
        )
    if state.get("processes", 1) != about["processes"]:
        before, now = state.get("processes", 1), about["processes"]
        say(f"the run had {before} processes before, now {now}: it goes on, but not as it would have.")
    if state["versions"] != about["versions"]:
        say(f"the run began with {state['versions']}, now it is {about['versions']}: results may differ in last bits.")


def begin(run: Run, state: dict[str, Any] | None, say: Say) -> None:
    """Bring a run to where it begins or goes on, and note that in its log."""
    if state is None:
        run.journal.write("run", **run.settings.as_dict(), **run.about, machine=machine.facts())
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


def versions() -> dict[str, str | None]:
    """Return the versions on which exact results depend."""
    return {"actnn": __version__, "torch": machine.installed("torch")}
