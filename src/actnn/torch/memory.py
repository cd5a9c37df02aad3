"""What autograd keeps, and what accelerators hold, counted; and what their caches hold unused, given back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from actnn.core.usage import memory_usage

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


def trim_caches(model: nn.Module, threshold: float) -> None:
    """Empty the cache of each accelerator that a model lies on where more than a share of it is not in use."""
    for device in {parameter.device for parameter in model.parameters()}:
        module = None if device.type in WITHOUT_CACHE else torch.get_device_module(device)
        # some accelerators have no caching allocator
        if all(hasattr(module, name) for name in CACHE):
            reserved, used = module.memory_reserved(device), module.memory_allocated(device)
            if reserved - used > threshold * reserved:
                module.empty_cache()


def _unchanged(kept: Any) -> Any:
    return kept
