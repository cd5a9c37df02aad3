"""Convolution and linear layers that keep a code of their input."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actnn.errors import ShapeError
from actnn.model.layers.maps import MapLayer
from actnn.torch.functions.maps import Convolution, ConvolutionFunction, LinearFunction, transfer
from actnn.torch.layers.base import Compressed


class CompressedConvolution(Compressed, MapLayer):
    """A convolution of any rank that keeps a code of its input."""

    function: ClassVar[Callable[..., Tensor]]
    opposite: ClassVar[Callable[..., Tensor]]

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of ``x``."""
        if not self.records(x):
            return super().forward(x)
        return self.convolve(x, self.padding, self.output_padding)

    def convolve(self, x: Tensor, padding: Any, output_padding: tuple[int, ...]) -> Tensor:
        """Return the convolution with numeric paddings."""
        rank = len(self.kernel_size)
        self.check_input(x, rank)
        fixed = (self.stride, padding, self.dilation, self.transposed, output_padding, self.groups)
        convolution = Convolution(type(self).function, type(self).opposite, *fixed)
        batch = x if x.dim() == rank + 2 else x.unsqueeze(0)
        kept = self.keep(batch, self.weight.requires_grad)
        with (
            torch.backends.cudnn.flags(benchmark=self.site.session.policy.cudnn_benchmark)
            if x.is_cuda
            else nullcontext()
        ):
            y = ConvolutionFunction.apply(batch, self.weight, self.bias, kept, self.site, convolution)
        self.is_source(y, lambda: convolution.transfer(batch, y, self.weight))
        return y if batch is x else y.squeeze(0)

    def check_input(self, x: Tensor, rank: int) -> None:
        """Raise a typed error unless ``x`` is what this layer takes."""
        self.check_floating(x)
        if x.dim() not in (rank + 1, rank + 2) or x.shape[-rank - 1] != self.in_channels:
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: expected {self.in_channels} "
                f"channels and {rank} further axes, with or without a batch axis."
            )


class ForwardConvolution(CompressedConvolution):
    """A convolution that is not transposed: it also knows 'same' padding and padding modes."""

    def convolve(self, x: Tensor, padding: Any, output_padding: tuple[int, ...]) -> Tensor:
        """Return the convolution, what torch's numeric padding cannot express being padded beforehand."""
        rank = len(self.kernel_size)
        both = self._reversed_padding_repeated_twice
        if self.padding_mode != "zeros":
            return super().convolve(F.pad(x, both, mode=self.padding_mode), (0,) * rank, output_padding)
        if padding == "valid":
            return super().convolve(x, (0,) * rank, output_padding)
        if padding == "same":
            if both[::2] != both[1::2]:
                return super().convolve(F.pad(x, both), (0,) * rank, output_padding)
            padding = tuple(reversed(both[::2]))
        return super().convolve(x, padding, output_padding)


class TransposedConvolution(CompressedConvolution):
    """A transposed convolution; ``output_size`` may ask for one of the possible sizes."""

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Return the transposed convolution of ``x``."""
        if not self.records(x):
            return super(CompressedConvolution, self).forward(x, output_size)
        rank = len(self.kernel_size)
        fixed = (self.stride, self.padding, self.kernel_size, rank, self.dilation)
        return self.convolve(x, self.padding, tuple(self._output_padding(x, output_size, *fixed)))


class QConv1d(ForwardConvolution, nn.Conv1d):
    """``nn.Conv1d`` that keeps a code of its input."""

    plain = nn.Conv1d
    function, opposite = staticmethod(F.conv1d), staticmethod(F.conv_transpose1d)


class QConv2d(ForwardConvolution, nn.Conv2d):
    """``nn.Conv2d`` that keeps a code of its input."""

    plain = nn.Conv2d
    function, opposite = staticmethod(F.conv2d), staticmethod(F.conv_transpose2d)


class QConv3d(ForwardConvolution, nn.Conv3d):
    """``nn.Conv3d`` that keeps a code of its input."""

    plain = nn.Conv3d
    function, opposite = staticmethod(F.conv3d), staticmethod(F.conv_transpose3d)


class QConvTranspose1d(TransposedConvolution, nn.ConvTranspose1d):
    """``nn.ConvTranspose1d`` that keeps a code of its input."""

    plain = nn.ConvTranspose1d
    function, opposite = staticmethod(F.conv_transpose1d), staticmethod(F.conv1d)


class QConvTranspose2d(TransposedConvolution, nn.ConvTranspose2d):
    """``nn.ConvTranspose2d`` that keeps a code of its input."""

    plain = nn.ConvTranspose2d
    function, opposite = staticmethod(F.conv_transpose2d), staticmethod(F.conv2d)


class QConvTranspose3d(TransposedConvolution, nn.ConvTranspose3d):
    """``nn.ConvTranspose3d`` that keeps a code of its input."""

    plain = nn.ConvTranspose3d
    function, opposite = staticmethod(F.conv_transpose3d), staticmethod(F.conv3d)


class QLinear(Compressed, MapLayer, nn.Linear):
    """``nn.Linear`` that keeps a code of its input."""

    plain = nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        """Return the linear map of ``x``, of any rank."""
        if not self.records(x):
            return super().forward(x)
        self.check_floating(x)
        if x.shape[-1:] != (self.in_features,):
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: "
                f"expected {self.in_features} features on the last axis."
            )
        kept = self.keep(x, self.weight.requires_grad)
        y = LinearFunction.apply(x, self.weight, self.bias, kept, self.site)
        # in an output of more axes, the channels of a BatchNorm are not this layer's features
        if y.dim() == 2:
            self.is_source(y, lambda: transfer(x, y))
        return y
