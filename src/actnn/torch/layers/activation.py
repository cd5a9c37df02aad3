"""Activations and dropout that keep one bit an element."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from actnn.format import TWO_SIDED, ZERO_EXACT
from actnn.model.layers.activation import ActivationLayer, Call, RectifierLayer
from actnn.torch.functions.activation import ActivationFunction, DropoutFunction
from actnn.torch.layers.base import Compressed


class CompressedActivation(Compressed, ActivationLayer):
    """A piecewise linear activation of torch."""

    def applied(self, x: Tensor, call: Call) -> Tensor:
        """Return the activation, recorded by autograd."""
        return ActivationFunction.apply(x, call)


class QReLU(CompressedActivation, RectifierLayer, nn.ReLU):
    """``nn.ReLU`` that shares a code with its input or its readers, or keeps one bit an element."""

    plain, family = nn.ReLU, ZERO_EXACT

    def call(self, x: Tensor) -> Call:
        """Return max(x, 0)."""
        return Call(self.site, partial(F.relu, inplace=self.inplace), 0.0, self.inplace, self.code)

    def watched(self, x: Tensor) -> bool:
        """Tell whether somebody wants to see the gradient of the input itself."""
        return bool(x.retains_grad or x._backward_hooks)


class QReLU6(CompressedActivation, nn.ReLU6):
    """``nn.ReLU6`` that keeps one bit an element."""

    plain = nn.ReLU6

    def call(self, x: Tensor) -> Call:
        """Return x clipped to [0, 6]."""
        inside = x.detach().clamp(0, 6)
        # something positive exactly where 0 < x < 6
        kept = self.mask(inside * (6 - inside))
        return Call(self.site, partial(F.relu6, inplace=self.inplace), 0.0, self.inplace, self.code, kept)


class QLeakyReLU(CompressedActivation, nn.LeakyReLU):
    """``nn.LeakyReLU`` that shares a code with its input or its readers, or keeps one bit an element."""

    plain, family = nn.LeakyReLU, TWO_SIDED

    def call(self, x: Tensor) -> Call:
        """Return x, or a fraction of it below zero."""
        function = partial(F.leaky_relu, negative_slope=self.negative_slope, inplace=self.inplace)
        # with a negative slope the output does not tell the sign of the input
        kept = self.mask(x) if self.negative_slope < 0 else None
        return Call(self.site, function, self.negative_slope, self.inplace, self.code, kept)


class QDropout(Compressed, nn.Dropout):
    """``nn.Dropout`` that keeps one bit an element."""

    plain = nn.Dropout

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` with elements dropped in training."""
        if not (self.training and self.p > 0 and self.records(x)):
            return super().forward(x)
        self.check_floating(x)
        y = DropoutFunction.apply(x, self.site, self.p, self.inplace)
        self.site.keeps(0, self.tensors.nbytes(x))
        return y
