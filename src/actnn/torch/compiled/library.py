"""The kernels as operators of torch: what a compiled graph calls in the place of the kernels themselves.

Every operator is defined by a schema, a Python function that calls the kernels, and a fake one that tells shapes. The
order in which a result lies follows from the arguments alone and never from the strides of what is given, since a
compiler rearranges tensors as it likes and the graph that decodes is another one than the graph that encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from actnn.format import FAMILIES, Family, Layout, Rounding, derive_key, uniform_layout
from actnn.kernels.contract import Key
from actnn.torch.tensors import TorchOrder

LIBRARY = torch.library.Library("actnn", "DEF")
# how a code lies, as arguments of an operator: ``CodeForm.arguments`` in the same order
FORM = "int[] shape, bool channels_last, bool batched, str family, int bits, int rounding"

Implementation = Callable[..., Any]


@dataclass(frozen=True)
class CodeForm:
    """What there is to know of a code besides its bytes: of what tensor it is, and of which family and width."""

    shape: tuple[int, ...]
    channels_last: bool
    batched: bool
    family: Family
    bits: int
    rounding: Rounding

    @property
    def arguments(self) -> tuple[list[int], bool, bool, str, int, int]:
        """Return this as the arguments of an operator."""
        return list(self.shape), self.channels_last, self.batched, self.family.name, self.bits, int(self.rounding)

    @cached_property
    def order(self) -> TorchOrder:
        """The order of the elements that were coded."""
        return TorchOrder(self.shape, self.channels_last, self.batched)

    @cached_property
    def layout(self) -> Layout:
        """Where the parts of the code lie."""
        return uniform_layout(*self.order.rows, self.family, self.bits, self.rounding)


def form_of(
    shape: Sequence[int], channels_last: bool, batched: bool, family: str, bits: int, rounding: int
) -> CodeForm:
    """Return the form that an operator was given as arguments."""
    return _form_of(tuple(shape), channels_last, batched, family, bits, rounding)


@lru_cache(maxsize=4096)
def _form_of(
    shape: tuple[int, ...], channels_last: bool, batched: bool, family: str, bits: int, rounding: int
) -> CodeForm:
    return CodeForm(shape, channels_last, batched, FAMILIES[family], bits, Rounding(rounding))


def operator(schema: str, fake: Implementation) -> Callable[[Implementation], Implementation]:
    """Make the decorated function an operator of torch on every device; ``fake`` returns what its results look like."""
    name = schema.partition("(")[0]

    def define(function: Implementation) -> Implementation:
        # whatever order a compiler gives a tensor is right: what is not dense as it is coded is copied
        LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout))
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"actnn::{name}", fake, lib=LIBRARY)
        return function

    return define


def draw_of(seed: int, call: int, redrawn: int = -1, again: int = 0) -> Tensor:
    """Return what a graph draws the noise of one call from; that of one site may be of another call."""
    return torch.tensor([seed, call, redrawn, again], dtype=torch.int64, device="cpu")


def key_of(draw: Tensor, site: int) -> Key:
    """Return the key of one code from ``draw_of``, a tensor on the host that is an input of the graph."""
    seed, call, redrawn, again = draw.tolist()
    return derive_key(seed, site, again if site == redrawn else call)


def empty_like_order(order: TorchOrder, dtype: torch.dtype, like: Tensor) -> Tensor:
    """Return an unfilled tensor that lies in an order, on the device of another."""
    form = torch.channels_last if len(order.shape) == 4 else torch.channels_last_3d
    memory = form if order.channels_last else torch.contiguous_format
    return torch.empty(order.shape, dtype=dtype, device=like.device, memory_format=memory)


def dense(order: TorchOrder, x: Tensor) -> Tensor:
    """Return a tensor of an order's shape, itself or a copy, that lies in that order without gaps."""
    if order.dense(x):
        return x
    return order.shaped(order.flat(x))
