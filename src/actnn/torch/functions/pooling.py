"""Pooling that keeps positions within windows (max) or only shapes (average)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from actnn import kernels
from actnn.core.site import Site
from actnn.torch.functions.kept import first_order
from actnn.torch.tensors import ARRAYS, Order, nbytes


@dataclass(frozen=True)
class Window:
    """The geometry of a pooling layer, one number an axis."""

    forward: Callable[..., Any]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool

    @property
    def bits(self) -> int:
        """Width of an index code that holds any position of the window."""
        return max(1, (math.prod(self.kernel) - 1).bit_length())

    def positions(self, indices: Tensor, space: tuple[int, ...]) -> Tensor:
        """Turn torch's indices into the input's ``space`` into positions within each window."""
        position = torch.zeros_like(indices)
        for axis, (coordinate, start) in enumerate(self._axes(indices, space)):
            position = position * self.kernel[axis] + (coordinate - start) // self.dilation[axis]
        return position

    def indices(self, positions: Tensor, space: tuple[int, ...]) -> Tensor:
        """Turn positions within each window back into indices into the input's ``space``."""
        steps = []
        rest = positions
        for size in reversed(self.kernel):
            steps.append(rest % size)
            rest = rest // size
        index = torch.zeros_like(positions)
        for axis, step in enumerate(reversed(steps)):
            start = self._start(axis, positions)
            index = index * space[axis] + start + step * self.dilation[axis]
        return index

    def _axes(self, indices: Tensor, space: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
        """Return, for each axis, the input coordinate of every index and the coordinate where its window starts."""
        result = []
        for axis, size in enumerate(space):
            inner = math.prod(space[axis + 1 :])
            result.append(((indices // inner) % size, self._start(axis, indices)))
        return result

    def _start(self, axis: int, like: Tensor) -> Tensor:
        """Return where the windows start along one axis, in a shape that broadcasts over the output."""
        rank = len(self.kernel)
        outputs = like.shape[like.dim() - rank + axis]
        starts = torch.arange(outputs, device=like.device) * self.stride[axis] - self.padding[axis]
        return starts.view(-1, *[1] * (rank - 1 - axis))


class MaxPoolFunction(Function):
    """Max pooling that keeps each maximum's position within its window."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, site: Site, window: Window) -> Tensor:
        site.session.check_open()
        ctx.site, ctx.window, ctx.shape = site, window, tuple(x.shape)
        rank = len(window.kernel)
        geometry = (window.kernel, window.stride, window.padding, window.dilation, window.ceil_mode)
        y, indices = window.forward(x, *geometry, return_indices=True)
        positions = window.positions(indices, ctx.shape[-rank:])
        ctx.order = Order.of(positions, batched=x.dim() == rank + 2)
        values = ctx.order.flat(positions.to(torch.int32))
        planes = kernels.select(ARRAYS, x).encode_index(ARRAYS, values, window.bits)
        ctx.save_for_backward(planes)
        site.record(nbytes(indices) + nbytes(x), nbytes(planes))
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (planes,) = ctx.saved_tensors
        rank = len(ctx.window.kernel)
        backend = kernels.select(ARRAYS, grad)
        values = backend.decode_index(ARRAYS, planes, *ctx.order.rows, ctx.window.bits)
        positions = ctx.order.shaped(values).to(torch.int64)
        indices = ctx.window.indices(positions, ctx.shape[-rank:])
        grad_x = grad.new_zeros(ctx.shape)
        target = grad_x.view(*ctx.shape[:-rank], -1)
        target.scatter_add_(-1, indices.flatten(-rank), grad.flatten(-rank))
        return grad_x, None, None


class AveragePoolFunction(Function):
    """Average pooling: exact, and keeps only shapes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, site: Site, pool: Callable[[Tensor], Tensor], geometry: tuple[Any, ...]) -> Tensor:
        ctx.site, ctx.order, ctx.geometry = site, Order.of(x), geometry
        site.record(nbytes(x), 0)
        return pool(x)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        like = ctx.order.unfilled(grad)
        return torch.ops.aten.avg_pool2d_backward(grad, like, *ctx.geometry), None, None, None
