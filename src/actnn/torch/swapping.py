"""Activations that wait elsewhere between forward and backward, exactly as they are: level ``swap``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from actnn.core.session import Session
from actnn.core.site import Site
from actnn.core.store import LEAST_BYTES
from actnn.core.tensors import Order
from actnn.torch.tensors import ARRAYS


@dataclass(frozen=True)
class Swapped:
    """A tensor that left: what the store gave for its bytes, and how to read them."""

    saved: Tensor
    order: Order
    dtype: torch.dtype


class SwappedActivations(saved_tensors_hooks):
    """Puts what autograd saves while this is entered into a store, each tensor once, the model's own left out.

    What is put is a copy: an operation that overwrites its input may run before the copy has left.
    """

    def __init__(self, model: nn.Module, session: Session, site: Site) -> None:
        # by address: a linear layer saves a view of its weight
        own = (*model.parameters(), *model.buffers())
        self._own = {tensor.untyped_storage().data_ptr() for tensor in own}
        self._session, self._site = session, site
        super().__init__(self._put, self._get)

    def _put(self, x: Tensor) -> Tensor | Swapped:
        if x.layout is not torch.strided or x.is_quantized or ARRAYS.nbytes(x) < LEAST_BYTES:
            return x
        if x.untyped_storage().data_ptr() in self._own:
            return x
        tag = self._session.tags.current(ARRAYS.place(x))
        if tag.kept is None:
            tag.kept = self._swapped(x)
        return tag.kept

    def _swapped(self, x: Tensor) -> Swapped:
        order = ARRAYS.order(x, batched=False)
        self._site.keeps(ARRAYS.nbytes(x), ARRAYS.nbytes(x))
        buffer = self._session.store.allocate(ARRAYS, ARRAYS.nbytes(x), x)
        buffer.view(x.dtype).copy_(order.flat(x).view(-1))
        return Swapped(self._site.store(ARRAYS, buffer), order, x.dtype)

    def _get(self, kept: Any) -> Tensor:
        if not isinstance(kept, Swapped):
            return kept
        self._session.backward_begins()
        buffer = self._session.store.get(ARRAYS, kept.saved)
        return kept.order.shaped(buffer.view(kept.dtype))
