"""Who holds a tensor: how many references there are to it, and to its memory."""

from __future__ import annotations

import sys
import weakref
from functools import cache

import torch
from torch import Tensor

from actnn.session.tags import Noted

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
    """Tell whether no C++ code holds a tensor, as autograd does what it saves, and nobody else its memory.

    Nobody may hold it weakly either, but this library, which reads no values by that.
    """
    if tensor_references(x) != OWN_REFERENCES or not undivided(x):
        return False
    return not weakref.getweakrefcount(x) or all(isinstance(held, Noted) for held in weakref.getweakrefs(x))


def undivided(x: Tensor) -> bool:
    """Tell whether no other tensor holds a tensor's memory, or a part of it, and nobody that memory itself."""
    memory = x.untyped_storage()
    # the object of Python is one for all who ask
    own = sys.getrefcount(memory) == references_of_memory()
    return own and memory_references(memory._cdata) == MEMORY_REFERENCES


@cache
def references_of_memory() -> int:
    """Return how many references the object of a tensor's memory has that one variable holds."""
    x = torch.empty(1)
    memory = x.untyped_storage()
    return sys.getrefcount(memory)
