"""Pooling layers that keep positions within windows, or only shapes."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from actnn.errors import ShapeError
from actnn.operations.kept import counted_once
from actnn.operations.pooling import Pooling
from actnn.session.tensors import check_floating
from actnn.torch.functions.pooling import AveragePoolFunction, MaxPoolFunction, each_axis, max_pooling
from actnn.torch.layers.base import Compressed
from actnn.torch.tensors import ARRAYS


class CompressedMaxPool(Compressed):
    """Max pooling of any rank."""

    rank: ClassVar[int]
    kernel_size: Any
    stride: Any
    padding: Any
    dilation: Any
    ceil_mode: bool
    return_indices: bool

    @classmethod
    def reason_to_leave(cls, layer: Any) -> str | None:
        """Return why a plain layer of this kind stays as it is; None where it is converted."""
        return "it returns indices" if layer.return_indices else None

    def forward(self, input: Tensor) -> Any:
        """Return the maxima of an input; with ``return_indices`` the layer works as the plain one."""
        x = input
        if self.return_indices or not self.records(x):
            return self.plainly(x)
        sizes = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        key = ARRAYS.form(x), sizes
        pooling = self.site.plans.get(key)
        if pooling is None:
            self.check_input(x)
            pooling = self.site.remember(key, self.pooling(x))
        return MaxPoolFunction.apply(x, self.site, pooling)

    def check_input(self, x: Tensor) -> None:
        """Raise a typed error unless ``x`` is what this layer takes."""
        check_floating(ARRAYS, x, self.site.name)
        if x.dim() not in (self.rank + 1, self.rank + 2):
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: "
                f"expected {self.rank + 1} axes, or {self.rank + 2} with a batch axis."
            )

    def pooling(self, x: Tensor) -> Pooling:
        """Return the geometry of pooling ``x``."""
        sizes = (self.kernel_size, self.stride, self.padding, self.dilation)
        return max_pooling(x, self.rank, sizes, self.ceil_mode)


class QMaxPool1d(CompressedMaxPool, nn.MaxPool1d):
    """``nn.MaxPool1d`` that keeps positions within windows."""

    plain, rank = nn.MaxPool1d, 1


class QMaxPool2d(CompressedMaxPool, nn.MaxPool2d):
    """``nn.MaxPool2d`` that keeps positions within windows."""

    plain, rank = nn.MaxPool2d, 2


class QMaxPool3d(CompressedMaxPool, nn.MaxPool3d):
    """``nn.MaxPool3d`` that keeps positions within windows."""

    plain, rank = nn.MaxPool3d, 3


class QAvgPool2d(Compressed, nn.AvgPool2d):
    """``nn.AvgPool2d`` that keeps only shapes; its gradient is exact."""

    plain = nn.AvgPool2d

    def forward(self, input: Tensor) -> Tensor:
        """Return the means of an input."""
        if not self.records(input):
            return super().forward(input)
        sizes = (self.kernel_size, self.stride, self.padding)
        geometry = (
            *(each_axis(size, 2) for size in sizes),
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )
        self.site.keeps(0, counted_once(ARRAYS, input, self.site))
        y: Tensor = AveragePoolFunction.apply(input, self.site, super().forward, geometry)
        return y
