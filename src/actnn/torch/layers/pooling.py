"""Pooling layers that keep positions within windows, or only shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from actnn.torch.functions.pooling import AveragePoolFunction, MaxPoolFunction, Window
from actnn.torch.layers.base import Compressed
from actnn.torch.tensors import check_floating


class CompressedMaxPool(Compressed):
    """Max pooling of any rank."""

    function: ClassVar[Callable[..., Any]]
    rank: ClassVar[int]

    def forward(self, x: Tensor) -> Any:
        """Return the maxima of ``x``; with ``return_indices`` the layer works as the plain one."""
        if self.return_indices or not self.records(x):
            return super().forward(x)
        check_floating(x, self.site.name)
        sizes = (self.kernel_size, self.stride, self.padding, self.dilation)
        window = Window(type(self).function, *(each_axis(size, self.rank) for size in sizes), self.ceil_mode)
        return MaxPoolFunction.apply(x, self.site, window)


class QMaxPool1d(CompressedMaxPool, nn.MaxPool1d):
    """``nn.MaxPool1d`` that keeps positions within windows."""

    plain, function, rank = nn.MaxPool1d, staticmethod(F.max_pool1d), 1


class QMaxPool2d(CompressedMaxPool, nn.MaxPool2d):
    """``nn.MaxPool2d`` that keeps positions within windows."""

    plain, function, rank = nn.MaxPool2d, staticmethod(F.max_pool2d), 2


class QMaxPool3d(CompressedMaxPool, nn.MaxPool3d):
    """``nn.MaxPool3d`` that keeps positions within windows."""

    plain, function, rank = nn.MaxPool3d, staticmethod(F.max_pool3d), 3


class QAvgPool2d(Compressed, nn.AvgPool2d):
    """``nn.AvgPool2d`` that keeps only shapes; its gradient is exact."""

    plain = nn.AvgPool2d

    def forward(self, x: Tensor) -> Tensor:
        """Return the means of ``x``."""
        if not self.records(x):
            return super().forward(x)
        sizes = (self.kernel_size, self.stride, self.padding)
        geometry = (*(each_axis(size, 2) for size in sizes), self.ceil_mode, self.count_include_pad, self.divisor_override)
        return AveragePoolFunction.apply(x, self.site, super().forward, geometry)


def each_axis(size: int | tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return a size as one number an axis."""
    return (size,) * rank if isinstance(size, int) else tuple(size)
