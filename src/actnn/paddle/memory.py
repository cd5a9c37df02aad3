"""What autograd keeps, and what accelerators hold, counted; and what their caches hold unused, given back."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor, nn

from actnn.model.usage import memory_usage
from actnn.paddle.hooks import SavedTensorHooks, apart
from actnn.paddle.tensors import ARRAYS
from actnn.session.saved import Blocks, Left


def device_bytes() -> int:
    """Return the bytes of all tensors on accelerators."""
    if not paddle.device.is_compiled_with_cuda():
        return 0
    return sum(paddle.device.cuda.memory_allocated(index) for index in range(paddle.device.cuda.device_count()))


def get_memory_usage(print_info: bool = False) -> int:
    """Return the bytes that tensors take on accelerators or, where there are none, that this process holds."""
    return memory_usage(device_bytes(), print_info)


class KeptBytes(SavedTensorHooks):
    """Counts the bytes that autograd saves while it is entered: each block of memory once, the model's own left out."""

    purpose, instead = "memory= measures what a forward keeps", "widths instead of memory="

    def __init__(self, model: nn.Layer) -> None:
        self._blocks = Blocks(tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers()))
        super().__init__(self._pack, self._unpack)

    @property
    def total(self) -> int:
        """Bytes counted so far."""
        return self._blocks.total

    def __enter__(self) -> Any:
        super().__enter__()
        return self

    def possible(self) -> bool:
        """Tell whether nobody else's hooks are in place: Paddle allows one pair at a time."""
        try:
            with self:
                pass
        except ValueError:
            return False
        return True

    def _pack(self, tensor: Tensor) -> Any:
        return self._note(tensor)

    def _unpack(self, kept: Any) -> Tensor:
        x: Tensor = kept.unchanged(ARRAYS)
        return x

    def _note(self, tensor: Tensor) -> Left:
        # a sparse tensor has no address
        if tensor.is_dense():
            self._blocks.count(tensor.data_ptr(), ARRAYS.nbytes(tensor))
        return Left.of(ARRAYS, apart(tensor))


def trim_caches(model: nn.Layer, threshold: float) -> None:
    """Empty the cache of each accelerator that a model lies on where more than a share of it is not in use."""
    places = [parameter.place for parameter in model.parameters()]
    for index in {place.gpu_device_id() for place in places if place.is_gpu_place()}:
        reserved, used = paddle.device.cuda.memory_reserved(index), paddle.device.cuda.memory_allocated(index)
        if reserved - used > threshold * reserved:
            paddle.device.cuda.empty_cache()
