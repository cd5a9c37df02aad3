"""What autograd saves as it is: whether it was changed meanwhile, and how many bytes it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from actnn.errors import SessionError
from actnn.kernels.contract import Array
from actnn.session.tensors import Tensors


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


class Blocks:
    """Blocks of memory by address, each counted once, those of a model itself left out."""

    def __init__(self, own: Iterable[int]) -> None:
        self._own = frozenset(own)
        self._sizes: dict[int, int] = {}

    def count(self, address: int, nbytes: int) -> None:
        """Count a block, which may have been counted already."""
        if address not in self._own:
            self._sizes[address] = nbytes

    def knows(self, address: int) -> bool:
        """Tell whether a block was counted already, or is the model's own."""
        return address in self._own or address in self._sizes

    @property
    def total(self) -> int:
        """Bytes counted so far."""
        return sum(self._sizes.values())
