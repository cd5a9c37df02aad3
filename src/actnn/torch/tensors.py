"""torch as a lender of arrays, and the order in which a tensor's elements lie in memory."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from actnn.kernels.contract import FLOATS, Channels, Codes
from actnn.session.tensors import Form, Order, same_elements
from actnn.torch.moves import TorchMoves
from actnn.torch.threads import own_runtime

DTYPES = {name: getattr(torch, name) for name in (*FLOATS, "uint8", "int32", "int64")}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOATING = frozenset(DTYPES[name] for name in FLOATS)
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_distributed(x: Tensor) -> bool:
    """Tell whether a tensor is a DTensor, whose parts several processes hold."""
    kind = type(x)
    # by name: importing its module takes long, and nobody has one who has not imported it
    return kind is not Tensor and kind.__name__ == "DTensor"


class TorchArrays:
    """The array operations of the kernels' contract, and what the core asks of tensors, by torch."""

    codes = Codes({DTYPES[name]: code for code, name in enumerate(FLOATS)})
    byte = torch.uint8
    # most builds of torch bring the very library that the kernels are linked to
    lends_threads = own_runtime() is not None

    def dtype(self, x: Tensor) -> str:
        # kernels read memory, and that of a distributed tensor is elsewhere
        if type(x) is not Tensor and is_distributed(x):
            return f"distributed {x.dtype}"
        return NAMES.get(x.dtype) or str(x.dtype)

    def on_host(self, x: Tensor) -> bool:
        return x.device.type == "cpu"

    def device(self, x: Tensor) -> str:
        return str(x.device)

    def moves(self, x: Tensor) -> TorchMoves:
        return TorchMoves(x.device)

    pointer = staticmethod(Tensor.data_ptr)
    threads = staticmethod(torch.get_num_threads)

    def numpy(self, x: Tensor) -> np.ndarray:
        return x.detach().cpu().numpy()

    runtime = staticmethod(own_runtime)

    def empty(self, shape: Sequence[int], dtype: str, like: Tensor) -> Tensor:
        # number by number: torch looks twice at a sequence before it takes it for sizes
        return torch.empty(*shape or ((),), dtype=DTYPES[dtype], device=like.device)

    def bytes(self, count: int, like: Tensor) -> Tensor:
        return torch.empty(count, dtype=torch.uint8, device=like.device)

    def as_bytes(self, x: Tensor) -> Tensor:
        return x.detach().reshape(-1).contiguous().view(torch.uint8)

    def arange(self, start: int, stop: int, like: Tensor) -> Tensor:
        return torch.arange(start, stop, dtype=torch.int64, device=like.device)

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        return x.to(DTYPES[dtype])

    def where(self, condition: Tensor, x: Tensor, y: Tensor | float) -> Tensor:
        return torch.where(condition, x, y)

    def amin(self, x: Tensor) -> Tensor:
        return x.amin(-1)

    def amax(self, x: Tensor) -> Tensor:
        return x.amax(-1)

    def rint(self, x: Tensor) -> Tensor:
        return torch.round(x)

    def divide(self, x: Tensor, y: Tensor) -> Tensor:
        return x / y

    def sqrt(self, x: Tensor) -> Tensor:
        # torch's own of the host is off by one in every third number; through float64 it is rounded correctly
        return torch.sqrt(x.double()).to(x.dtype) if x.device.type == "cpu" else torch.sqrt(x)

    def isfinite(self, x: Tensor) -> Tensor:
        return torch.isfinite(x)

    def concatenate(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        return torch.cat(list(parts), axis)

    def stack(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        return torch.stack(list(parts), axis)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return x.permute(*axes)

    def from_numpy(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(x)

    def upload(self, x: np.ndarray, like: Tensor) -> Tensor:
        # of its own memory: the caller may change his while the copy is still to come
        return torch.from_numpy(x.copy()).to(like.device, non_blocking=True)

    def computing_on(self, x: Tensor) -> AbstractContextManager[Any]:
        return nullcontext() if x.device.type == "cpu" else torch.cuda.device(x.device)

    def ticket(self, number: int, release: Callable[[int], None]) -> Tensor:
        # on the host, whatever the user's default device is
        ticket = torch.tensor([number], dtype=torch.int64, device="cpu")
        # of its memory, not of this object: autograd may hand out another one that shares it
        weakref.finalize(ticket.untyped_storage(), release, number).atexit = False
        return ticket.as_subclass(Ticket)

    def float_bits(self, x: Tensor) -> Tensor:
        return x.contiguous().view(torch.int32).to(torch.int64)

    def bits_float(self, x: Tensor) -> Tensor:
        return x.to(torch.int32).view(torch.float32)

    nbytes = staticmethod(attrgetter("nbytes"))

    def detach(self, x: Tensor) -> Tensor:
        return x.detach()

    def order(self, x: Tensor, batched: bool = True) -> TorchOrder:
        form = CHANNELS_LAST.get(x.dim())
        last = form is not None and not x.is_contiguous() and x.is_contiguous(memory_format=form)
        return TorchOrder(tuple(x.shape), last, batched)

    def form(self, x: Tensor) -> Form:
        # a view that torch negates or conjugates only when it is read lies where its base does
        return x.shape, x.stride(), x.dtype, x.get_device(), x.is_neg(), x.is_conj()

    def same_elements(self, form: Any, other: Any) -> bool:
        return same_elements(form, other)

    # by memory: autograd may hand another object than it was given to whoever computes anew
    memory = staticmethod(Tensor.untyped_storage)

    def lies_in(self, x: Tensor, memory: torch.UntypedStorage | None) -> bool:
        return memory is not None and x.untyped_storage() is memory

    version = staticmethod(attrgetter("_version"))

    def process(self) -> int:
        return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0

    recording = staticmethod(torch.is_grad_enabled)

    wants_gradient = staticmethod(attrgetter("requires_grad"))

    # a node of the graph, which counts as true, or None
    recorded = staticmethod(attrgetter("grad_fn"))

    def vector(self, parameter: Tensor) -> Tensor:
        if parameter.dtype in FLOATING and parameter.is_contiguous():
            return parameter
        return parameter.detach().to(torch.float32).contiguous()

    touch = staticmethod(torch.autograd.graph.increment_version)

    alike = staticmethod(torch.empty_like)

    def over(self, x: Tensor) -> Tensor:
        y = x.new_empty(0).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())
        # whoever saved it after all hears of it from autograd
        torch.autograd.graph.increment_version(x)
        # what is known of the memory by a version is known of what lay there before
        while y._version < x._version:
            torch.autograd.graph.increment_version(y)
        return y

    def unfilled(self, order: Order, dtype: str, like: Tensor) -> Tensor:
        if not order.channels_last:
            return like.new_empty(*order.shape or ((),), dtype=DTYPES[dtype])
        form = CHANNELS_LAST[len(order.shape)]
        return torch.empty(order.shape, dtype=DTYPES[dtype], device=like.device, memory_format=form)


class Ticket(Tensor):
    """A number that stands for a buffer elsewhere; copies, as saved-tensor hooks make them, keep that buffer too."""

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, arguments: Sequence[Any] = (), options: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*arguments, **(options or {}))
            if isinstance(result, Tensor):
                memory = result.untyped_storage()
                for ticket in arguments:
                    if isinstance(ticket, cls) and ticket.untyped_storage() is not memory:
                        weakref.finalize(memory, _forget, ticket.untyped_storage()).atexit = False
        return result


def _forget(memory: torch.UntypedStorage) -> None:
    """Let go of the memory that a finalizer held until now."""


ARRAYS = TorchArrays()


class TorchOrder(Order):
    """The order of a torch tensor: its own, or channels_last; channels are always axis 1."""

    tensors = ARRAYS

    @cached_property
    def channels(self) -> Channels:
        """How the elements of a sample divide into channels."""
        inner = 1 if self.channels_last else math.prod(self.shape[2:])
        return Channels(self.shape[1], inner)

    def dense(self, x: Tensor) -> bool:
        """Tell whether the elements of a tensor lie in this order, without gaps."""
        if x.is_neg():
            return False
        if not self.channels_last:
            return x.is_contiguous()
        return x.is_contiguous(memory_format=CHANNELS_LAST[x.dim()])

    def flat(self, x: Tensor) -> Tensor:
        """Return a tensor of this shape as (samples, elements) in this order; a view where it lies so already."""
        x = x.detach()
        if self.channels_last:
            x = x.permute(0, *range(2, x.dim()), 1)
        return x.contiguous().view(self.rows)

    def shaped(self, values: Tensor) -> Tensor:
        """Return (samples, elements) as a tensor of this shape: the inverse of ``flat``."""
        if not self.channels_last:
            return values.view(self.shape)
        batch, channels, *space = self.shape
        return values.view(batch, *space, channels).permute(0, len(self.shape) - 1, *range(1, len(self.shape) - 1))
