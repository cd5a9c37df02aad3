"""Rules of pooling, and of other linear functions of which exact training keeps an input for its shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.kept import counted_once
from actnn.torch.door.maps import coded
from actnn.torch.functions.pooling import (
    AveragePoolFunction,
    IndexAddFunction,
    MaxPoolFunction,
    each_axis,
    max_pooling,
    shaped,
)
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


def adaptive_max_pool(rank: int) -> Rule:
    """Return the rule of a max pooling to so many outputs an axis; declines windows of different sizes."""
    windows = max_pool(rank)

    def rule(frame: Frame, function: Any, input: Any, output_size: Any, return_indices: bool = False) -> Any:
        if return_indices or not coded(input) or input.dim() not in (rank + 1, rank + 2):
            return DECLINED
        space = input.shape[-rank:]
        given = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * rank
        output = [own if size is None else size for size, own in zip(given, space, strict=True)]
        if any(size < 1 or own % size for size, own in zip(output, space, strict=True)):
            return DECLINED
        return windows(frame, function, input, tuple(own // size for size, own in zip(output, space, strict=True)))

    return rule


def linear_of(fits: Callable[..., bool]) -> Rule:
    """Return the rule of a function that is linear in its first argument, of which it keeps the shape.

    ``fits`` tells from the other arguments whether exact training would keep more.
    """

    def rule(frame: Frame, function: Any, input: Any, *arguments: Any, **options: Any) -> Any:
        if not coded(input) or not input.requires_grad or not fits(*arguments, **options):
            return DECLINED
        site = frame.site(frame.count(function.__name__))
        return shaped(input, site, partial(applied, function, arguments, options))

    return rule


def applied(function: Any, arguments: tuple[Any, ...], options: dict[str, Any], x: Tensor) -> Tensor:
    """Return what a function makes of a tensor."""
    y: Tensor = function(x, *arguments, **options)
    return y


def always(*arguments: Any, **options: Any) -> bool:
    """Tell that a function keeps its input whatever else it is given."""
    return True


def copies_edges(pad: Any, mode: str = "constant", value: Any = None) -> bool:
    """Tell whether a padding is one of those that keep their input."""
    return mode in ("reflect", "replicate")


def averages(size: Any = None, scale_factor: Any = None, mode: str = "nearest", *others: Any, **options: Any) -> bool:
    """Tell whether an interpolation is an average over areas: others keep nothing."""
    return mode == "area"


def index_add(
    frame: Frame, function: Any, input: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1, out: Any = None
) -> Any:
    """Return ``torch.index_add``, which keeps its indices and not what it adds."""
    fits = out is None and coded(input, source) and source.requires_grad and source.dim() == input.dim() > 0
    if not fits or index.dim() != 1 or input.dtype != source.dtype:
        return DECLINED
    site = frame.site(frame.count("index_add"))
    site.keeps(ARRAYS.nbytes(index), ARRAYS.nbytes(index) + counted_once(ARRAYS, source, site))
    return IndexAddFunction.apply(input, source, index, dim, alpha, site, function is Tensor.index_add_)


RULES: dict[Any, Rule] = {
    F.max_pool1d: max_pool(1),
    F.max_pool2d: max_pool(2),
    F.max_pool3d: max_pool(3),
    F.adaptive_max_pool1d: adaptive_max_pool(1),
    F.adaptive_max_pool2d: adaptive_max_pool(2),
    F.adaptive_max_pool3d: adaptive_max_pool(3),
    F.avg_pool2d: average_pool,
    **dict.fromkeys((F.avg_pool1d, F.avg_pool3d), linear_of(always)),
    **dict.fromkeys((F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d), linear_of(always)),
    F.pad: linear_of(copies_edges),
    F.interpolate: linear_of(averages),
    **dict.fromkeys((torch.index_add, Tensor.index_add, Tensor.index_add_), index_add),
}
