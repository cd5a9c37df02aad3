"""Convolution and linear layers that keep a code of their input."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from actnn.errors import ShapeError
from actnn.model.layers.maps import MapLayer
from actnn.paddle.functions.maps import Convolution, ConvolutionFunction, LinearFunction, transfer
from actnn.paddle.layers.base import Compressed, channels_last
from actnn.paddle.padding import Padding, each_axis


class CompressedConvolution(Compressed, MapLayer):
    """A convolution of any rank that keeps a code of its input."""

    function: ClassVar[Callable[..., Tensor]]

    def convolve(self, x: Tensor, convolution: Convolution) -> Tensor:
        """Return a convolution, recorded by autograd."""
        self.check_input(x)
        kept = self.keep(x, not self.weight.stop_gradient)
        y = ConvolutionFunction.record(self.site, x, self.weight, self.bias, kept, convolution)
        self.is_source(y, lambda: convolution.transfer(x, y, self.weight))
        return y

    def check_input(self, x: Tensor) -> None:
        """Raise a typed error unless ``x`` is what this layer takes."""
        self.check_floating(x)
        rank = len(self._stride)
        channel = -1 if channels_last(self._data_format) else 1
        if len(x.shape) != rank + 2 or x.shape[channel] != self._in_channels:
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: expected a batch of "
                f"{self._in_channels} channels and {rank} further axes, in the order {self._data_format}."
            )


class ForwardConvolution(CompressedConvolution):
    """A convolution that is not transposed."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of ``x``."""
        if not self.records(x):
            return self.plain.forward(self, x)
        padding: Any = self._padding
        if self._padding_mode != "zeros":
            around = self._reversed_padding_repeated_twice
            x, padding = F.pad(x, around, mode=self._padding_mode, data_format=self._data_format), 0
        return self.convolve(x, self.convolution(padding))

    def convolution(self, padding: Any) -> Convolution:
        """Return what this layer computes."""
        last, rank = channels_last(self._data_format), len(self._stride)
        fixed = {"stride": self._stride, "padding": padding, "dilation": self._dilation, "groups": self._groups}
        function = partial(type(self).function, **fixed, data_format=self._data_format)
        around = Padding.of(padding, rank, last)
        # 'SAME' goes without dilation in Paddle
        dilation = (1,) * rank if around.algorithm == "SAME" else tuple(self._dilation)
        return Convolution(function, tuple(self._stride), around, dilation, self._groups, last)


class TransposedConvolution(CompressedConvolution):
    """A transposed convolution; ``output_size`` may ask for one of the possible sizes."""

    def forward(self, x: Tensor, output_size: Any = None) -> Tensor:
        """Return the transposed convolution of ``x``."""
        if not self.records(x):
            return self.plain.forward(self, x, output_size)
        last, rank = channels_last(self._data_format), len(self._stride)
        output_padding = self.output_padding if output_size is None else 0
        fixed = {"stride": self._stride, "padding": self._padding, "dilation": self._dilation, "groups": self._groups}
        fixed |= {"output_padding": output_padding, "output_size": output_size, "data_format": self._data_format}
        convolution = Convolution(
            partial(type(self).function, **fixed),
            tuple(self._stride),
            Padding.of(self._padding, rank, last),
            tuple(self._dilation),
            self._groups,
            last,
            transposed=True,
            output_padding=each_axis(output_padding, rank),
        )
        return self.convolve(x, convolution)


class QConv1D(ForwardConvolution, nn.Conv1D):
    """``nn.Conv1D`` that keeps a code of its input."""

    plain, function = nn.Conv1D, staticmethod(F.conv1d)


class QConv2D(ForwardConvolution, nn.Conv2D):
    """``nn.Conv2D`` that keeps a code of its input."""

    plain, function = nn.Conv2D, staticmethod(F.conv2d)


class QConv3D(ForwardConvolution, nn.Conv3D):
    """``nn.Conv3D`` that keeps a code of its input."""

    plain, function = nn.Conv3D, staticmethod(F.conv3d)


class QConv1DTranspose(TransposedConvolution, nn.Conv1DTranspose):
    """``nn.Conv1DTranspose`` that keeps a code of its input."""

    plain, function = nn.Conv1DTranspose, staticmethod(F.conv1d_transpose)


class QConv2DTranspose(TransposedConvolution, nn.Conv2DTranspose):
    """``nn.Conv2DTranspose`` that keeps a code of its input."""

    plain, function = nn.Conv2DTranspose, staticmethod(F.conv2d_transpose)


class QConv3DTranspose(TransposedConvolution, nn.Conv3DTranspose):
    """``nn.Conv3DTranspose`` that keeps a code of its input."""

    plain, function = nn.Conv3DTranspose, staticmethod(F.conv3d_transpose)


class QLinear(Compressed, MapLayer, nn.Linear):
    """``nn.Linear`` that keeps a code of its input."""

    plain = nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        """Return the linear map of ``x``, of any rank."""
        if not self.records(x):
            return self.plain.forward(self, x)
        self.check_floating(x)
        features = self.weight.shape[0]
        if list(x.shape[-1:]) != [features]:
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: "
                f"expected {features} features on the last axis."
            )
        kept = self.keep(x, not self.weight.stop_gradient)
        y = LinearFunction.record(self.site, x, self.weight, self.bias, kept)
        # in an output of more axes, the channels of a BatchNorm are not this layer's features
        if len(y.shape) == 2:
            self.is_source(y, lambda: transfer(x, y))
        return y
