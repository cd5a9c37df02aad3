"""Rectifiers and dropout that keep one bit an element or less."""

from __future__ import annotations

import sys
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from actnn.format import TWO_SIDED
from actnn.operations.kept import encode_mask
from actnn.operations.rectifiers import Rectifier, rectify
from actnn.torch.functions.activation import RectifierFunction, bypassed, dropout
from actnn.torch.layers.base import Compressed
from actnn.torch.readers import overwrites
from actnn.torch.tensors import ARRAYS

RELU6_IN_PLACE = partial(F.relu6, inplace=True)


class QReLU(Compressed, nn.ReLU):
    """``nn.ReLU`` that shares a code with its input or its readers, or keeps one bit an element."""

    plain = nn.ReLU

    def forward(self, input: Tensor) -> Tensor:
        """Return max(x, 0)."""
        if not self.records(input):
            return super().forward(input)
        inplace = self.inplace or overwrites(self, input, sys.getrefcount(input))
        rectifier = Rectifier(
            self.site,
            F.relu_ if inplace else F.relu,
            inplace=inplace,
            family=self.site.of_rectified,
            rectifies=True,
            training=self.training,
        )
        # not where only we overwrite: the planner sees other gradients there
        y: Tensor = rectify(ARRAYS, input, rectifier, RectifierFunction.record, bypassed if self.inplace else None)
        return y


class QReLU6(Compressed, nn.ReLU6):
    """``nn.ReLU6`` that keeps one bit an element."""

    plain = nn.ReLU6

    def forward(self, input: Tensor) -> Tensor:
        """Return x clipped to [0, 6]."""
        if not self.records(input):
            return super().forward(input)
        inplace = self.inplace or overwrites(self, input, sys.getrefcount(input))
        rectifier = Rectifier(self.site, RELU6_IN_PLACE if inplace else F.relu6, inplace=inplace, upper=6.0)
        y: Tensor = rectify(ARRAYS, input, rectifier, RectifierFunction.record)
        return y


class QLeakyReLU(Compressed, nn.LeakyReLU):
    """``nn.LeakyReLU`` that shares a code with its input or its readers, or keeps one bit an element."""

    plain = nn.LeakyReLU

    def forward(self, input: Tensor) -> Tensor:
        """Return x, or a fraction of it below zero."""
        if not self.records(input):
            return super().forward(input)
        inplace = self.inplace or overwrites(self, input, sys.getrefcount(input))
        slope = self.negative_slope
        rectifier = Rectifier(
            self.site,
            partial(F.leaky_relu, negative_slope=slope, inplace=inplace),
            below=slope,
            inplace=inplace,
            family=TWO_SIDED,
            training=self.training,
            # with a negative slope the output does not tell the sign of the input
            kept=encode_mask(ARRAYS, input, self.site) if slope < 0 else None,
        )
        y: Tensor = rectify(ARRAYS, input, rectifier, RectifierFunction.record)
        return y


class QDropout(Compressed, nn.Dropout):
    """``nn.Dropout`` that keeps one bit an element."""

    plain = nn.Dropout

    def forward(self, input: Tensor) -> Tensor:
        """Return an input with elements dropped in training."""
        if not (self.training and self.p > 0 and self.records(input)):
            return super().forward(input)
        inplace = self.inplace or overwrites(self, input, sys.getrefcount(input))
        return dropout(self.site, input, self.p, inplace)
