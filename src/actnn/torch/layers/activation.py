"""Activations and dropout that keep one bit an element."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from actnn.torch.functions.activation import Activation, ActivationFunction, DropoutFunction
from actnn.torch.layers.base import Compressed
from actnn.torch.tensors import check_floating


class CompressedActivation(Compressed):
    """A piecewise linear activation."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of ``x``."""
        if not self.records(x):
            return super().forward(x)
        check_floating(x, self.site.name)
        return ActivationFunction.apply(x, self.site, self.activation())

    def activation(self) -> Activation:
        """Return what this layer computes."""
        raise NotImplementedError


class QReLU(CompressedActivation, nn.ReLU):
    """``nn.ReLU`` that keeps one bit an element."""

    plain = nn.ReLU

    def activation(self) -> Activation:
        """Return max(x, 0)."""
        return Activation(partial(F.relu, inplace=self.inplace), itself, 0.0, self.inplace)


class QReLU6(CompressedActivation, nn.ReLU6):
    """``nn.ReLU6`` that keeps one bit an element."""

    plain = nn.ReLU6

    def activation(self) -> Activation:
        """Return x clipped to [0, 6]."""
        return Activation(partial(F.relu6, inplace=self.inplace), between_zero_and_six, 0.0, self.inplace)


class QLeakyReLU(CompressedActivation, nn.LeakyReLU):
    """``nn.LeakyReLU`` that keeps one bit an element."""

    plain = nn.LeakyReLU

    def activation(self) -> Activation:
        """Return x, or a fraction of it below zero."""
        function = partial(F.leaky_relu, negative_slope=self.negative_slope, inplace=self.inplace)
        return Activation(function, itself, self.negative_slope, self.inplace)


class QDropout(Compressed, nn.Dropout):
    """``nn.Dropout`` that keeps one bit an element."""

    plain = nn.Dropout

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` with elements dropped in training."""
        if not (self.training and self.p > 0 and self.records(x)):
            return super().forward(x)
        check_floating(x, self.site.name)
        return DropoutFunction.apply(x, self.site, self.p, self.inplace)


def itself(x: Tensor) -> Tensor:
    """Return ``x``: a ReLU passes gradients where its input is positive."""
    return x


def between_zero_and_six(x: Tensor) -> Tensor:
    """Return something positive exactly where 0 < x < 6."""
    clipped = x.clamp(0, 6)
    return clipped * (6 - clipped)
