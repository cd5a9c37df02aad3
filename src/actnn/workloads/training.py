"""How commands train a network: the order of images, optimizer and learning rates, conversion, and going on later."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actnn.workloads import tasks
from actnn.workloads.processes import ALONE, Processes, distributed_model, load_states, of_all, states

if TYPE_CHECKING:
    from torch import Tensor

    from actnn.workloads.datasets import DataSet
    from actnn.workloads.tasks.goal import Goal

PEAK_RATE = 0.1
# where the learning rate begins and ends, as parts of its peak
FIRST_SHARE, LAST_SHARE = 1 / 25, 1 / 25 / 1e4


@dataclass(frozen=True)
class Recipe:
    """How weights learn: an optimizer, a schedule of learning rates with warm-up, and precision.

    ``momentum`` is that of stochastic gradient descent. ``warm_up`` is the share of all steps in which the learning
    rate rises to ``rate``; ``bf16`` computes in bfloat16 what autocast allows to.
    """

    rate: float = PEAK_RATE
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.0
    warm_up: float = 0.3
    bf16: bool = False
    channels_last: bool = False
    optimizer: str = "sgd"
    schedule: str = "cosine"

    def rate_of(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0, of so many."""
        top = self.warm_up * steps - 1
        if step <= top:
            return between(FIRST_SHARE * self.rate, self.rate, step / top if top > 0 else 1.0)
        return SCHEDULES[self.schedule](self.rate, LAST_SHARE * self.rate, min(1.0, (step - top) / (steps - 1 - top)))

    def optimizer_of(self, parameters: Any) -> Any:
        """Return the optimizer of some parameters."""
        return OPTIMIZERS[self.optimizer](self, parameters)


RECIPE = Recipe()


def between(start: float, end: float, share: float) -> float:
    """Return a value on half a cosine from start to end."""
    return end + (start - end) / 2 * (math.cos(math.pi * share) + 1)


def along_a_line(start: float, end: float, share: float) -> float:
    """Return a value on the line from start to end."""
    return start + (end - start) * share


def at_the_start(start: float, end: float, share: float) -> float:
    """Return the value at the start."""
    return start


def sgd(recipe: Recipe, parameters: Any) -> Any:
    """Return stochastic gradient descent with momentum."""
    import torch

    decay = recipe.weight_decay
    return torch.optim.SGD(parameters, lr=recipe.rate, momentum=recipe.momentum, weight_decay=decay)


def adamw(recipe: Recipe, parameters: Any) -> Any:
    """Return Adam with decoupled weight decay."""
    import torch

    return torch.optim.AdamW(parameters, lr=recipe.rate, weight_decay=recipe.weight_decay)


# how the learning rate goes from its peak to its end, and what follows gradients, by name
SCHEDULES = {"cosine": between, "linear": along_a_line, "constant": at_the_start}
OPTIMIZERS = {"sgd": sgd, "adamw": adamw}


def step_count(images: int, batch: int, epochs: int) -> int:
    """Return how many steps some epochs take; the last step of an epoch may have fewer images."""
    return epochs * math.ceil(images / batch)


def compressed(
    model: Any,
    level: str,
    bits: float | None = None,
    *,
    seed: int = 0,
    memory: str | float | None = None,
    **settings: Any,
) -> Any:
    """Convert a model of either framework at a level and a width, None for the level's own.

    ``settings`` are others of ``actnn.config``.
    """
    import actnn

    actnn.set_optimization_level(level)
    if bits is not None:
        settings["activation_compression_bits"] = [bits]
    for name, value in settings.items():
        setattr(actnn.config, name, value)
    return actnn.QModule(model, seed=seed, memory=memory)


class Training:
    """A model on its way through a data set to a goal; equal seeds give equal orders of images.

    ``before_step`` is told the positions of a step's images in the data set, ``after_step`` that it is done. Random
    numbers that layers draw come from a sequence of its own, so that trainings in turns do not change each other. Where
    several ``processes`` train together, each takes its part of every batch.
    """

    def __init__(
        self,
        model: Any,
        data: DataSet,
        *,
        batch: int,
        steps: int,
        seed: int = 0,
        recipe: Recipe = RECIPE,
        before_step: Callable[[Tensor], object] = lambda positions: None,
        after_step: Callable[[], object] = lambda: None,
        processes: Processes = ALONE,
        goal: Goal | None = None,
    ) -> None:
        import torch

        self.model, self.data, self.batch, self.steps, self.recipe = model, data, batch, steps, recipe
        self.before_step, self.after_step = before_step, after_step
        self.processes = processes
        self.goal = goal or tasks.find(tasks.CLASSIFICATION)
        self.shuffle = torch.Generator().manual_seed(seed)
        # what learns in all processes: the model itself, or what holds it
        self._learner = distributed_model(model, processes)
        self.optimizer = recipe.optimizer_of(model.parameters())
        self.epoch_number = self.done = self.taken = 0
        self.total_loss = 0.0
        self._random = torch.get_rng_state()
        self._shuffled = self.shuffle.get_state()
        self._order: list[Tensor] = []

    @property
    def steps_of_epoch(self) -> int:
        """How many steps an epoch has."""
        return step_count(self.data.train.image_count, self.batch, 1)

    @property
    def epoch_is_over(self) -> bool:
        """Whether all images were seen in this epoch."""
        return self.done == self.steps_of_epoch

    def batches(self) -> Iterator[Tensor]:
        """Yield the positions of one epoch's images, a batch at a time, in a new random order."""
        import torch

        yield from torch.randperm(self.data.train.image_count, generator=self.shuffle).split(self.batch)

    def step(self, positions: Tensor, watched: AbstractContextManager[Any] | None = None) -> float:
        """Take one step on some images and return the loss; ``watched`` is entered around the forward pass."""
        total = len(positions)
        positions = self.processes.part(positions)
        given, wanted = self.data.train.batch(positions, self.epoch_number)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate_of(self.taken, self.steps)
        self.before_step(positions)
        self.optimizer.zero_grad()
        with self._own_random(), watched or nullcontext():
            loss = self.goal.loss(self._call, given, wanted, self.data, self.recipe)
        if self.processes.together:
            # gradients are averaged over processes, whose parts may differ in size
            (loss * (len(positions) * self.processes.count / total)).backward()
        else:
            loss.backward()
        self.optimizer.step()
        self.taken += 1
        self.after_step()
        return self.processes.mean_loss(float(loss.item()), len(positions), total)

    def advance(self, watched: AbstractContextManager[Any] | None = None) -> float:
        """Take the next step of this epoch and return its loss."""
        if not self._order:
            self._shuffled = self.shuffle.get_state()
            self._order = list(self.batches())
        if self.done + 1 < len(self._order):
            self.data.train.prepare(self.processes.part(self._order[self.done + 1]), self.epoch_number)
        loss = self.step(self._order[self.done], watched)
        self.done += 1
        self.total_loss += loss
        return loss

    def end_epoch(self) -> float:
        """Make ready for the next epoch and return the mean loss of this one."""
        mean = self.total_loss / self.done
        self.epoch_number += 1
        self.done, self.total_loss, self._order = 0, 0.0, []
        return mean

    def epoch(self) -> float:
        """Train on every image once and return the mean loss; the first loss that is not finite ends it."""
        while not self.epoch_is_over and math.isfinite(self.advance()):
            pass
        return self.end_epoch()

    def score(self, after_batch: Callable[[], object] = lambda: None) -> float:
        """Return what the model reaches on the data to test on, by the metric of its goal."""
        import torch

        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            found = self.goal.score(self._call, self.data, self.batch, after_batch)
        self.model.train(was_training)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return, between steps, all that the next ones depend on; safe to store with ``torch.save``.

        All processes have to call; the first one's is whole.
        """
        session = getattr(self.model, "session_state", None)
        own = {"session": None if session is None else session(), "random": self._random}
        model, optimizer = states(self._learner, self.optimizer, self.processes)
        return {
            "model": model,
            "optimizer": optimizer,
            **own,
            "processes": of_all(own, self.processes),
            "shuffled": self._shuffled if self._order else self.shuffle.get_state(),
            "epoch": self.epoch_number,
            "done": self.done,
            "taken": self.taken,
            "total_loss": self.total_loss,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a training with the same model, data and settings was when its state was taken."""
        load_states(self._learner, self.optimizer, state["model"], state["optimizer"], self.processes)
        everyone = state.get("processes") or [state]
        own = everyone[self.processes.number % len(everyone)]
        if own["session"] is not None:
            self.model.load_session_state(own["session"])
        self._random = own["random"]
        self.shuffle.set_state(state["shuffled"])
        self.epoch_number, self.done, self.taken = state["epoch"], state["done"], state["taken"]
        self.total_loss = state["total_loss"]
        self._shuffled = state["shuffled"]
        self._order = list(self.batches()) if self.done else []

    def _call(self, *given: Any, **named: Any) -> Any:
        import torch

        if self.recipe.channels_last:
            given = tuple(map(channels_last, given))
        device = next(self.model.parameters()).device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.recipe.bf16):
            out = (self._learner if self.model.training else self.model)(*given, **named)
        return out.float() if self.recipe.bf16 and isinstance(out, torch.Tensor) else out

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        import torch

        outside = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(outside)


def channels_last(x: Any) -> Any:
    """Return images with their channels last in memory, and all else as it is."""
    import torch

    is_image = isinstance(x, torch.Tensor) and x.dim() == 4
    return x.contiguous(memory_format=torch.channels_last) if is_image else x
