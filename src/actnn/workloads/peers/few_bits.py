"""Few-bit backward (Novikov et al., ICML 2023): the derivative of a smooth function as a step function of 8 levels.

What is kept of GELU and SiLU is the number of the level, 3 bits an element. Levels and where they begin minimise the
squared error of the derivative over an interval, found by dynamic programming as in the paper. The gradient has the
error of the steps: it is not unbiased. All other layers keep what they keep.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from actnn import kernels
from actnn.errors import UnsupportedError
from actnn.torch.tensors import ARRAYS

# beyond it derivatives are 0 or 1
REACH = 8.0
POINTS = 512


def tanh_gelu(x: Tensor) -> Tensor:
    """Return the GELU that is written with a tanh."""
    return functional.gelu(x, approximate="tanh")


# by the name of a layer's type, since some packages have layers of their own
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "GELU": functional.gelu,
    "SiLU": functional.silu,
    "GELUActivation": functional.gelu,
    "NewGELUActivation": tanh_gelu,
    "SiLUActivation": functional.silu,
}


@cache
def steps_of(function: Callable[[Tensor], Tensor], bits: int) -> tuple[Tensor, Tensor]:
    """Return where the levels of a derivative change, and the levels."""
    points = torch.linspace(-REACH, REACH, POINTS, dtype=torch.float64, requires_grad=True)
    # a forward of somebody's own runs without gradients
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(function(points).sum(), points)
    firsts, levels = best_steps(slope.detach().numpy(), 2**bits)
    places = points.detach()
    between = [(places[first - 1] + places[first]) / 2 for first in firsts[1:]]
    return torch.stack(between).float(), torch.tensor(levels, dtype=torch.float32)


def best_steps(values: np.ndarray[Any, Any], count: int) -> tuple[list[int], list[float]]:
    """Return where steps begin, and their heights, of the step function that is closest to some values."""
    size = len(values)
    sums, squares = (np.concatenate(([0.0], np.cumsum(each))) for each in (values, values**2))
    begin, end = np.meshgrid(np.arange(size), np.arange(1, size + 1), indexing="ij")
    length = np.where(end > begin, end - begin, 1)
    error = squares[end] - squares[begin] - (sums[end] - sums[begin]) ** 2 / length
    # error[i, j] is that of one step over values i to j
    error = np.where(end > begin, error, np.inf)
    best = error[0]
    origins = []
    for _ in range(count - 1):
        # the last step begins at i, behind the best of fewer steps up to i - 1
        total = np.concatenate(([np.inf], best[:-1]))[:, None] + error
        origins.append(total.argmin(0))
        best = total.min(0)
    firsts, last = [], size
    for origin in reversed(origins):
        firsts.append(int(origin[last - 1]))
        last = firsts[-1]
    firsts = [0, *reversed(firsts)]
    ends = [*firsts[1:], size]
    return firsts, [float(values[a:b].mean()) for a, b in zip(firsts, ends, strict=True)]


class Stepped(Function):
    """A smooth function that keeps the number of its derivative's level."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor], bits: int) -> Tensor:
        limits, ctx.levels = (each.to(x.device) for each in steps_of(function, bits))
        words = torch.bucketize(x, limits.to(x.dtype), out_int32=True).view(1, -1)
        ctx.save_for_backward(kernels.select(ARRAYS, words).encode_index(ARRAYS, words, bits))
        ctx.bits = bits
        return function(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        (planes,) = ctx.saved_tensors
        words = kernels.select(ARRAYS, planes).decode_index(ARRAYS, planes, 1, grad.numel(), ctx.bits)
        return grad * ctx.levels.to(grad.dtype)[words.view(grad.shape).long()], None, None


def few_bits(model: nn.Module, *, seed: int = 0, bits: int = 3) -> nn.Module:
    """Return a model whose GELUs and SiLUs keep a few bits; it draws no random numbers."""
    found = False
    for layer in model.modules():
        function = FUNCTIONS.get(type(layer).__name__)
        if function is None:
            continue
        if getattr(layer, "approximate", "none") == "tanh":
            function = tanh_gelu
        layer.forward = _stepped(function, bits)
        found = True
    if not found:
        raise UnsupportedError(
            f"a {type(model).__name__} has no layer of a type among {', '.join(FUNCTIONS)}: the contestant few-bits "
            "has nothing to do. Leave it out."
        )
    return model


def _stepped(function: Callable[[Tensor], Tensor], bits: int) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        stepped: Tensor = Stepped.apply(x.contiguous(), function, bits)
        return stepped

    return forward
