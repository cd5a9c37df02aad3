"""Activations that wait elsewhere between forward and backward, exactly as they are: level ``swap``."""

from __future__ import annotations

import paddle
from paddle import Tensor, nn

from actnn.paddle.hooks import SavedTensorHooks, apart
from actnn.paddle.tensors import ARRAYS
from actnn.session.saved import Left
from actnn.session.session import Session
from actnn.session.site import Site
from actnn.session.swapping import Swapped
from actnn.stores.store import LEAST_BYTES


class SwappedActivations(SavedTensorHooks):
    """Puts what autograd saves while this is entered into a store, the model's own left out.

    What is put is a copy: an operation that overwrites its input may run before the copy has left. A tensor that two
    operations save leaves twice: nothing tells that its memory is not another one's by then.
    """

    purpose, instead = "level swap takes what autograd saves", "another level"

    def __init__(self, model: nn.Layer, session: Session, site: Site) -> None:
        self._own = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        self._session, self._site = session, site
        super().__init__(self._put, self._get)

    def _put(self, x: Tensor) -> Left | Swapped:
        # Paddle reads what comes back by strides and offset of what left, as if it still lay in the same memory
        movable = x.is_dense() and x.is_contiguous() and x.offset == 0
        if not movable or ARRAYS.nbytes(x) < LEAST_BYTES or x.data_ptr() in self._own:
            return Left.of(ARRAYS, apart(x))
        order = ARRAYS.order(x, batched=False)
        self._site.keeps(ARRAYS.nbytes(x), ARRAYS.nbytes(x))
        buffer = self._session.store.allocate(ARRAYS, ARRAYS.nbytes(x), x)
        # not by an index, which copies the whole buffer first
        paddle.assign(order.flat(x).view(paddle.uint8).view([-1]), output=buffer)
        return Swapped(self._site.store(ARRAYS, buffer), order, x.dtype, ARRAYS.wants_gradient(x))

    def _get(self, kept: Left | Swapped) -> Tensor:
        self._session.backward_begins()
        if isinstance(kept, Left):
            left: Tensor = kept.unchanged(ARRAYS)
            return left
        buffer = self._session.store.get(ARRAYS, kept.saved)
        x: Tensor = kept.order.shaped(buffer.view(kept.dtype))
        x.stop_gradient = not kept.wants_gradient
        return x
