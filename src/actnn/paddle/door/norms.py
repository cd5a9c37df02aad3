"""Rules of normalisations: over rows, and by the statistics of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import paddle
from paddle import Tensor
from paddle.nn import functional as F

from actnn.kernels.contract import Rows
from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.normalization import Normalizing
from actnn.operations.normalization import batch_norm as operation
from actnn.operations.row_normalization import EXTRA
from actnn.paddle.door.forms import coded, learns
from actnn.paddle.functions.batch_norm import BatchNormFunction, Running
from actnn.paddle.functions.row_norm import row_norm
from actnn.paddle.layers.base import channels_last
from actnn.paddle.tensors import ARRAYS, PaddleOrder
from actnn.session import families

MOST_EPSILON = 1e-3


def normalized(
    frame: Frame,
    name: str,
    x: Any,
    weight: Any,
    bias: Any,
    rows: Rows,
    epsilon: float,
    plain: Callable[[Tensor], Tensor],
    centred: bool = True,
) -> Any:
    """Return ``x`` normalised over rows; ``plain`` does the same to a few numbers, as Paddle does it."""
    given = [own for own in (weight, bias) if own is not None]
    if not (frame.training and coded(x, *given) and learns(x, weight)):
        return DECLINED
    if x.element_size() < 4:
        # auto_cast may choose the precision of the output
        x = x.astype(plain(paddle.zeros([1, 1, 2], x.dtype)).dtype)
    site = frame.site(frame.count(name), extra=EXTRA)
    y = row_norm(x, weight, bias, rows, epsilon, centred, site, families.of_normalized(site.session.policy))
    return DECLINED if y is None else y


def layer_norm(
    frame: Frame,
    function: Any,
    x: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    epsilon: float = 1e-5,
    name: Any = None,
) -> Any:
    """Return ``F.layer_norm``."""
    sizes = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    # Paddle refuses other shapes and larger numbers
    if not coded(x) or list(x.shape[-len(sizes) :]) != sizes or epsilon > MOST_EPSILON:
        return DECLINED
    width = math.prod(sizes)
    rows = Rows(width, width, 1)
    return normalized(frame, "layer_norm", x, weight, bias, rows, epsilon, lambda few: function(few, [2]))


def group_norm(
    frame: Frame,
    function: Any,
    x: Any,
    num_groups: int,
    epsilon: float = 1e-5,
    weight: Any = None,
    bias: Any = None,
    data_format: str = "NCHW",
    name: Any = None,
) -> Any:
    """Return ``F.group_norm`` of channels that are on axis 1."""
    if data_format[1] != "C" or not coded(x) or len(x.shape) < 2 or x.shape[1] % num_groups:
        return DECLINED
    rows = Rows.of_channels(x.shape, num_groups)
    return normalized(frame, "group_norm", x, weight, bias, rows, epsilon, lambda few: function(few, 1))


def instance_norm(
    frame: Frame,
    function: Any,
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.9,
    eps: float = 1e-5,
    data_format: str = "NCHW",
    name: Any = None,
) -> Any:
    """Return ``F.instance_norm`` by the statistics of each sample, of channels that are on axis 1."""
    if running_mean is not None or data_format[1] != "C" or not coded(x) or len(x.shape) < 3:
        return DECLINED
    rows = Rows.of_channels(x.shape, x.shape[1])
    if rows.width < 2:
        return DECLINED
    return normalized(frame, "instance_norm", x, weight, bias, rows, eps, lambda few: few)


def batch_norm(
    frame: Frame,
    function: Any,
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    data_format: Any = "NCHW",
    use_global_stats: bool | None = None,
    name: Any = None,
) -> Any:
    """Return ``F.batch_norm`` by the statistics of the batch."""
    given = [own for own in (weight, bias) if own is not None]
    if not (training and frame.training and coded(x, *given) and learns(x, weight)) or use_global_stats:
        return DECLINED
    last = channels_last(data_format) and len(x.shape) > 2
    channels = running_mean.shape[0]
    # Paddle refuses other shapes
    if len(x.shape) < 2 or x.shape[-1 if last else 1] != channels or math.prod(x.shape) == channels:
        return DECLINED
    site = frame.site(frame.count("batch_norm"), batch_norm=True)
    site.parameter = None if weight is None else id(weight)
    if not site.compresses:
        return DECLINED

    def exact(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.batch_norm(x, mean, variance, weight, bias, epsilon=epsilon, data_format=data_format)

    def recorded(x: Tensor, weight: Tensor | None, bias: Tensor | None, call: Normalizing) -> tuple[Tensor, None]:
        return BatchNormFunction.record(site, x, weight, bias, call), None

    order = PaddleOrder(tuple(x.shape), channels_last=True) if last else None
    running = Running(running_mean, running_var, 1.0 - momentum)
    y = operation(ARRAYS, x, order, site, epsilon, running, None, exact, recorded, (weight, bias))
    return DECLINED if y is None else y


RULES: dict[str, Rule] = {
    "batch_norm": batch_norm,
    "layer_norm": layer_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
}
