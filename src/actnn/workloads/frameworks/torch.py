"""Contestants in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from actnn.errors import ConfigError
from actnn.workloads import language, peers, workload
from actnn.workloads.batch import Batch
from actnn.workloads.checkpointing import checkpointed
from actnn.workloads.frameworks.trainee import ADAMW, MOMENTUM, Trainee, contest, in_kept_heap, unchanged
from actnn.workloads.task import CHECKPOINT, EXACT, FLOOR, KEPT_HEAP, Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn


def workload_of(task: Task) -> workload.Workload:
    """Return what a task trains."""
    size = {"height": task.height, "width": task.width}
    return workload.find(task.model, **size, classes=task.classes, channels_last=task.channels_last)


# what methods that look at a step beforehand are shown
SMALL_BATCH = 2


PLAIN: dict[str, Callable[[Any], nn.Module]] = {
    EXACT: unchanged,
    KEPT_HEAP: in_kept_heap,
    FLOOR: unchanged,
    CHECKPOINT: checkpointed,
}


class TorchTrainee(Trainee):
    """One contestant; models are those of ``workload.find``."""

    batch: Batch

    def __init__(self, task: Task, contestant: str) -> None:
        import torch

        torch.set_num_threads(task.threads)
        torch.manual_seed(task.seed)
        self.model = contest(task, contestant, workload_of(task).build(), PLAIN)
        if task.optimizer == ADAMW:
            self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=task.rate)
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=task.rate, momentum=MOMENTUM)
        self._language = language.find(task.model)
        if peers.is_to_prepare(self.model):
            self.load(Task.of(task.settings | {"batch": min(task.batch, SMALL_BATCH)}))
            peers.prepare(self.model, lambda: self.forward().backward())
            self.clear()
        self.load(task)

    def load(self, task: Task) -> None:
        import torch

        torch.manual_seed(1)
        self.batch = workload_of(task).batch(task.batch)

    def take(self, images: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        import torch

        if self.batch.named:
            raise ConfigError(f"{type(self.model).__name__} learns from texts: expected a model for images.")
        self.batch = Batch((torch.from_numpy(images),), {}, torch.from_numpy(labels))

    def read(self, texts: NDArray[np.int64]) -> None:
        import torch

        if self._language is None:
            super().read(texts)
        else:
            self.batch = self._language.batch_of(torch.from_numpy(texts))

    def outputs(self) -> Any:
        return self.batch.outputs(self.model)

    def loss(self, outputs: Any) -> Tensor:
        return self.batch.loss(outputs)

    def examples(self) -> Iterable[Tensor]:
        return self.batch.tensors

    def clear(self, keep: bool = False) -> None:
        self.optimizer.zero_grad(set_to_none=not keep)

    def counter(self) -> Any:
        from actnn.torch.memory import KeptBytes

        return KeptBytes(self.model)

    def layers(self) -> Iterable[Any]:
        yield from self.model.modules()

    def bytes_of(self, tensors: Iterable[Tensor]) -> int:
        return sum(tensor.nbytes for tensor in tensors)
