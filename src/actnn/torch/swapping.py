"""Activations that wait elsewhere between forward and backward, exactly as they are: level ``swap``."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from actnn.session.saved import Left
from actnn.session.session import Session
from actnn.session.site import Site
from actnn.session.swapping import Swapped
from actnn.stores.store import LEAST_BYTES
from actnn.torch.tensors import ARRAYS


class SwappedActivations(saved_tensors_hooks):
    """Puts what autograd saves while this is entered into a store, each tensor once, the model's own left out.

    What is put is a copy: an operation that overwrites its input may run before the copy has left. Small tensors, and
    those that are larger than the memory they lie in, stay.
    """

    def __init__(self, model: nn.Module, session: Session, site: Site) -> None:
        # by address: a linear layer saves a view of its weight
        own = (*model.parameters(), *model.buffers())
        self._own = {tensor.untyped_storage().data_ptr() for tensor in own}
        self._session, self._site = session, site
        super().__init__(self._put, self._get)

    def _put(self, x: Tensor) -> Left | Swapped:
        if self._stays(x):
            return Left.of(ARRAYS, x)
        tag = self._session.tags.current(ARRAYS, x, ARRAYS.form(x))
        kept = None if tag.kept is None else tag.kept()
        if kept is None:
            kept = self._swapped(x)
            # weakly: a tensor that outlives the step, as a batch may, has its copy no longer than autograd needs it
            tag.kept = weakref.ref(kept)
        return kept

    def _stays(self, x: Tensor) -> bool:
        if x.layout is not torch.strided or x.is_quantized or x.is_nested:
            return True
        memory = x.untyped_storage()
        return not LEAST_BYTES <= ARRAYS.nbytes(x) <= memory.nbytes() or memory.data_ptr() in self._own

    def _swapped(self, x: Tensor) -> Swapped:
        order = ARRAYS.order(x, batched=False)
        self._site.keeps(ARRAYS.nbytes(x), ARRAYS.nbytes(x))
        buffer = self._session.store.allocate(ARRAYS, ARRAYS.nbytes(x), x)
        buffer.view(x.dtype).copy_(order.flat(x).view(-1))
        return Swapped(self._site.store(ARRAYS, buffer), order, x.dtype)

    def _get(self, kept: Left | Swapped) -> Tensor:
        self._session.backward_begins()
        if isinstance(kept, Left):
            left: Tensor = kept.unchanged(ARRAYS)
            return left
        buffer = self._session.store.get(ARRAYS, kept.saved)
        x: Tensor = kept.order.shaped(buffer.view(kept.dtype))
        return x
