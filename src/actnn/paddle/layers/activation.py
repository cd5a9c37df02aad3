"""Activations and dropout that keep one bit an element."""

from __future__ import annotations

import math
from functools import partial

from paddle import Tensor, nn
from paddle.nn import functional as F

from actnn.format import ZERO_EXACT
from actnn.model.layers.activation import ActivationLayer, Call, RectifierLayer
from actnn.operations.kept import Kept
from actnn.paddle.functions.activation import ActivationFunction, DropoutFunction
from actnn.paddle.layers.base import Compressed


class CompressedActivation(Compressed, ActivationLayer):
    """A piecewise linear activation of Paddle, none of which works in place."""

    def applied(self, x: Tensor, call: Call) -> Tensor:
        """Return the activation, recorded by autograd."""
        return ActivationFunction.record(self.site, x, call)


class QReLU(CompressedActivation, RectifierLayer, nn.ReLU):
    """``nn.ReLU`` that shares a code with its input or its readers, or keeps one bit an element."""

    plain, family = nn.ReLU, ZERO_EXACT

    def call(self, x: Tensor) -> Call:
        """Return max(x, 0)."""
        return Call(self.site, F.relu, 0.0, False, self.code)


class QReLU6(CompressedActivation, nn.ReLU6):
    """``nn.ReLU6`` that keeps one bit an element."""

    plain = nn.ReLU6

    def call(self, x: Tensor) -> Call:
        """Return x clipped to [0, 6]."""
        inside = x.detach().clip(0, 6)
        # something positive exactly where 0 < x < 6
        return Call(self.site, F.relu6, 0.0, False, self.code, self.mask(inside * (6 - inside)))


class QLeakyReLU(CompressedActivation, nn.LeakyReLU):
    """``nn.LeakyReLU`` that shares a code with its input, or keeps one bit an element."""

    plain = nn.LeakyReLU

    def call(self, x: Tensor) -> Call:
        """Return x, or a fraction of it below zero."""
        slope = self._negative_slope
        function = partial(F.leaky_relu, negative_slope=slope)
        # of the input: a tiny output may have lost its sign
        return Call(self.site, function, slope, False, lambda _: self.not_below_zero(x))

    def not_below_zero(self, x: Tensor) -> Kept:
        """Return a mask that holds at zero too, as Paddle's does; the sides of a code do not."""
        return self.mask((x.detach() >= 0).astype(x.dtype))


class QDropout(Compressed, nn.Dropout):
    """``nn.Dropout`` that keeps one bit an element."""

    plain = nn.Dropout

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` with elements, or whole slices along ``axis``, dropped in training."""
        if not (self.training and self.p > 0 and self.records(x)):
            return self.plain.forward(self, x)
        self.check_floating(x)
        upscale = self.mode == "upscale_in_train"
        y = DropoutFunction.record(self.site, x, self.p, self.axis, upscale, self.inplace)
        # exact training keeps a byte an element
        self.site.keeps(0, math.prod(x.shape))
        return y
