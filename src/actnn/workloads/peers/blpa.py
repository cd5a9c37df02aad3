"""BLPA (Chakrabarti and Moseley, NeurIPS 2019): pre-activations in 4 or 8 bits, and activations computed from them.

What a BatchNorm gives is coded over β ± 3γ in equal steps, one of which begins at zero. Backward reads the BatchNorm's
normalised input, the sign for the ReLU, and the input of the next layer from that one code; rounding is to the middle
of a step: its gradient is not unbiased. Ours: the sum that ends a residual block, and whatever else a convolution or
linear layer reads, is coded over its own mean ± 3 deviations; poolings keep positions; the network's input stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from actnn.errors import UnsupportedError
from actnn.workloads.peers.lossless import with_lossless_layers
from actnn.workloads.peers.preactivations import Preactivation, along


class Tag(NamedTuple):
    """The code that a tensor is computed from, by a ReLU where it is rectified, and the version that was coded."""

    code: Preactivation
    rectified: bool
    version: int


def tagged(x: Tensor, code: Preactivation, rectified: bool) -> Tensor:
    """Let whoever reads a tensor find its code."""
    x.tag = Tag(code, rectified, x._version)  # type: ignore[attr-defined]
    return x


def tag_of(x: Tensor, bits: int) -> Tag:
    """Return the tag of a tensor, with a code over its own mean and deviation where it has none."""
    tag: Tag | None = getattr(x, "tag", None)
    if tag is None or tag.version != x._version:
        axes = [axis for axis in range(x.dim()) if axis != 1]
        deviation, mean = torch.std_mean(x.detach(), axes)
        tag = tagged(x, Preactivation.of(x.detach(), mean, deviation, bits), rectified=False).tag  # type: ignore[attr-defined]
    return tag


def keep(ctx: Any, tag: Tag, *exact: Tensor | None) -> None:
    """Let autograd save a code and some tensors."""
    ctx.save_for_backward(*tag.code.tensors, *exact)
    ctx.shape, ctx.bits, ctx.rectified = tag.code.shape, tag.code.bits, tag.rectified


def kept(ctx: Any) -> tuple[Tensor, tuple[Any, ...]]:
    """Return the tensor that a code stands for, and what else was saved."""
    words, step, first, *exact = ctx.saved_tensors
    x = Preactivation(words, step, first, ctx.shape, ctx.bits).decoded()
    return (x.clamp_min_(0) if ctx.rectified else x), tuple(exact)


@dataclass
class Coded:
    """How wide a code is to be, and the code once it is made."""

    bits: int
    code: Preactivation | None = None


class Normalized(Function):
    """A BatchNorm that keeps a code of its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: nn.BatchNorm2d, made: Coded) -> Tensor:
        running = layer.running_mean, layer.running_var
        y, _, deviation = torch.native_batch_norm(
            x, weight, bias, *running, layer.training, layer.momentum or 0.0, layer.eps
        )
        made.code = Preactivation.of(y, bias, weight, made.bits)
        keep(ctx, Tag(made.code, False, 0), weight, bias, deviation)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        y, (weight, bias, deviation) = kept(ctx)
        dimensions, axes = grad.dim(), [axis for axis in range(grad.dim()) if axis != 1]
        x = (y - along(bias, dimensions)) / along(weight, dimensions)
        grad_bias, grad_weight = grad.sum(axes), (grad * x).sum(axes)
        count = grad.numel() // len(weight)
        means = along(grad_bias / count, dimensions) + x * along(grad_weight / count, dimensions)
        return (grad - means) * along(weight * deviation, dimensions), grad_weight, grad_bias, None, None


class Rectified(Function):
    """A ReLU that reads the sign from the code of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tag: Tag) -> Tensor:
        keep(ctx, tag)
        return functional.relu(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, _ = kept(ctx)
        return grad * (x > 0), None


class Convolved(Function):
    """A convolution that keeps the code of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Conv2d, tag: Tag) -> Tensor:
        keep(ctx, tag, weight)
        ctx.settings = (layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups)
        ctx.outputs = None if bias is None else list(bias.shape)
        return functional.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, (weight,) = kept(ctx)
        needed = list(ctx.needs_input_grad[:3])
        found = torch.ops.aten.convolution_backward(grad, x, weight, ctx.outputs, *ctx.settings, needed)
        return *found, None, None


class Mapped(Function):
    """A linear layer that keeps the code of its input ``[batch, inputs]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tag: Tag) -> Tensor:
        keep(ctx, tag, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, (weight,) = kept(ctx)
        return grad @ weight, grad.T @ x, grad.sum(0), None


def normalization(layer: nn.BatchNorm2d, bits: int) -> Callable[[Tensor], Tensor]:
    """Return the forward of a BatchNorm."""

    def forward(x: Tensor) -> Tensor:
        if not layer.training or not torch.is_grad_enabled():
            return nn.BatchNorm2d.forward(layer, x)
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
        made = Coded(bits)
        y: Tensor = Normalized.apply(x, layer.weight, layer.bias, layer, made)
        assert made.code is not None
        return tagged(y, made.code, rectified=False)

    return forward


def rectifier(layer: nn.ReLU, bits: int) -> Callable[[Tensor], Tensor]:
    """Return the forward of a ReLU."""

    def forward(x: Tensor) -> Tensor:
        if not x.requires_grad or not torch.is_grad_enabled():
            return functional.relu(x)
        tag = tag_of(x, bits)
        return tagged(Rectified.apply(x, tag), tag.code, rectified=True)

    return forward


def convolution(layer: nn.Conv2d, bits: int) -> Callable[[Tensor], Tensor]:
    """Return the forward of a convolution."""

    def forward(x: Tensor) -> Tensor:
        if not x.requires_grad or not torch.is_grad_enabled():
            return nn.Conv2d.forward(layer, x)
        convolved: Tensor = Convolved.apply(x, layer.weight, layer.bias, layer, tag_of(x, bits))
        return convolved

    return forward


def linear(layer: nn.Linear, bits: int) -> Callable[[Tensor], Tensor]:
    """Return the forward of a linear layer."""

    def forward(x: Tensor) -> Tensor:
        if x.dim() != 2 or not x.requires_grad or not torch.is_grad_enabled():
            return nn.Linear.forward(layer, x)
        mapped: Tensor = Mapped.apply(x, layer.weight, layer.bias, tag_of(x, bits))
        return mapped

    return forward


def is_plain(layer: nn.Module) -> bool:
    """Tell whether a layer is one that is written here: others stay as they are."""
    if isinstance(layer, nn.BatchNorm2d):
        return layer.affine and layer.track_running_stats
    return not isinstance(layer, nn.Conv2d) or (layer.padding_mode == "zeros" and not isinstance(layer.padding, str))


FORWARDS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.BatchNorm2d: normalization,
    nn.ReLU: rectifier,
    nn.Conv2d: convolution,
    nn.Linear: linear,
}


def blpa(model: nn.Module, *, seed: int = 0, bits: int = 4) -> nn.Module:
    """Return a model that trains as BLPA does; it draws no random numbers."""
    if not any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules()):
        raise UnsupportedError(
            f"a {type(model).__name__} has no BatchNorm2d, whose output BLPA codes. Leave the contestant out."
        )
    with_lossless_layers(model)
    for layer in model.modules():
        if type(layer) in FORWARDS and is_plain(layer):
            layer.forward = FORWARDS[type(layer)](layer, bits)
    return model
