"""Rules of linear maps: linear, addmm, convolutions, and products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.kept import keep
from actnn.operations.products import MATMUL_EXTRA
from actnn.torch.functions.maps import Convolution, ConvolutionFunction, LinearFunction
from actnn.torch.functions.products import MATMUL, product
from actnn.torch.tensors import ARRAYS, FLOATING


def coded(*tensors: Any) -> bool:
    """Tell whether all are dense tensors of a kind that codes can hold, none of them empty."""
    return all(
        isinstance(x, Tensor) and x.dtype in FLOATING and 0 not in x.shape and x.layout is torch.strided
        for x in tensors
    )


def learns(weight: Tensor) -> bool:
    """Tell whether a tensor is a parameter, or made of one alone, whose gradient is asked for."""
    return weight.requires_grad


def parameter_of(weight: Tensor) -> int:
    """Return the identity of a weight, or of the parameter that it is a part of."""
    return id(weight if weight._base is None else weight._base)


def linear(frame: Frame, function: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    """Return ``F.linear``, which keeps a code of its input where the weight learns."""
    if not coded(input, weight) or not learns(weight) or weight.dim() != 2 or input.dim() < 2:
        return DECLINED
    site = frame.site(frame.count("linear"))
    site.parameter = parameter_of(weight)
    kept = keep(ARRAYS, input, site, frame.training)
    return LinearFunction.apply(input, weight, bias, kept, site)


def addmm(frame: Frame, function: Any, input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return ``torch.addmm`` of a bias, an activation and a weight: a linear layer whose weight is transposed."""
    if (beta, alpha) != (1, 1) or not coded(input, mat1, mat2) or not learns(mat2) or input.dim() != 1:
        return DECLINED
    site = frame.site(frame.count("addmm"))
    site.parameter = parameter_of(mat2)
    kept = keep(ARRAYS, mat1, site, frame.training)
    return LinearFunction.apply(mat1, mat2.t(), input, kept, site)


def matmul(frame: Frame, function: Any, input: Any, other: Any) -> Any:
    """Return a product of matrices that keeps codes of the factors which the gradients read."""
    if not coded(input, other) or min(input.dim(), other.dim()) < 2:
        return DECLINED
    name = function.__name__
    if other.dim() == 2 and not ARRAYS.recorded(other) and learns(other):
        site = frame.site(frame.count(name))
        site.parameter = parameter_of(other)
        kept = keep(ARRAYS, input, site, frame.training)
        return LinearFunction.apply(input, other.t(), None, kept, site)
    if not (input.requires_grad and other.requires_grad):
        return DECLINED
    site = frame.site(frame.count(name), extra=MATMUL_EXTRA)
    return product(input, other, MATMUL, site, frame.training)


def convolution(rank: int, transposed: bool) -> Rule:
    """Return the rule of a convolution."""

    def forward(
        frame: Frame,
        function: Any,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        return convolve(frame, function, input, weight, bias, (stride, padding, dilation, False, 0, groups))

    def backward(
        frame: Frame,
        function: Any,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        return convolve(frame, function, input, weight, bias, (stride, padding, dilation, True, output_padding, groups))

    def convolve(frame: Frame, function: Any, x: Any, weight: Any, bias: Any, given: tuple[Any, ...]) -> Any:
        stride, padding, dilation, opposite, output_padding, groups = given
        if isinstance(padding, str) or not coded(x, weight) or not learns(weight) or x.dim() != rank + 2:
            return DECLINED
        numbers = [each(value, rank) for value in (stride, padding, dilation, output_padding)]
        fixed = (*numbers[:3], opposite, numbers[3], groups)
        site = frame.site(frame.count(function.__name__))
        site.parameter = parameter_of(weight)
        form = ARRAYS.form(x)
        known: Convolution | None = site.plans.get(form)
        if known is None or known.fixed != fixed or known.weight_shape != weight.shape:
            known = site.remember(form, Convolution(site, x, weight, fixed))
        kept = keep(ARRAYS, x, site, frame.training, form)
        return ConvolutionFunction.apply(x, weight, bias, kept, known)

    return backward if transposed else forward


def each(value: Any, rank: int) -> tuple[int, ...]:
    """Return one number for each axis."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * rank if len(values) == 1 else values


CONVOLUTIONS: dict[Callable[..., Any], tuple[int, bool]] = {
    F.conv1d: (1, False),
    F.conv2d: (2, False),
    F.conv3d: (3, False),
    F.conv_transpose1d: (1, True),
    F.conv_transpose2d: (2, True),
    F.conv_transpose3d: (3, True),
}
RULES: dict[Any, Rule] = {
    F.linear: linear,
    torch.addmm: addmm,
    Tensor.addmm: addmm,
    torch.matmul: matmul,
    Tensor.matmul: matmul,
    Tensor.__matmul__: matmul,
    torch.bmm: matmul,
    Tensor.bmm: matmul,
    torch.mm: matmul,
    Tensor.mm: matmul,
    **{function: convolution(*kind) for function, kind in CONVOLUTIONS.items()},
}
