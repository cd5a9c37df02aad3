"""What autograd keeps, counted."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


class KeptBytes(saved_tensors_hooks):
    """Counts the bytes that autograd saves while it is entered: each block of memory once, the model's own left out."""

    def __init__(self, model: nn.Module) -> None:
        # by address: a linear layer saves a view of its weight
        own = (*model.parameters(), *model.buffers())
        self._own = {tensor.untyped_storage().data_ptr() for tensor in own}
        self._blocks: dict[int, int] = {}
        super().__init__(self._note, _unchanged)

    @property
    def total(self) -> int:
        """Bytes counted so far."""
        return sum(self._blocks.values())

    def __enter__(self) -> KeptBytes:
        super().__enter__()
        return self

    def _note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._own:
            self._blocks[storage.data_ptr()] = storage.nbytes()
        return tensor


def _unchanged(kept: Any) -> Any:
    return kept
