"""Rules of rectifiers, smooth functions and dropout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.format import TWO_SIDED
from actnn.kernels.contract import Smooth
from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.kept import encode_mask
from actnn.operations.rectifiers import Rectifier, rectify
from actnn.operations.smooth import EXTRA
from actnn.session import families
from actnn.torch.door.maps import coded
from actnn.torch.functions import activation
from actnn.torch.functions.activation import RectifierFunction, bypassed
from actnn.torch.functions.smooth import smooth
from actnn.torch.tensors import ARRAYS


def relu(frame: Frame, function: Any, input: Any, inplace: bool = False) -> Any:
    """Return max(x, 0)."""
    if not coded(input) or not input.requires_grad:
        return DECLINED
    inplace = inplace or function in IN_PLACE
    site = frame.site(frame.count("relu"))
    rectifier = Rectifier(
        site,
        F.relu_ if inplace else F.relu,
        inplace=inplace,
        family=families.of_rectified(site.session.policy),
        rectifies=True,
        training=frame.training,
    )
    return rectify(ARRAYS, input, rectifier, RectifierFunction.apply, bypassed)


def relu6(frame: Frame, function: Any, input: Any, inplace: bool = False) -> Any:
    """Return x clipped to [0, 6]."""
    if not coded(input) or not input.requires_grad:
        return DECLINED
    site = frame.site(frame.count("relu6"))
    rectifier = Rectifier(site, partial(F.relu6, inplace=inplace), inplace=inplace, upper=6.0)
    return rectify(ARRAYS, input, rectifier, RectifierFunction.apply)


def leaky_relu(frame: Frame, function: Any, input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """Return x, or a fraction of it below zero."""
    if not coded(input) or not input.requires_grad:
        return DECLINED
    site = frame.site(frame.count("leaky_relu"))
    rectifier = Rectifier(
        site,
        partial(F.leaky_relu, negative_slope=negative_slope, inplace=inplace),
        below=negative_slope,
        inplace=inplace,
        family=TWO_SIDED,
        training=frame.training,
        kept=encode_mask(ARRAYS, input, site) if negative_slope < 0 else None,
    )
    return rectify(ARRAYS, input, rectifier, RectifierFunction.apply)


def curve(function_of: Callable[..., Smooth | None]) -> Rule:
    """Return the rule of a smooth function; ``function_of`` tells which it is from the options, None for no rule."""

    def rule(frame: Frame, function: Any, input: Any, *arguments: Any, **options: Any) -> Any:
        if not frame.training or not coded(input) or not input.requires_grad:
            return DECLINED
        inplace = bool(options.get("inplace", False))
        others = {name: value for name, value in options.items() if name != "inplace"}
        kind = function_of(*arguments, **others)
        if kind is None:
            return DECLINED
        site = frame.site(frame.count(function.__name__), extra=EXTRA)
        compute = partial(computed, function, arguments, options)
        if frame.overwrites and not inplace and function in OVER:
            inplace, compute = True, partial(computed, OVER[function], arguments, others)
        y = smooth(input, compute, kind, site, inplace)
        return DECLINED if y is None else y

    return rule


def computed(function: Any, arguments: tuple[Any, ...], options: dict[str, Any], x: Tensor) -> Tensor:
    """Return a function of a tensor and its options."""
    y: Tensor = function(x, *arguments, **options)
    return y


def always(kind: Smooth) -> Callable[..., Smooth | None]:
    """Return what tells of a function that has no options that change it."""
    return lambda *arguments, **options: None if arguments or any(options.values()) else kind


def of_gelu(approximate: str = "none") -> Smooth | None:
    """Return which GELU is meant."""
    return {"none": Smooth.GELU, "tanh": Smooth.GELU_TANH}.get(approximate)


def of_softplus(beta: float = 1.0, threshold: float = 20.0) -> Smooth | None:
    """Return whether it is the softplus that kernels know."""
    return Smooth.SOFTPLUS if (beta, threshold) == (1, 20) else None


def of_elu(alpha: float = 1.0) -> Smooth | None:
    """Return whether it is the ELU that kernels know."""
    return Smooth.ELU if alpha == 1 else None


def dropout(
    frame: Frame, function: Any, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    """Return ``F.dropout``, which keeps one bit an element."""
    if not (training and p > 0 and coded(input) and input.requires_grad):
        return DECLINED
    site = frame.site(frame.count("dropout"))
    return activation.dropout(site, input, p, inplace)


IN_PLACE = (torch.relu_, Tensor.relu_)
# the same functions, over the tensor that they are given
OVER: dict[Any, Callable[..., Tensor]] = {
    **{function: partial(function, inplace=True) for function in (F.silu, F.mish, F.hardswish, F.hardsigmoid, F.elu)},
    F.gelu: torch.ops.aten.gelu_.default,
    Tensor.sigmoid: Tensor.sigmoid_,
    Tensor.tanh: Tensor.tanh_,
}
RULES: dict[Any, Rule] = {
    **dict.fromkeys((F.relu, torch.relu, Tensor.relu, *IN_PLACE), relu),
    F.relu6: relu6,
    F.leaky_relu: leaky_relu,
    F.gelu: curve(of_gelu),
    F.silu: curve(always(Smooth.SILU)),
    F.mish: curve(always(Smooth.MISH)),
    F.hardswish: curve(always(Smooth.HARDSWISH)),
    F.hardsigmoid: curve(always(Smooth.HARDSIGMOID)),
    F.softplus: curve(of_softplus),
    F.elu: curve(of_elu),
    **dict.fromkeys((torch.sigmoid, Tensor.sigmoid), curve(always(Smooth.SIGMOID))),
    **dict.fromkeys((torch.tanh, Tensor.tanh), curve(always(Smooth.TANH))),
    F.dropout: dropout,
}
