"""Convolution and linear layers that keep a code of their input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paddle import Tensor, nn
from paddle.nn import functional as F

from actnn.errors import ShapeError
from actnn.operations.kept import keep
from actnn.operations.maps import note_source
from actnn.paddle.functions.maps import Convolution, ConvolutionFunction, Geometry, LinearFunction, transfer
from actnn.paddle.layers.base import Compressed, channels_last
from actnn.paddle.padding import Padding, each_axis
from actnn.paddle.tensors import ARRAYS
from actnn.session.tensors import check_floating


class CompressedConvolution(Compressed):
    """A convolution of any rank that keeps a code of its input."""

    transposed = False

    def convolve(self, x: Tensor, padding: Any, output_padding: Any = 0, output_size: Any = None) -> Tensor:
        """Return the convolution, recorded by autograd; paddings and sizes in any of Paddle's spellings."""
        weight, site = self.weight, self.site
        fixed = (self._groups, self._data_format, str(padding), str(output_padding), output_size)
        key = ARRAYS.form(x), tuple(weight.shape), tuple(self._stride), tuple(self._dilation), fixed
        convolution = site.plans.get(key)
        if convolution is None:
            self.check_input(x)
            geometry = self.geometry(padding, output_padding, output_size)
            convolution = site.remember(key, Convolution(site, x, weight, geometry))
        learns = not weight.stop_gradient
        kept = keep(ARRAYS, x, site, self.training) if learns else None
        y = ConvolutionFunction.record(site, x, weight, self.bias, kept, convolution)
        if learns and self.training and site.session.planner.traces:
            note_source(ARRAYS, site, y, lambda: convolution.transfer(x, y, weight))
        return y

    def geometry(self, padding: Any, output_padding: Any, output_size: tuple[int, ...] | None) -> Geometry:
        """Return the fixed parameters of this layer."""
        rank, last = len(self._stride), channels_last(self._data_format)
        around = Padding.of(padding, rank, last)
        fixed = tuple(self._stride), around, tuple(self._dilation), self._groups, last, self.transposed
        return Geometry(*fixed, each_axis(output_padding, rank), output_size)

    def check_input(self, x: Tensor) -> None:
        """Raise a typed error unless ``x`` is what this layer takes."""
        check_floating(ARRAYS, x, self.site.name)
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
        """Return the convolution of an input."""
        if not self.records(x):
            return self.plainly(x)
        if self._padding_mode == "zeros":
            return self.convolve(x, self._padding)
        around = self._reversed_padding_repeated_twice
        return self.convolve(F.pad(x, around, mode=self._padding_mode, data_format=self._data_format), 0)


class TransposedConvolution(CompressedConvolution):
    """A transposed convolution; ``output_size`` may ask for one of the possible sizes."""

    transposed = True

    def forward(self, x: Tensor, output_size: Any = None) -> Tensor:
        """Return the transposed convolution of an input."""
        if not self.records(x):
            return self.plainly(x, output_size)
        if output_size is None:
            return self.convolve(x, self._padding, self.output_padding)
        sizes = map(int, output_size) if isinstance(output_size, Iterable) else (int(output_size),)
        return self.convolve(x, self._padding, 0, each_axis(tuple(sizes), len(self._stride)))


class QConv1D(ForwardConvolution, nn.Conv1D):
    """``nn.Conv1D`` that keeps a code of its input."""

    plain = nn.Conv1D


class QConv2D(ForwardConvolution, nn.Conv2D):
    """``nn.Conv2D`` that keeps a code of its input."""

    plain = nn.Conv2D


class QConv3D(ForwardConvolution, nn.Conv3D):
    """``nn.Conv3D`` that keeps a code of its input."""

    plain = nn.Conv3D


class QConv1DTranspose(TransposedConvolution, nn.Conv1DTranspose):
    """``nn.Conv1DTranspose`` that keeps a code of its input."""

    plain = nn.Conv1DTranspose


class QConv2DTranspose(TransposedConvolution, nn.Conv2DTranspose):
    """``nn.Conv2DTranspose`` that keeps a code of its input."""

    plain = nn.Conv2DTranspose


class QConv3DTranspose(TransposedConvolution, nn.Conv3DTranspose):
    """``nn.Conv3DTranspose`` that keeps a code of its input."""

    plain = nn.Conv3DTranspose


class QLinear(Compressed, nn.Linear):
    """``nn.Linear`` that keeps a code of its input."""

    plain = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        """Return the linear map of an input of any rank."""
        if not self.records(input):
            return self.plainly(input)
        site, weight = self.site, self.weight
        check_floating(ARRAYS, input, site.name)
        features = weight.shape[0]
        if list(input.shape[-1:]) != [features]:
            raise ShapeError(
                f"{site.name!r} was given an input of shape {tuple(input.shape)}: "
                f"expected {features} features on the last axis."
            )
        learns = not weight.stop_gradient
        kept = keep(ARRAYS, input, site, self.training) if learns else None
        y = LinearFunction.record(site, input, weight, self.bias, kept)
        # in an output of more axes, the channels of a BatchNorm are not this layer's features
        if learns and self.training and len(y.shape) == 2 and site.session.planner.traces:
            note_source(ARRAYS, site, y, lambda: transfer(input, y))
        return y
