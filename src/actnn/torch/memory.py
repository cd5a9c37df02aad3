"""What autograd keeps, and what accelerators hold, counted; and what their caches hold unused, given back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from actnn.model.usage import compute_tensor_bytes, memory_usage
from actnn.session.saved import Blocks, Left
from actnn.torch.tensors import ARRAYS

ACCELERATORS = ("cuda", "xpu", "mtia")
# the functions by which torch tells of, and empties, a cache of device memory
CACHE = ("memory_reserved", "memory_allocated", "empty_cache")
WITHOUT_CACHE = ("cpu", "meta")


def device_bytes() -> int:
    """Return the bytes of all tensors on accelerators."""
    modules = [getattr(torch, name) for name in ACCELERATORS if hasattr(torch, name)]
    used = [module for module in modules if module.is_available() and module.is_initialized()]
    return sum(module.memory_allocated(index) for module in used for index in range(module.device_count()))


def get_memory_usage(print_info: bool = False) -> int:
    """Return the bytes that tensors take on accelerators or, where there are none, that this process holds."""
    return memory_usage(device_bytes(), print_info)


class KeptBytes(saved_tensors_hooks):
    """Counts the bytes that autograd saves while it is entered: each block of memory once, the model's own left out."""

    def __init__(self, model: nn.Module) -> None:
        # by address: a linear layer saves a view of its weight
        self._blocks = Blocks(map(address, (*model.parameters(), *model.buffers())))
        super().__init__(self._pack, self._unpack)

    @property
    def total(self) -> int:
        """Bytes counted so far."""
        return self._blocks.total

    # torch's own returns None, and no other type may take the place of that
    def __enter__(self) -> Any:
        super().__enter__()
        return self

    def _pack(self, tensor: Tensor) -> Any:
        return self._note(tensor)

    def _unpack(self, kept: Any) -> Tensor:
        x: Tensor = kept.unchanged(ARRAYS)
        return x

    def _note(self, tensor: Tensor) -> Left:
        self._blocks.count(address(tensor), whole_bytes(tensor))
        return Left.of(ARRAYS, tensor)


def address(tensor: Tensor) -> int:
    """Return where a tensor's memory is, or a number of its own where it has none."""
    return tensor.untyped_storage().data_ptr() if has_memory(tensor) else id(tensor)


def whole_bytes(tensor: Tensor) -> int:
    """Return the bytes of the memory that a tensor lies in."""
    return tensor.untyped_storage().nbytes() if has_memory(tensor) else compute_tensor_bytes(tensor)


def has_memory(tensor: Tensor) -> bool:
    """Tell whether a tensor lies in memory of its own; sparse and distributed ones are made of others."""
    return tensor.layout is torch.strided and type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__


def trim_caches(model: nn.Module, threshold: float) -> None:
    """Empty the cache of each accelerator that a model lies on where more than a share of it is not in use."""
    for device in {parameter.device for parameter in model.parameters()}:
        module: Any = None if device.type in WITHOUT_CACHE else torch.get_device_module(device)
        # some accelerators have no caching allocator
        if all(hasattr(module, name) for name in CACHE):
            reserved, used = module.memory_reserved(device), module.memory_allocated(device)
            if reserved - used > threshold * reserved:
                module.empty_cache()
