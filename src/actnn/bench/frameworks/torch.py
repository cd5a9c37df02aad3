"""Contestants in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actnn.bench import models
from actnn.bench.checkpointing import checkpointed
from actnn.bench.task import CHECKPOINT, EXACT, Task
from actnn.cli.training import compressed

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

RATE, MOMENTUM = 0.01, 0.9


class Trainee:
    """One contestant; see the protocol of the same name."""

    def __init__(self, task: Task, contestant: str) -> None:
        import torch

        torch.set_num_threads(task.threads)
        torch.manual_seed(0)
        model = models.build(task.model, classes=task.classes)
        form = torch.channels_last if task.channels_last else torch.contiguous_format
        self.model = contest(task, contestant, model.to(memory_format=form))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)
        torch.manual_seed(1)
        self.images = torch.randn(task.batch, 3, task.height, task.width).contiguous(memory_format=form)
        # a segmentation model has a class for every pixel
        places = (task.height, task.width) if task.model in models.SEGMENTATION else ()
        self.labels = torch.randint(0, task.classes, (task.batch, *places))

    def forward(self) -> Tensor:
        return self.loss(self.model(self.images))

    def loss(self, outputs: Tensor) -> Tensor:
        """Return the loss of what the model gave."""
        from torch.nn import functional

        return functional.cross_entropy(outputs, self.labels)

    def finish(self, loss: Tensor) -> None:
        loss.backward()
        self.optimizer.step()

    def clear(self, keep: bool = False) -> None:
        self.optimizer.zero_grad(set_to_none=not keep)

    def kept(self) -> dict[str, int]:
        from actnn.torch.memory import KeptBytes

        with KeptBytes(self.model) as kept:
            outputs = self.model(self.images)
            network = kept.total
            loss = self.loss(outputs)
        del outputs, loss
        return {"kept_bytes": kept.total, "loss_bytes": kept.total - network}

    def own_bytes(self) -> int:
        parameters = sum(parameter.nbytes for parameter in self.model.parameters())
        buffers = sum(buffer.nbytes for buffer in self.model.buffers())
        # each parameter has a gradient and a momentum
        return 3 * parameters + buffers + self.images.nbytes + self.labels.nbytes


def contest(task: Task, contestant: str, model: nn.Module) -> nn.Module:
    """Return a model as a contestant trains it."""
    if contestant in PLAIN:
        return PLAIN[contestant](model)
    settings: dict[str, Any] = {"share_codes": task.share_codes, "rounding": task.rounding}
    return compressed(model, contestant, task.width_of(contestant), **settings)


PLAIN: dict[str, Callable[[nn.Module], nn.Module]] = {EXACT: lambda model: model, CHECKPOINT: checkpointed}
