"""Rectifiers and dropout that keep one bit an element or less; in Paddle no rectifier works in place."""

from __future__ import annotations

from functools import partial

from paddle import Tensor, nn
from paddle.nn import functional as F

from actnn.operations.kept import Kept, encode_mask
from actnn.operations.rectifiers import Rectifier, rectify
from actnn.paddle.functions.activation import DropoutFunction, rectified
from actnn.paddle.layers.base import Compressed
from actnn.paddle.tensors import ARRAYS
from actnn.session import families
from actnn.session.tensors import check_floating


class QReLU(Compressed, nn.ReLU):
    """``nn.ReLU`` that shares a code with its input or its readers, or keeps one bit an element."""

    plain = nn.ReLU

    def forward(self, x: Tensor) -> Tensor:
        """Return max(x, 0)."""
        if not self.records(x):
            return self.plainly(x)
        family = families.of_rectified(self.site.session.policy)
        rectifier = Rectifier(self.site, F.relu, family=family, rectifies=True, training=self.training)
        y: Tensor = rectify(ARRAYS, x, rectifier, rectified)
        return y


class QReLU6(Compressed, nn.ReLU6):
    """``nn.ReLU6`` that keeps one bit an element."""

    plain = nn.ReLU6

    def forward(self, x: Tensor) -> Tensor:
        """Return x clipped to [0, 6]."""
        if not self.records(x):
            return self.plainly(x)
        y: Tensor = rectify(ARRAYS, x, Rectifier(self.site, F.relu6, upper=6.0), rectified)
        return y


class QLeakyReLU(Compressed, nn.LeakyReLU):
    """``nn.LeakyReLU`` that shares a code with its input, or keeps one bit an element."""

    plain = nn.LeakyReLU

    def forward(self, x: Tensor) -> Tensor:
        """Return x, or a fraction of it below zero."""
        if not self.records(x):
            return self.plainly(x)
        slope = self._negative_slope
        function = partial(F.leaky_relu, negative_slope=slope)
        # of the input: a tiny output may have lost its sign
        rectifier = Rectifier(self.site, function, below=slope, code=lambda _: self.not_below_zero(x))
        y: Tensor = rectify(ARRAYS, x, rectifier, rectified)
        return y

    def not_below_zero(self, x: Tensor) -> Kept:
        """Return a mask that holds at zero too, as Paddle's does; the sides of a code do not."""
        return encode_mask(ARRAYS, (x.detach() >= 0).astype(x.dtype), self.site)


class QDropout(Compressed, nn.Dropout):
    """``nn.Dropout`` that keeps one bit an element."""

    plain = nn.Dropout

    def forward(self, input: Tensor) -> Tensor:
        """Return an input with elements, or whole slices along ``axis``, dropped in training."""
        if not (self.training and self.p > 0 and self.records(input)):
            return self.plainly(input)
        check_floating(ARRAYS, input, self.site.name)
        upscale = self.mode == "upscale_in_train"
        return DropoutFunction.record(self.site, input, self.p, self.axis, upscale, self.inplace)
