"""What exact training keeps, computed on tensors that have shapes and no memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actnn.workloads.frameworks.torch import TorchTrainee
from actnn.workloads.task import EXACT, Task

if TYPE_CHECKING:
    from torch import Tensor


def exact_bytes(task: Task) -> dict[str, int]:
    """Return ``kept_bytes``, ``loss_bytes`` and ``own_bytes`` of exact training, as they would be measured."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    with torch.device("meta"):
        trained = TorchTrainee(task, EXACT)
        own = {id(storage) for storage in storages(trained.model)}
        # held as long as they are counted: an address means nothing without memory, and an identity would be reused
        blocks: dict[int, Any] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            blocks[id(storage)] = storage
            return tensor

        def counted() -> int:
            return sum(storage.nbytes() for key, storage in blocks.items() if key not in own)

        with saved_tensors_hooks(note, lambda tensor: tensor):
            outputs = trained.model(trained.images)
            network = counted()
            trained.loss(outputs)
        return {
            "kept_bytes": counted(),
            "loss_bytes": counted() - network,
            "own_bytes": trained.own_bytes(),
        }


def storages(model: Any) -> list[Any]:
    """Return the blocks of memory of a model's own tensors."""
    return [tensor.untyped_storage() for tensor in (*model.parameters(), *model.buffers())]
