"""Whole classes that are one operation, though their forward is written out in small pieces.

A row is a class that a user registered, or the ending of the names of such classes, and a function that computes the
same in training. A class that is found by its name is served only where a trial shows that it computes what its name
says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import paddle
from paddle import Tensor, nn

from actnn.kernels.contract import Rows
from actnn.model.door import DECLINED, disagreement
from actnn.model.registry import Forward, Registry
from actnn.paddle.door import norms
from actnn.paddle.door.calls import calls

# given the layer, its own forward, and what it was called with
Written = Callable[..., Any]
EPSILONS = ("variance_epsilon", "epsilon", "eps", "_epsilon")
TOLERANCE = 1e-5
TRIAL_ROWS = 3

registry = Registry(nn.Layer, "paddle layers")
register = registry.register


def rms_norm(layer: Any, plainly: Any, *arguments: Any, **options: Any) -> Any:
    """Return an RMSNorm over the last axis."""
    (x,) = (*arguments, *options.values()) if len(arguments) + len(options) == 1 else (None,)
    width = layer.weight.shape[0]
    if isinstance(x, Tensor) and x.shape[-1] == width and x.dtype == layer.weight.dtype:
        # while rules work, the door is closed
        frame = calls.frames[-1]
        with calls.closed(calls.frames):
            rows = Rows(width, width, 1)
            y = norms.normalized(
                frame, "rms_norm", x, layer.weight, None, rows, epsilon_of(layer), lambda few: few, False
            )
        if y is not DECLINED:
            return y
    return plainly(*arguments, **options)


def epsilon_of(layer: nn.Layer) -> float:
    """Return the number that a norm adds to mean squares."""
    found = next((value for name in EPSILONS if (value := getattr(layer, name, None)) is not None), 0.0)
    return float(found)


def is_rms_norm(layer: nn.Layer) -> bool:
    """Tell whether a layer computes an RMSNorm, by a trial on a few rows."""
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or len(weight.shape) != 1 or len(layer.parameters()) != 1:
        raise ValueError("it has no weight of one axis, or other parameters beside it")
    # no random numbers: the user's generator is not to move
    x = paddle.sin(paddle.arange(TRIAL_ROWS * weight.shape[0], dtype="float32")).reshape([TRIAL_ROWS, -1])
    x = x.astype(weight.dtype)
    with paddle.no_grad():
        found = layer.forward(x)
    if not isinstance(found, Tensor) or found.shape != x.shape:
        return False
    wide = x.astype("float32")
    expected = wide * paddle.rsqrt((wide * wide).mean(-1, keepdim=True) + epsilon_of(layer)) * weight.astype("float32")
    return bool(paddle.allclose(found.astype("float32"), expected.detach(), TOLERANCE, TOLERANCE))


def registered(forward: Forward, layer: nn.Layer, plainly: Any, *arguments: Any, **options: Any) -> Any:
    """Return what a user's function computes; the layer's own forward is not asked."""
    return forward(layer, *arguments, **options)


BY_NAME: dict[str, tuple[Callable[[nn.Layer], bool], Written]] = {"RMSNorm": (is_rms_norm, rms_norm)}


def written(layer: nn.Layer) -> tuple[Written | None, str | None]:
    """Return what computes a layer by operations, None where its own forward serves, and why if its name says more."""
    if (given := registry.of(layer)) is not None:
        return partial(registered, given), None
    reason = None
    for ending, (agrees, function) in BY_NAME.items():
        if type(layer).__name__.endswith(ending):
            reason = disagreement(ending, partial(agrees, layer))
            if reason is None:
                return function, None
    return None, reason
