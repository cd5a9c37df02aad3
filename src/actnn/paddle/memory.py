"""What autograd keeps, counted."""

from __future__ import annotations

from typing import Any

from paddle import Tensor, nn
from paddle.autograd import saved_tensors_hooks


class KeptBytes(saved_tensors_hooks):
    """Counts the bytes that autograd saves while it is entered: each block of memory once, the model's own left out."""

    def __init__(self, model: nn.Layer) -> None:
        own = (*model.parameters(), *model.buffers())
        self._own = {tensor.data_ptr() for tensor in own}
        self._blocks: dict[int, int] = {}
        super().__init__(self._note, _unchanged)

    @property
    def total(self) -> int:
        """Bytes counted so far."""
        return sum(self._blocks.values())

    def __enter__(self) -> KeptBytes:
        super().__enter__()
        return self

    def possible(self) -> bool:
        """Tell whether nobody else's hooks are in place: Paddle allows one pair at a time."""
        try:
            with self:
                return True
        except ValueError:
            return False

    def _note(self, tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in self._own:
            self._blocks[tensor.data_ptr()] = tensor.size * tensor.element_size()
        # the very tensor that was given would hold the graph, and the graph it
        return tensor.detach()


def _unchanged(kept: Any) -> Any:
    return kept
