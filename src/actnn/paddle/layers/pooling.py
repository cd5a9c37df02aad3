"""Pooling layers that keep positions within windows, or only shapes."""

from __future__ import annotations

from typing import Any, ClassVar

from paddle import Tensor, nn

from actnn.errors import ShapeError
from actnn.kernels.contract import Pool
from actnn.operations.kept import counted_once
from actnn.operations.pooling import Pooling
from actnn.paddle.functions.pooling import AveragePoolFunction, MaxPoolFunction
from actnn.paddle.layers.base import Compressed, channels_last
from actnn.paddle.padding import Padding, each_axis
from actnn.paddle.tensors import ARRAYS, PaddleOrder
from actnn.session.tensors import check_floating


class CompressedMaxPool(Compressed):
    """Max pooling of any rank."""

    rank: ClassVar[int]

    @classmethod
    def reason_to_leave(cls, layer: nn.Layer) -> str | None:
        """Return why a plain layer of this kind stays as it is; None where it is converted."""
        return "it returns indices" if layer.return_mask else None

    def forward(self, x: Tensor) -> Any:
        """Return the maxima of an input."""
        return self.maxima(x)

    def maxima(self, x: Tensor) -> Any:
        """Return the maxima of an input; with ``return_mask`` the layer works as the plain one."""
        if self.return_mask or not self.records(x):
            return self.plainly(x)
        site = self.site
        key = ARRAYS.form(x), str((self.kernel(), self.stride, self.padding)), self.ceil_mode, self.data_layout()
        if key not in site.plans:
            self.check_input(x)
            site.remember(key, self.pooling(x))
        pooling = site.plans[key]
        if pooling is None:
            exact_bytes = counted_once(ARRAYS, x, site)
            site.keeps(exact_bytes, exact_bytes)
            return self.plainly(x)
        y = MaxPoolFunction.record(site, x, pooling)
        # exact training keeps the output too
        site.keeps(0, counted_once(ARRAYS, y, site))
        return y

    def check_input(self, x: Tensor) -> None:
        """Raise a typed error unless ``x`` is what this layer takes."""
        check_floating(ARRAYS, x, self.site.name)
        if len(x.shape) != self.rank + 2:
            raise ShapeError(
                f"{self.site.name!r} was given an input of shape {tuple(x.shape)}: expected {self.rank + 2} axes."
            )

    def kernel(self) -> Any:
        """Return the size of a window."""
        return self.ksize

    def data_layout(self) -> Any:
        """Return the order of an input's axes."""
        return self.data_format

    def pooling(self, x: Tensor) -> Pooling | None:
        """Return the geometry of pooling ``x``; None where a window holds nothing but padding."""
        last = channels_last(self.data_layout())
        samples, *rest = x.shape
        channels, space = (rest[-1], rest[:-1]) if last else (rest[0], rest[1:])
        kernel = each_axis(self.kernel(), self.rank)
        stride = kernel if self.stride is None else each_axis(self.stride, self.rank)
        around = Padding.of(self.padding, self.rank, last).around(space, kernel, stride)
        output = []
        for size, window, step, (before, behind) in zip(space, kernel, stride, around, strict=True):
            room = size + before + behind - window
            windows = (-(-room // step) if self.ceil_mode else room // step) + 1
            if windows < 1 or before >= window or (windows - 1) * step >= size + before:
                return None
            output.append(windows)
        padding = tuple(before for before, _ in around)
        sizes = (tuple(space), tuple(output), kernel, stride, padding, (1,) * self.rank)
        pooled = (*output, channels) if last else (channels, *output)
        pool = Pool(samples, channels, *sizes, last)
        return Pooling(PaddleOrder(tuple(x.shape), last), PaddleOrder((samples, *pooled), last), pool)


class QMaxPool1D(CompressedMaxPool, nn.MaxPool1D):
    """``nn.MaxPool1D`` that keeps positions within windows."""

    plain, rank = nn.MaxPool1D, 1

    def forward(self, input: Tensor) -> Any:
        """Return the maxima of an input."""
        return self.maxima(input)

    def kernel(self) -> Any:
        """Return the size of a window."""
        return self.kernel_size

    def data_layout(self) -> Any:
        """Return the order of an input's axes."""
        return "NCL"


class QMaxPool2D(CompressedMaxPool, nn.MaxPool2D):
    """``nn.MaxPool2D`` that keeps positions within windows."""

    plain, rank = nn.MaxPool2D, 2


class QMaxPool3D(CompressedMaxPool, nn.MaxPool3D):
    """``nn.MaxPool3D`` that keeps positions within windows."""

    plain, rank = nn.MaxPool3D, 3


class QAvgPool2D(Compressed, nn.AvgPool2D):
    """``nn.AvgPool2D`` that keeps only shapes; its gradient is exact."""

    plain = nn.AvgPool2D

    def forward(self, x: Tensor) -> Tensor:
        """Return the means of an input."""
        if not self.records(x):
            return self.plainly(x)
        check_floating(ARRAYS, x, self.site.name)
        kernel = each_axis(self.ksize, 2)
        stride = kernel if self.stride is None else each_axis(self.stride, 2)
        padding = Padding.of(self.padding, 2, channels_last(self.data_format))
        geometry = (
            *(list(kernel), list(stride), list(padding.numbers), self.ceil_mode, self.exclusive),
            *(self.data_format, "avg", False, False, padding.algorithm),
        )
        factor = 1.0 if self.divisor is None else kernel[0] * kernel[1] / self.divisor
        self.site.keeps(0, counted_once(ARRAYS, x, self.site))
        return AveragePoolFunction.record(self.site, x, self.plainly, geometry, factor)


class QAdaptiveAvgPool2D(Compressed, nn.AdaptiveAvgPool2D):
    """``nn.AdaptiveAvgPool2D`` that keeps only shapes; its gradient is exact."""

    plain = nn.AdaptiveAvgPool2D

    def forward(self, x: Tensor) -> Tensor:
        """Return the means of an input."""
        if not self.records(x):
            return self.plainly(x)
        check_floating(ARRAYS, x, self.site.name)
        last = channels_last(self._data_format)
        given, space = self._output_size, x.shape[1:3] if last else x.shape[2:4]
        sizes = [given] * 2 if isinstance(given, int) or given is None else list(given)
        output = [own if size is None else size for size, own in zip(sizes, space, strict=True)]
        geometry = (output, [1, 1], [0, 0], False, True, self._data_format, "avg", False, True, "EXPLICIT")
        self.site.keeps(0, counted_once(ARRAYS, x, self.site))
        return AveragePoolFunction.record(self.site, x, self.plainly, geometry, 1.0)
