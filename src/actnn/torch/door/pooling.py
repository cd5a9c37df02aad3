"""Rules of pooling."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.nn import functional as F

from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.kept import counted_once
from actnn.torch.door.maps import coded
from actnn.torch.functions.pooling import AveragePoolFunction, MaxPoolFunction, each_axis, max_pooling
from actnn.torch.tensors import ARRAYS


def max_pool(rank: int) -> Rule:
    """Return the rule of a max pooling over so many axes."""

    def rule(
        frame: Frame,
        function: Any,
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if return_indices or not coded(input) or not input.requires_grad or input.dim() not in (rank + 1, rank + 2):
            return DECLINED
        site = frame.site(frame.count(f"max_pool{rank}d"))
        sizes = (kernel_size, stride or kernel_size, padding, dilation)
        key = ARRAYS.form(input), *(each_axis(size, rank) for size in sizes), ceil_mode
        pooling = site.plans.get(key)
        if pooling is None:
            pooling = site.remember(key, max_pooling(input, rank, sizes, ceil_mode))
        return MaxPoolFunction.apply(input, site, pooling)

    return rule


def average_pool(
    frame: Frame,
    function: Any,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return an average pooling, which keeps only shapes."""
    if not coded(input) or not input.requires_grad or input.dim() != 4:
        return DECLINED
    site = frame.site(frame.count("avg_pool2d"))
    sizes = (each_axis(size, 2) for size in (kernel_size, stride or kernel_size, padding))
    geometry = (*sizes, ceil_mode, count_include_pad, divisor_override)
    site.keeps(0, counted_once(ARRAYS, input, site))
    return AveragePoolFunction.apply(input, site, partial(pooled, function, geometry), geometry)


def pooled(function: Any, geometry: tuple[Any, ...], x: Any) -> Any:
    """Return the means of a tensor."""
    return function(x, *geometry)


RULES: dict[Any, Rule] = {
    F.max_pool1d: max_pool(1),
    F.max_pool2d: max_pool(2),
    F.max_pool3d: max_pool(3),
    F.avg_pool2d: average_pool,
}
