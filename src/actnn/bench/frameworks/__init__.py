"""The frameworks that benchmarks train with: a row here and one module with a class ``Trainee`` each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from actnn.bench.task import Task

FRAMEWORKS: Mapping[str, str] = {"torch": "actnn.bench.frameworks.torch", "paddle": "actnn.bench.frameworks.paddle"}


class Trainee(Protocol):
    """One contestant with its model, batch and optimizer (SGD with momentum), made by ``Trainee(task, contestant)``.

    Equal tasks give equal weights and equal batches.
    """

    model: Any

    def forward(self) -> Any:
        """Return the loss of the batch."""

    def finish(self, loss: Any) -> None:
        """Do the rest of a step: backward and update."""

    def clear(self, keep: bool = False) -> None:
        """Forget the gradients of the last step; ``keep`` their memory."""

    def kept(self) -> dict[str, int]:
        """Return ``kept_bytes``, all that autograd keeps after a forward, and ``loss_bytes``, the loss's share."""

    def own_bytes(self) -> int:
        """Return the bytes of parameters, buffers, gradients, the optimizer's state and the batch."""


def trainee(task: Task, contestant: str) -> Trainee:
    """Return a contestant in the framework of a task."""
    made: Trainee = import_module(FRAMEWORKS[task.framework]).Trainee(task, contestant)
    return made


def step(trained: Trainee, keep_gradients: bool = False) -> None:
    """Take one step."""
    trained.clear(keep_gradients)
    trained.finish(trained.forward())
