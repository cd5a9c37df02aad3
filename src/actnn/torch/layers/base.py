"""What all compressed layers share."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from actnn.model.layers.base import CompressedLayer
from actnn.torch.tensors import ARRAYS


class Compressed(CompressedLayer):
    """A compressed layer of torch."""

    tensors = ARRAYS

    def own_parameters(self) -> Iterable[nn.Parameter]:
        """Return this layer's parameters."""
        return self.parameters(recurse=False)
