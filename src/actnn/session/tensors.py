"""What a front end tells the core about its tensors, besides the array operations that kernels ask for."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

from actnn.errors import UnsupportedError
from actnn.kernels.contract import FLOATS, Array, Arrays, Channels

# what tells a tensor's shape, memory order, dtype and device from those of others
Form = Hashable


class Tensors(Arrays, Protocol):
    """A framework's tensors; one object a front end."""

    def nbytes(self, x: Array) -> int:
        """Return the bytes of a tensor's elements."""

    def detach(self, x: Array) -> Array:
        """Return a tensor of the same memory that autograd knows nothing of."""

    def order(self, x: Array, batched: bool = True) -> Order:
        """Return the order in which a tensor lies, or is to be brought where it lies in none."""

    def form(self, x: Array) -> Form:
        """Return what plans depend on: shape, memory order, dtype and device."""

    def same_elements(self, form: Form, other: Form) -> bool:
        """Tell whether two tensors at one address, of these forms, hold the same elements in one order, densely."""

    def memory(self, x: Array) -> Any:
        """Return an object that lives as long as a tensor's memory, or shorter."""

    def lies_in(self, x: Array, memory: Any) -> bool:
        """Tell whether a tensor still lies in what ``memory`` returned for one of its address; None is no memory."""

    def version(self, x: Array) -> int:
        """Return how often a tensor's memory was changed in place."""

    def process(self) -> int:
        """Return the number of this process among those that train together; 0 where it trains alone."""

    def recording(self) -> bool:
        """Tell whether autograd records operations now."""

    def wants_gradient(self, x: Array) -> bool:
        """Tell whether autograd is to find the gradient of a tensor."""

    def recorded(self, x: Array) -> bool:
        """Tell whether a tensor is the result of an operation that autograd recorded."""

    def vector(self, parameter: Array) -> Array:
        """Return a parameter, one number a channel, as kernels read it: dense, float32 or half precision."""

    def touch(self, changed: Sequence[Array]) -> None:
        """Let autograd know that a kernel changed some tensors in place."""

    def alike(self, x: Array) -> Array:
        """Return a tensor of the same form as one that lies densely; nobody has written its values yet."""

    def over(self, x: Array) -> Array:
        """Return a tensor of the same form in the very memory of one that nobody will read again."""

    def unfilled(self, order: Order, dtype: str, like: Array) -> Array:
        """Return a tensor of some order and dtype on the device of another; nobody has written its values yet."""


@dataclass(frozen=True)
class Order:
    """A tensor's shape and the order of its elements in memory; ``batched`` tells whether axis 0 counts samples."""

    tensors: ClassVar[Tensors]

    shape: tuple[int, ...]
    channels_last: bool = False
    batched: bool = True

    @cached_property
    def rows(self) -> tuple[int, int]:
        """Samples, and elements of each."""
        if not self.batched:
            return 1, math.prod(self.shape)
        return self.shape[0], math.prod(self.shape[1:])

    @cached_property
    def channels(self) -> Channels:
        """How the elements of a sample divide into channels."""
        raise NotImplementedError

    def of_samples(self, count: int) -> Self:
        """Return the order of a part of the batch."""
        return replace(self, shape=(count, *self.shape[1:])) if self.batched else self

    def dense(self, x: Array) -> bool:
        """Tell whether the elements of a tensor lie in this order, without gaps."""
        raise NotImplementedError

    def flat(self, x: Array) -> Array:
        """Return a tensor of this shape as (samples, elements) in this order; a view where it lies so already."""
        raise NotImplementedError

    def shaped(self, values: Array) -> Array:
        """Return (samples, elements) as a tensor of this shape: the inverse of ``flat``."""
        raise NotImplementedError


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor whose axes lie in their order."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def same_elements(form: Any, other: Any) -> bool:
    """Tell whether two forms, shape and strides and what else there is, hold the same elements, both densely."""
    dense = form[1] == contiguous(form[0]) and other[1] == contiguous(other[0])
    return bool(dense and form[2:] == other[2:] and math.prod(form[0]) == math.prod(other[0]))


def check_floating(tensors: Tensors, x: Array, name: str) -> None:
    """Raise UnsupportedError unless a tensor's dtype can be coded."""
    if (given := tensors.dtype(x)) not in FLOATS:
        raise UnsupportedError(
            f"cannot encode a {given} tensor at {name!r}: expected float32, float16 or bfloat16. "
            f"Leave this layer exact with QModule(model, exact=[{name!r}])."
        )
