"""Paddle as a lender of arrays, and the order in which a tensor's elements lie in memory."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle import distributed as dist

from actnn.kernels.contract import FLOATS, Channels, Codes
from actnn.paddle.moves import PaddleMoves
from actnn.paddle.threads import count, runtime
from actnn.session.tensors import Form, Order, same_elements

DTYPES: dict[str, Any] = {name: getattr(paddle, name) for name in (*FLOATS, "uint8", "int32", "int64")}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOATING = frozenset(DTYPES[name] for name in FLOATS)


class PaddleArrays:
    """The array operations of the kernels' contract, and what the core asks of tensors, by Paddle."""

    codes = Codes({DTYPES[name]: code for code, name in enumerate(FLOATS)})
    byte = paddle.uint8
    lends_threads = True

    def dtype(self, x: Tensor) -> str:
        return NAMES.get(x.dtype) or str(x.dtype)

    def on_host(self, x: Tensor) -> bool:
        return x.place.is_cpu_place()

    def device(self, x: Tensor) -> str:
        # as in "Place(gpu:0)"
        return str(x.place).removeprefix("Place(").removesuffix(")")

    def moves(self, x: Tensor) -> PaddleMoves:
        return PaddleMoves(x.place)

    pointer = staticmethod(Tensor.data_ptr)

    def numpy(self, x: Tensor) -> np.ndarray[Any, Any]:
        # shares the memory of a tensor on the host, as Tensor.numpy does not
        return np.from_dlpack(x.detach()) if self.on_host(x) else x.numpy()

    threads = staticmethod(count)
    runtime = staticmethod(runtime)

    def empty(self, shape: Sequence[int], dtype: str, like: Tensor) -> Tensor:
        return paddle.empty(shape, DTYPES[dtype], device=like.place)

    def bytes(self, count: int, like: Tensor) -> Tensor:
        return paddle.empty([count], paddle.uint8, device=like.place)

    def as_bytes(self, x: Tensor) -> Tensor:
        return x.detach().reshape([-1]).contiguous().view(paddle.uint8)

    def arange(self, start: int, stop: int, like: Tensor) -> Tensor:
        return paddle.arange(start, stop, dtype=paddle.int64, device=like.place)

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        return x.astype(DTYPES[dtype])

    def where(self, condition: Tensor, x: Tensor, y: Tensor | float) -> Tensor:
        if not isinstance(y, Tensor):
            y = paddle.full([], y, x.dtype, device=x.place)
        if x.is_floating_point() and x.element_size() < 4:
            return paddle.where(condition, widened(x), widened(y)).astype(x.dtype)
        return paddle.where(condition, x, y)

    def amin(self, x: Tensor) -> Tensor:
        return paddle.amin(x, -1)

    def amax(self, x: Tensor) -> Tensor:
        return paddle.amax(x, -1)

    def rint(self, x: Tensor) -> Tensor:
        return paddle.round(x)

    # in double precision: on the host Paddle's own of float32 are often off by one unit in the last place
    def divide(self, x: Tensor, y: Tensor) -> Tensor:
        return (x.astype(paddle.float64) / y.astype(paddle.float64)).astype(x.dtype)

    def sqrt(self, x: Tensor) -> Tensor:
        return paddle.sqrt(x.astype(paddle.float64)).astype(x.dtype)

    def isfinite(self, x: Tensor) -> Tensor:
        return paddle.isfinite(x)

    def concatenate(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        return paddle.concat(list(parts), axis)

    def stack(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        return paddle.stack(list(parts), axis)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return x.transpose(list(axes))

    def from_numpy(self, x: np.ndarray[Any, Any]) -> Tensor:
        return sharing(x)

    def upload(self, x: np.ndarray[Any, Any], like: Tensor) -> Tensor:
        return paddle.to_tensor(x, place=like.place)

    def computing_on(self, x: Tensor) -> AbstractContextManager[None]:
        # the reference serves every accelerator here: Paddle finds the device by the arrays themselves
        return nullcontext()

    def ticket(self, number: int, release: Callable[[int], None]) -> Tensor:
        memory = np.array([number])
        # of its memory, not of a tensor: what autograd saves may be another one that shares it
        weakref.finalize(memory, release, number).atexit = False
        return sharing(memory)

    def float_bits(self, x: Tensor) -> Tensor:
        return x.contiguous().view(paddle.int32).astype(paddle.int64)

    def bits_float(self, x: Tensor) -> Tensor:
        return x.astype(paddle.int32).view(paddle.float32)

    def nbytes(self, x: Tensor) -> int:
        return math.prod(x.shape) * x.element_size()

    def detach(self, x: Tensor) -> Tensor:
        return x.detach()

    def order(self, x: Tensor, batched: bool = True) -> PaddleOrder:
        return PaddleOrder(tuple(x.shape), False, batched)

    def form(self, x: Tensor) -> Form:
        return tuple(x.shape), tuple(x.strides), x.dtype, x.place

    def same_elements(self, form: Any, other: Any) -> bool:
        return same_elements(form, other)

    def memory(self, x: Tensor) -> Tensor:
        # Paddle shows no object that owns memory: as long as this tensor lives, its address is not used anew
        return x

    def lies_in(self, x: Tensor, memory: Tensor | None) -> bool:
        # another tensor of this address, as those have from which a block is computed anew, lies there too
        return memory is not None and memory.data_ptr() == x.data_ptr()

    def version(self, x: Tensor) -> int:
        # of other tensors Paddle counts none
        return x.inplace_version if x.is_dense() else 0

    def process(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0

    recording = staticmethod(paddle.is_grad_enabled)

    def wants_gradient(self, x: Tensor) -> bool:
        return not x.stop_gradient

    def recorded(self, x: Tensor) -> bool:
        return not (x.stop_gradient or x.is_leaf)

    def vector(self, parameter: Tensor) -> Tensor:
        if parameter.dtype in FLOATING and parameter.is_contiguous():
            return parameter
        return parameter.detach().astype(paddle.float32).contiguous()

    def touch(self, changed: Sequence[Tensor]) -> None:
        # autograd saves no running statistics, and Paddle has no way to count a change by somebody else
        pass

    alike = staticmethod(paddle.empty_like)
    # what is detached lies where it lay
    over = staticmethod(paddle.Tensor.detach)

    def unfilled(self, order: Order, dtype: str, like: Tensor) -> Tensor:
        return paddle.empty(order.shape, DTYPES[dtype], device=like.place)


ARRAYS = PaddleArrays()


def sharing(x: np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor that lies in the memory of an array, and holds it."""
    # not by from_dlpack, which lets go of an array under a lock: one whose end ends another would wait for ever
    return paddle.Tensor(value=x, place=paddle.CPUPlace(), zero_copy=True)


def widened(x: Tensor) -> Tensor:
    """Return a tensor in float32 at least, itself where it is: on the host Paddle has little half precision."""
    return x.astype(paddle.float32) if x.element_size() < 4 else x


class PaddleOrder(Order):
    """The order of a Paddle tensor, that of its axes; channels are axis 1, or with ``channels_last`` the last one."""

    tensors = ARRAYS

    @cached_property
    def channels(self) -> Channels:
        """How the elements of a sample divide into channels."""
        if self.channels_last:
            return Channels(self.shape[-1], 1)
        return Channels(self.shape[1], math.prod(self.shape[2:]))

    def dense(self, x: Tensor) -> bool:
        """Tell whether the elements of a tensor lie in this order, without gaps."""
        dense: bool = x.is_contiguous()
        return dense

    def flat(self, x: Tensor) -> Tensor:
        """Return a tensor of this shape as (samples, elements) in this order; a view where it lies so already."""
        x = x.detach()
        if not self.shape:
            # what has no axes has no view with some
            return x.unsqueeze([0, 1])
        return (x if x.is_contiguous() else x.contiguous()).view(self.rows)

    def shaped(self, values: Tensor) -> Tensor:
        """Return (samples, elements) as a tensor of this shape: the inverse of ``flat``."""
        return values.view(self.shape)
