"""What all compressed layers share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from actnn.model.layers import CompressedLayer
from actnn.torch.door.mode import closed
from actnn.torch.tensors import ARRAYS


class Compressed(CompressedLayer):
    """A compressed layer of torch, whose parameters are ``weight`` and ``bias`` where it has any."""

    tensors = ARRAYS
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the layer with the functional door closed: what it does is its own."""
        # tickets of a store tell their copies of what they stand for, by functions that must be seen
        if not self.site.session.store.keeps_in_place:
            return super().__call__(*arguments, **options)  # type: ignore[misc]
        with closed():
            return super().__call__(*arguments, **options)  # type: ignore[misc]

    def plainly(self, *arguments: Any) -> Tensor:
        """Return what the plain layer makes of an input."""
        y: Tensor = self.plain.forward(self, *arguments)
        return y

    def parameter(self, name: str) -> Any:
        """Return a parameter, None where the layer has none; torch's way to it takes several times as long."""
        parameters = self._parameters
        # somebody may have put a plain tensor in a parameter's place
        return parameters[name] if name in parameters else getattr(self, name)

    def buffer(self, name: str) -> Any:
        """Return a buffer, None where the layer has none."""
        buffers = self._buffers
        return buffers[name] if name in buffers else getattr(self, name)

    def records(self, x: Tensor) -> bool:
        """Tell whether autograd will want a gradient through this call, and codes are to serve it."""
        if not (torch.is_grad_enabled() and self.site.compresses) or 0 in x.shape:
            return False
        if x.requires_grad:
            return True
        return any(own is not None and own.requires_grad for own in self._parameters.values())
