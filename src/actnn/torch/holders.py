"""Who holds a tensor: how many references there are to it, and to its memory."""

from __future__ import annotations

import torch
from torch import Tensor

# a tensor, and the object of Python by which its memory is asked for it
OWN_REFERENCES, MEMORY_REFERENCES = 1, 2
# smaller tensors are not worth the asking
LEAST_BYTES = 2**18
# tensors of this size are worth it where it takes longer
LARGE_BYTES = 2**20
# no public function tells how many references C++ code holds to a tensor, and how many there are to its memory
tensor_references = Tensor._use_count  # type: ignore[attr-defined]
memory_references = torch._C._storage_Use_Count


def alone(x: Tensor) -> bool:
    """Tell whether no C++ code holds a tensor, as autograd does what it saves, and no other tensor its memory."""
    return bool(tensor_references(x) == OWN_REFERENCES and undivided(x))


def undivided(x: Tensor) -> bool:
    """Tell whether no other tensor holds a tensor's memory, or a part of it."""
    return memory_references(x.untyped_storage()._cdata) == MEMORY_REFERENCES
