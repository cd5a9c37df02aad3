"""What level ``swap`` leaves with autograd in place of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actnn.core.tensors import Order, Tensors
from actnn.errors import SessionError
from actnn.kernels.contract import Array


@dataclass(frozen=True)
class Swapped:
    """A tensor that left: what the store gave for its bytes, how to read them, and whether it is to say it learns."""

    saved: Array
    order: Order
    dtype: Any
    wants_gradient: bool = False


@dataclass(frozen=True)
class Left:
    """A tensor that stayed where it is, and its version: frameworks check none of what goes through hooks."""

    tensor: Array
    version: int

    @classmethod
    def of(cls, tensors: Tensors, x: Array) -> Left:
        """Return what stands for ``x`` in its present version."""
        return cls(x, tensors.version(x))

    def unchanged(self, tensors: Tensors) -> Array:
        """Return the tensor, unless it was changed since it was saved."""
        if (version := tensors.version(self.tensor)) != self.version:
            raise SessionError(
                f"a tensor of shape {tuple(self.tensor.shape)} that backward needs was changed in place after it was "
                f"saved: it is at version {version}, expected {self.version}. Change a copy of it, or call backward "
                "first."
            )
        return self.tensor
