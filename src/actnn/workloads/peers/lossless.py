"""Layers whose backward needs small integers only: a bit for each element of a ReLU, a byte for each maximum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from actnn import kernels
from actnn.torch.tensors import ARRAYS

LARGEST_WINDOW = 256


class MaskedReLU(Function):
    """A ReLU that keeps one bit an element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = functional.relu(x).contiguous()
        ctx.save_for_backward(kernels.select(ARRAYS, y).encode_mask(ARRAYS, y.view(1, -1)))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        rows = grad.contiguous().view(1, -1)
        found: Tensor = kernels.select(ARRAYS, rows).apply_mask(ARRAYS, mask, None, rows, 1.0, 0.0)
        return found.view(grad.shape)


class PositionedMaxPool(Function):
    """A max pooling in two dimensions that keeps the place of each maximum within its window, a byte each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        y, positions = functional.max_pool2d(x, kernel, stride, padding, return_indices=True)
        rows, columns = positions // x.shape[3], positions % x.shape[3]
        firsts = [torch.arange(size, device=x.device) * stride - padding for size in y.shape[2:]]
        places = (rows - firsts[0][:, None]) * kernel + columns - firsts[1]
        ctx.save_for_backward(places.to(torch.uint8))
        ctx.window, ctx.shape = (kernel, stride, padding), x.shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        kernel, stride, padding = ctx.window
        firsts = [torch.arange(size, device=grad.device) * stride - padding for size in grad.shape[2:]]
        wide = places.long()
        positions = (wide // kernel + firsts[0][:, None]) * ctx.shape[3] + wide % kernel + firsts[1]
        found = grad.new_zeros(*ctx.shape[:2], ctx.shape[2] * ctx.shape[3])
        found.scatter_add_(2, positions.flatten(2), grad.flatten(2))
        return found.view(ctx.shape), None, None, None


def is_served(pool: nn.MaxPool2d) -> bool:
    """Tell whether a pooling has square windows without gaps, whose places fit a byte."""
    side = pool.kernel_size
    plain = isinstance(side, int) and isinstance(pool.stride, int) and isinstance(pool.padding, int)
    plain = plain and pool.dilation == 1 and not pool.ceil_mode and not pool.return_indices
    return plain and isinstance(side, int) and side**2 <= LARGEST_WINDOW


def with_lossless_layers(model: nn.Module) -> nn.Module:
    """Let the ReLUs and max poolings of a model keep no more than they need."""
    layer: Any
    for layer in model.modules():
        kind = type(layer)
        if kind is nn.ReLU:
            layer.forward = MaskedReLU.apply
        elif kind is nn.MaxPool2d and is_served(layer):
            layer.forward = _pooling(layer)
    return model


def _pooling(pool: nn.MaxPool2d) -> Any:
    window = pool.kernel_size, pool.stride, pool.padding
    return lambda x: PositionedMaxPool.apply(x, *window)
