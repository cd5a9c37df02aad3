"""Convolution and linear layers that keep a code of their input."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actnn.errors import ShapeError
from actnn.operations.kept import keep
from actnn.operations.maps import note_source
from actnn.session.tensors import check_floating
from actnn.torch.functions.maps import Convolution, ConvolutionFunction, LinearFunction, transfer
from actnn.torch.layers.base import Compressed
from actnn.torch.readers import overwrites, release_read
from actnn.torch.release import large
from actnn.torch.tensors import ARRAYS, is_distributed


class CompressedConvolution(Compressed):
    """A convolution of any rank that keeps a code of its input."""

    in_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: str | tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    weight: Tensor
    bias: Tensor | None

    def convolve(self, x: Tensor, padding: Any, output_padding: tuple[int, ...], overwrites: bool = False) -> Tensor:
        """Return the convolution with numeric paddings; it may take the place of an input that is ``large``."""
        site = self.site
        weight, bias = self.weight_and_bias()
        fixed = (self.stride, padding, self.dilation, self.transposed, output_padding, self.groups)
        form = ARRAYS.form(x)
        convolution: Convolution | None = site.plans.get(form)
        # somebody may have changed the layer since
        if convolution is None or convolution.fixed != fixed or convolution.weight_shape != weight.shape:
            self.check_input(x)
            batch = x if x.dim() == weight.dim() else x.unsqueeze(0)
            convolution = site.remember(form, Convolution(site, batch, weight, fixed, batched=batch is x))
        learns, training = weight.requires_grad, self.training
        if convolution.batched:
            batch = x
        else:
            batch = x.unsqueeze(0)
            form = ARRAYS.form(batch)
        kept = keep(ARRAYS, batch, site, training, form) if learns else None
        if x.is_cuda:
            with torch.backends.cudnn.flags(benchmark=site.session.policy.cudnn_benchmark):
                y: Tensor = ConvolutionFunction.record(batch, weight, bias, kept, convolution)
        else:
            y = ConvolutionFunction.record(batch, weight, bias, kept, convolution, overwrites)
        if learns and training and site.session.planner.traces:
            note_source(ARRAYS, site, y, lambda: convolution.transfer(batch, y, weight))
        return y if batch is x else y.squeeze(0)

    def check_input(self, x: Tensor) -> None:
        """Raise a typed error unless ``x`` is what this layer takes."""
        rank = len(self.kernel_size)
        check_floating(ARRAYS, x, self.site.name)
        if x.dim() not in (rank + 1, rank + 2) or x.shape[-rank - 1] != self.in_channels:
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: expected {self.in_channels} "
                f"channels and {rank} further axes, with or without a batch axis."
            )


class ForwardConvolution(CompressedConvolution):
    """A convolution that is not transposed: it also knows 'same' padding and padding modes."""

    padding_mode: Literal["zeros", "reflect", "replicate", "circular"]
    _reversed_padding_repeated_twice: list[int]

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of an input."""
        if not self.records(input):
            return self.plainly(input)
        padding, worth = self.padding, large(input)
        if not (type(padding) is tuple and self.padding_mode == "zeros"):
            y = self.convolve(*self.padded(input, padding), self.output_padding)
        elif worth and self.may_overwrite(input) and overwrites(self, input, sys.getrefcount(input)):
            return self.convolve(input, padding, self.output_padding, overwrites=True)
        else:
            y = self.convolve(input, padding, self.output_padding)
        if worth:
            release_read(self, input, sys.getrefcount(input))
        return y

    def may_overwrite(self, x: Tensor) -> bool:
        """Tell whether an output may take the place of an input, as far as this layer knows.

        Once it did so for a form: parts of a batch are each computed before they are written. What noise does to the
        gradient of a weight is told by the input, which then has to stay.
        """
        convolution: Convolution | None = self.site.plans.get(ARRAYS.form(x))
        if convolution is None or not convolution.may_overwrite(convolution.forward_parts):
            return False
        # the output may have another precision than the input
        if torch.is_autocast_enabled(x.device.type):
            return False
        planner = self.site.session.planner
        return convolution.batched and not (planner.traces and planner.wants_transfer(self.site))

    def padded(self, x: Tensor, padding: Any) -> tuple[Tensor, Any]:
        """Return an input, padded beforehand where torch's numeric padding cannot express it, and that padding."""
        rank = len(self.kernel_size)
        both = self._reversed_padding_repeated_twice
        if self.padding_mode != "zeros":
            return F.pad(x, both, mode=self.padding_mode), (0,) * rank
        if padding == "valid":
            return x, (0,) * rank
        if padding == "same":
            if both[::2] != both[1::2]:
                return F.pad(x, both), (0,) * rank
            padding = tuple(reversed(both[::2]))
        return x, padding


class TransposedConvolution(CompressedConvolution):
    """A transposed convolution; ``output_size`` may ask for one of the possible sizes."""

    _output_padding: Callable[..., list[int]]

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Return the transposed convolution of an input."""
        if not self.records(input):
            return self.plainly(input, output_size)
        rank = len(self.kernel_size)
        fixed = (self.stride, self.padding, self.kernel_size, rank, self.dilation)
        return self.convolve(input, self.padding, tuple(self._output_padding(input, output_size, *fixed)))


class QConv1d(ForwardConvolution, nn.Conv1d):
    """``nn.Conv1d`` that keeps a code of its input."""

    plain = nn.Conv1d


class QConv2d(ForwardConvolution, nn.Conv2d):
    """``nn.Conv2d`` that keeps a code of its input."""

    plain = nn.Conv2d


class QConv3d(ForwardConvolution, nn.Conv3d):
    """``nn.Conv3d`` that keeps a code of its input."""

    plain = nn.Conv3d


class QConvTranspose1d(TransposedConvolution, nn.ConvTranspose1d):
    """``nn.ConvTranspose1d`` that keeps a code of its input."""

    plain = nn.ConvTranspose1d


class QConvTranspose2d(TransposedConvolution, nn.ConvTranspose2d):
    """``nn.ConvTranspose2d`` that keeps a code of its input."""

    plain = nn.ConvTranspose2d


class QConvTranspose3d(TransposedConvolution, nn.ConvTranspose3d):
    """``nn.ConvTranspose3d`` that keeps a code of its input."""

    plain = nn.ConvTranspose3d


class QLinear(Compressed, nn.Linear):
    """``nn.Linear`` that keeps a code of its input."""

    plain = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        """Return the linear map of an input of any rank."""
        if not self.records(input):
            return super().forward(input)
        weight, bias = self.weight_and_bias()
        if is_distributed(input):
            from actnn.torch.layers.tensor_parallel import distributed_linear

            mapped: Tensor = distributed_linear(self.mapped, input, weight, bias, self.site.name)
            return mapped
        return self.mapped(input, weight, bias)

    def mapped(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the linear map of an input by a weight and a bias, those of this layer or parts of them."""
        site = self.site
        check_floating(ARRAYS, input, site.name)
        if input.shape[-1:] != weight.shape[-1:]:
            raise ShapeError(
                f"{site.name!r} was given an input of shape {tuple(input.shape)}: "
                f"expected {weight.shape[-1]} features on the last axis."
            )
        learns = weight.requires_grad
        kept = keep(ARRAYS, input, site, self.training) if learns else None
        y: Tensor = LinearFunction.record(input, weight, bias, kept, site)
        # in an output of more axes, the channels of a BatchNorm are not this layer's features
        if learns and self.training and y.dim() == 2 and site.session.planner.traces:
            note_source(ARRAYS, site, y, lambda: transfer(input, y))
        return y
