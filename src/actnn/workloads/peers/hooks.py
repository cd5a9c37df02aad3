"""Methods that take whatever autograd saves: hooks around a model's forward, and what they leave alone."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

from actnn.workloads.peers.saved import Saved

# smaller tensors are not worth a code: means, deviations, counters
LEAST_ELEMENTS = 256
# what may take the place of a tensor: what was saved for it, and what makes the tensor of that
Packed = tuple[Saved, Callable[..., Tensor]]


class Method(ABC):
    """What a method keeps in place of a tensor."""

    @abstractmethod
    def encode(self, x: Tensor, number: int) -> tuple[tuple[Tensor, ...], Callable[..., Tensor]]:
        """Return what to keep of the ``number``-th tensor of a forward, and what makes the tensor of that again."""

    def takes(self, x: Tensor) -> bool:
        """Tell whether a tensor is coded at all: statistics, of channels or of rows, are not."""
        is_statistic = x.dim() < 2 or x.shape[-1] == 1
        return x.is_floating_point() and x.numel() >= LEAST_ELEMENTS and not is_statistic and x.layout is torch.strided


class Hooks(saved_tensors_hooks):
    """Gives a method every tensor that autograd saves: each once, the model's own parameters and buffers left out.

    What the method keeps is saved by autograd in turn, outside of these hooks.
    """

    def __init__(self, model: nn.Module, method: Method) -> None:
        own = (*model.parameters(), *model.buffers())
        self._own = {tensor.untyped_storage().data_ptr() for tensor in own}
        self._method, self._count = method, 0
        self._seen: dict[Any, tuple[weakref.ref[Any], weakref.ref[Any]]] = {}
        super().__init__(self._pack, self._unpack)

    def _pack(self, x: Tensor) -> Any:
        self.__exit__()
        try:
            return self._packed(x.detach())
        finally:
            self.__enter__()

    def _packed(self, x: Tensor) -> Any:
        memory = x.untyped_storage()
        if memory.data_ptr() in self._own or not self._method.takes(x):
            return _Shared(Saved(x), lambda kept: kept)
        place = (memory.data_ptr(), x.storage_offset(), x.shape, x.stride(), x._version)
        known = self._seen.get(place)
        # the address of memory that was given back may be another tensor's by now
        if known is not None and known[0]() is memory and (shared := known[1]()) is not None:
            return shared
        tensors, decode = self._method.encode(x, self._count)
        self._count += 1
        packed = _Shared(Saved(*tensors), decode)
        self._seen[place] = weakref.ref(memory), weakref.ref(packed)
        return packed

    def _unpack(self, packed: _Shared) -> Tensor:
        return packed.decode(*packed.saved.tensors)


class _Shared:
    """What stands for one tensor, however often autograd saved it."""

    def __init__(self, saved: Saved, decode: Callable[..., Tensor]) -> None:
        self.saved, self.decode = saved, decode


def hooked(model: nn.Module, method: Method, written_out: bool = True) -> nn.Module:
    """Let a method take whatever autograd saves in the forward of a model.

    Attention is ``written_out`` in matrices, as it was when these methods were: what one fused kernel saves besides,
    the logarithms of its sums, stands noise badly.
    """
    forward = model.forward

    def with_hooks(*args: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **named)
        with Hooks(model, method), sdpa_kernel(SDPBackend.MATH) if written_out else nullcontext():
            return forward(*args, **named)

    model.forward = with_hooks
    return model
