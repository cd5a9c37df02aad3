"""Contestants in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from actnn.workloads import models
from actnn.workloads.checkpointing import checkpointed
from actnn.workloads.frameworks.trainee import MOMENTUM, Trainee, contest
from actnn.workloads.task import CHECKPOINT, EXACT, Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn


def form_of(task: Task) -> Any:
    """Return the memory format of a task's tensors."""
    import torch

    return torch.channels_last if task.channels_last else torch.contiguous_format


PLAIN: dict[str, Callable[[Any], nn.Module]] = {EXACT: lambda model: model, CHECKPOINT: checkpointed}


class TorchTrainee(Trainee):
    """One contestant; models are those of ``models.build``."""

    def __init__(self, task: Task, contestant: str) -> None:
        import torch

        torch.set_num_threads(task.threads)
        torch.manual_seed(task.seed)
        model: Any = models.build(task.model, classes=task.classes)
        self.model = contest(task, contestant, model.to(memory_format=form_of(task)), PLAIN)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=task.rate, momentum=MOMENTUM)
        self.load(task)

    def load(self, task: Task) -> None:
        import torch

        torch.manual_seed(1)
        self.images = torch.randn(task.batch, 3, task.height, task.width).contiguous(memory_format=form_of(task))
        # a segmentation model has a class for every pixel
        places = (task.height, task.width) if task.model in models.SEGMENTATION else ()
        self.labels = torch.randint(0, task.classes, (task.batch, *places))

    def take(self, images: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        import torch

        self.images, self.labels = torch.from_numpy(images), torch.from_numpy(labels)

    def loss(self, outputs: Tensor) -> Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs, self.labels)

    def clear(self, keep: bool = False) -> None:
        self.optimizer.zero_grad(set_to_none=not keep)

    def counter(self) -> Any:
        from actnn.torch.memory import KeptBytes

        return KeptBytes(self.model)

    def layers(self) -> Iterable[Any]:
        yield from self.model.modules()

    def bytes_of(self, tensors: Iterable[Tensor]) -> int:
        return sum(tensor.nbytes for tensor in tensors)
