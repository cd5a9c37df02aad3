"""Rules of smooth functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from paddle import Tensor

from actnn.kernels.contract import Smooth
from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.smooth import EXTRA
from actnn.paddle.door.forms import coded, learns
from actnn.paddle.functions.smooth import smooth


def curve(title: str, function_of: Callable[..., Smooth | None]) -> Rule:
    """Return the rule of a smooth function; ``function_of`` tells which it is from the options, None for no rule."""

    def rule(frame: Frame, function: Any, x: Any, *arguments: Any, **options: Any) -> Any:
        # Paddle has a second name for it
        x = options.pop("input", x)
        kind = function_of(*arguments, **options)
        if kind is None or not (frame.training and coded(x) and learns(x)):
            return DECLINED
        site = frame.site(frame.count(title), extra=EXTRA)
        y = smooth(x, partial(computed, function, arguments, options), kind, site)
        return DECLINED if y is None else y

    return rule


def computed(function: Any, arguments: tuple[Any, ...], options: dict[str, Any], x: Tensor) -> Tensor:
    """Return a function of a tensor and its options."""
    y: Tensor = function(x, *arguments, **options)
    return y


def always(kind: Smooth) -> Callable[..., Smooth | None]:
    """Return what tells of a function that has no options but its name."""
    return lambda name=None: kind


def of_silu(inplace: bool = False, name: Any = None) -> Smooth | None:
    """Return SiLU, unless it works in place."""
    return None if inplace else Smooth.SILU


def of_gelu(approximate: Any = False, name: Any = None) -> Smooth | None:
    """Return which GELU is meant."""
    known = {False: Smooth.GELU, "none": Smooth.GELU, True: Smooth.GELU_TANH, "tanh": Smooth.GELU_TANH}
    return known.get(approximate)


def of_hardsigmoid(slope: float = 0.1666667, offset: float = 0.5, name: Any = None) -> Smooth | None:
    """Return whether it is the hard sigmoid that kernels know."""
    # Paddle's slope is 1/6 to seven digits
    return Smooth.HARDSIGMOID if abs(slope - 1 / 6) < 1e-6 and offset == 0.5 else None


def of_softplus(beta: float = 1.0, threshold: float = 20.0, name: Any = None) -> Smooth | None:
    """Return whether it is the softplus that kernels know."""
    return Smooth.SOFTPLUS if (beta, threshold) == (1, 20) else None


def of_elu(alpha: float = 1.0, name: Any = None) -> Smooth | None:
    """Return whether it is the ELU that kernels know."""
    return Smooth.ELU if alpha == 1 else None


FUNCTIONS: dict[str, Callable[..., Smooth | None]] = {
    "gelu": of_gelu,
    "silu": of_silu,
    "swish": always(Smooth.SILU),
    "mish": always(Smooth.MISH),
    "hardswish": always(Smooth.HARDSWISH),
    "hardsigmoid": of_hardsigmoid,
    "softplus": of_softplus,
    "elu": of_elu,
    "sigmoid": always(Smooth.SIGMOID),
    "tanh": always(Smooth.TANH),
}
RULES: dict[str, Rule] = {name: curve(name, function_of) for name, function_of in FUNCTIONS.items()}
