"""A run: epochs, steps in turns, evaluations, and checkpoints from which it goes on as if it had never stopped.

NOTE [Resuming]
1. A checkpoint is taken between steps, when all trainings of the run have taken equally many. What it holds determines
   everything that follows, the log included, but for times and resident memory.
2. Every epoch's last checkpoint is taken before the evaluation: whoever is killed in one does it again.
3. Taking a checkpoint changes nothing, so it does not matter how often one is taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from actnn.amounts import readable
from actnn.errors import ActnnError
from actnn.measuring.memory import resident
from actnn.workloads import models
from actnn.workloads.processes import ALONE, Processes
from actnn.workloads.runs import checkpoint
from actnn.workloads.runs.checkpoint import CheckpointError
from actnn.workloads.runs.contestants import EXACT
from actnn.workloads.runs.figures import Display, Figures, Outcome
from actnn.workloads.runs.interruption import Interrupted, Interruption
from actnn.workloads.runs.journal import Journal
from actnn.workloads.runs.settings import Options, Settings
from actnn.workloads.training import Training

LONGEST_REASON = 200


class DivergedError(ActnnError):
    """A training whose loss is no longer a number."""


class BudgetMissedError(ActnnError):
    """A run that ended before any step kept within its memory budget."""


@dataclass
class Run:
    """The trainings of a run with their log, display and checkpoint."""

    settings: Settings
    trainings: dict[str, Training]
    outcomes: dict[str, Outcome]
    path: Path
    journal: Journal
    display: Display
    interruption: Interruption
    about: dict[str, Any]
    options: Options
    processes: Processes = ALONE
    _saved_step: int = field(default=0, init=False)
    _saved_time: float = field(default_factory=time.monotonic, init=False)

    @property
    def leader(self) -> Training:
        """The first training; between steps, all have taken equally many."""
        return next(iter(self.trainings.values()))

    @property
    def is_over(self) -> bool:
        """Whether all epochs are trained and evaluated."""
        return self.leader.epoch_number == self.settings.epochs

    def go(self) -> None:
        """Train to the end; raise Interrupted, with everything saved, where somebody asks for it."""
        while not self.is_over:
            while not self.leader.epoch_is_over:
                stops, saves = self.processes.any(self.interruption.signal is not None, self._is_time_to_save())
                if stops or saves:
                    self.save()
                if stops:
                    raise Interrupted
                self.take_steps()
            self.save()
            self.end_epoch()
        self.save()

    def take_steps(self) -> None:
        """Let every training take a step; where one fails, a checkpoint without steps does not stay as a run."""
        first = self.leader.taken == 0
        if not self.processes.writes:
            for name, training in self.trainings.items():
                self.step(name, training)
            return
        try:
            with models.one_line(self.settings.model, "fails in its first step") if first else nullcontext():
                for name, training in self.trainings.items():
                    self.step(name, training)
        except Exception:
            with suppress(OSError):
                if self._saved_step == 0:
                    self.path.unlink(missing_ok=True)
                if first:
                    self.journal.discard()
            raise

    def step(self, name: str, training: Training) -> None:
        """Let one training take a step, and tell of it."""
        number, rate = training.taken, training.recipe.rate_of(training.taken, training.steps)
        images = min(training.batch, training.data.train.image_count - training.done * training.batch)
        logged = number % self.options.log_every == 0
        watch = self._watch(training) if logged else None
        begin = time.perf_counter()
        loss = training.advance(watch)
        seconds = time.perf_counter() - begin
        outcome = self.outcomes[name]
        outcome.seconds += seconds
        if images == training.batch or outcome.kept_bytes is None:
            self._note_kept(name, watch)
        figures = Figures(loss, images / seconds, outcome.kept_bytes, resident_bytes())
        self.display.step(name, training.taken, figures)
        if logged or not math.isfinite(loss):
            place = {"training": name, "epoch": training.epoch_number, "step": number, "rate": rate}
            self.journal.write("step", **place, **as_json(figures))
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss of {name} is {loss} after step {number}: lower --rate, raise --warm-up, or give it more "
                "--bits."
            )

    def end_epoch(self) -> None:
        """Evaluate all trainings and begin the next epoch."""
        for name, training in self.trainings.items():
            outcome = self.outcomes[name]
            check = self.interruption.check if not self.processes.together else lambda: None
            outcome.score, outcome.metric = training.score(after_batch=check), training.goal.metric.name
            place = {"training": name, "epoch": training.epoch_number, "step": training.taken}
            outcome.loss = training.end_epoch()
            seen = training.epoch_number * training.data.train.image_count
            speed = seen / outcome.seconds
            self.journal.write("epoch", **place, **outcome.as_log())
            self.display.epoch(name, training.epoch_number, self.settings.epochs, outcome, speed)

    def check_memory(self, say: Callable[[str], object]) -> None:
        """Raise BudgetMissedError where no step kept within the budget; say so where only the last one did not."""
        for name, outcome in self.outcomes.items():
            allowed, kept = self.settings.memory, outcome.kept_bytes
            if outcome.within_budget is None or allowed is None or kept is None or kept <= allowed:
                continue
            if outcome.within_budget:
                say(f"--memory {readable(allowed)} was met, but not in the end: the last step kept {readable(kept)}.")
                continue
            steps = self.trainings[name].steps
            first = "the only step measures" if steps == 1 else f"the first of {steps} steps measure"
            raise BudgetMissedError(
                f"--memory {readable(allowed)} was not met: {first}, and {readable(kept)} were kept. Train more steps, "
                "or allow more."
            )

    def save(self) -> None:
        """Write a checkpoint, in the first process; the others tell it their states."""
        states = {name: training.state_dict() for name, training in self.trainings.items()}
        if self.processes.writes:
            checkpoint.save(
                self.path,
                self.about
                | {
                    "settings": self.settings.as_dict(),
                    "trainings": states,
                    "outcomes": {name: asdict(outcome) for name, outcome in self.outcomes.items()},
                    "log": self.journal.length(),
                },
            )
        self._saved_step, self._saved_time = self.leader.taken, time.monotonic()

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint was taken."""
        for name, training in self.trainings.items():
            try:
                training.load_state_dict(state["trainings"][name])
                self.outcomes[name] = Outcome.of(state["outcomes"][name])
            except (KeyError, ValueError, RuntimeError, TypeError, AttributeError) as problem:
                # torch tells all keys, a line each
                reason = " ".join(str(problem).split())[:LONGEST_REASON]
                raise CheckpointError(
                    f"the checkpoint {self.path} does not fit {self.settings.model!r} any more ({reason}): bring the "
                    "model of that run back, or name another --out."
                ) from problem
        self._saved_step = self.leader.taken

    def _is_time_to_save(self) -> bool:
        return self.options.checkpoint_every.due(
            self.leader.taken - self._saved_step, time.monotonic() - self._saved_time
        )

    def _watch(self, training: Training) -> Any:
        from actnn.torch.memory import KeptBytes

        return KeptBytes(training.model)

    def _note_kept(self, name: str, watch: Any | None) -> None:
        """Note what a forward kept; a model with a budget reports it itself, since its own hooks hide it from ours."""
        outcome, allowed = self.outcomes[name], self.settings.memory
        if allowed is not None and name != EXACT:
            # in every step: the first ones, which measure, keep more than those that nobody logs
            report = self.trainings[name].model.report()
            outcome.kept_bytes = report.kept_bytes + report.other_bytes
            outcome.within_budget = bool(outcome.within_budget) or outcome.kept_bytes <= allowed
        elif watch is not None:
            outcome.kept_bytes = watch.total


def as_json(figures: Figures) -> dict[str, Any]:
    """Return figures for a log: JSON has no word for what is not finite."""
    return asdict(figures) | {"loss": figures.loss if math.isfinite(figures.loss) else None}


def resident_bytes() -> int | None:
    """Return the resident memory of this process, None where the system does not tell."""
    try:
        return resident("VmRSS")
    except OSError:
        return None
