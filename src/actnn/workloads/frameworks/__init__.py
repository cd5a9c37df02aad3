"""The frameworks that benchmarks train with: a row here and one module with a class ``Trainee`` each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from actnn.workloads.frameworks.trainee import Trainee
from actnn.workloads.task import Task

FRAMEWORKS: Mapping[str, str] = {
    "torch": "actnn.workloads.frameworks.torch:TorchTrainee",
    "paddle": "actnn.workloads.frameworks.paddle:PaddleTrainee",
}


def trainee(task: Task, contestant: str) -> Trainee:
    """Return a contestant in the framework of a task."""
    module, _, name = FRAMEWORKS[task.framework].partition(":")
    made: Trainee = getattr(import_module(module), name)(task, contestant)
    return made
