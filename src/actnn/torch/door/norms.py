"""Rules of normalisations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.kernels.contract import Rows
from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.normalization import batch_norm as operation
from actnn.operations.row_normalization import EXTRA
from actnn.session import families
from actnn.torch.door.maps import coded
from actnn.torch.functions.batch_norm import Running
from actnn.torch.functions.batch_norm import normalized as batch_normalized
from actnn.torch.functions.row_norm import row_norm
from actnn.torch.tensors import ARRAYS

SMALLEST = {"float32": 1.1920928955078125e-07, "bfloat16": 0.0078125, "float16": 0.0009765625}


def wants_gradient(*tensors: Tensor | None) -> bool:
    """Tell whether the gradient of any tensor is asked for."""
    return any(x is not None and x.requires_grad for x in tensors)


def normalized(
    frame: Frame,
    name: str,
    x: Any,
    weight: Any,
    bias: Any,
    rows: Rows,
    epsilon: float,
    centred: bool,
    plain: Callable[[Tensor], Tensor],
) -> Any:
    """Return ``x`` normalised over rows; ``plain`` does the same to one number, as torch does it."""
    given = [own for own in (weight, bias) if own is not None]
    if not (coded(x, *given) and frame.training and wants_gradient(x, weight)):
        return DECLINED
    if torch.is_autocast_enabled(x.device.type):
        # below the door autocast would choose the precision of the output
        x = x.to(plain(x.new_zeros(1, 1)).dtype)
    site = frame.site(frame.count(name), extra=EXTRA)
    site.parameter = None if weight is None else id(weight)
    family = families.of_normalized(site.session.policy)
    y = row_norm(x, weight, bias, rows, epsilon, centred, site, family)
    return DECLINED if y is None else y


def one_layer(x: Tensor) -> Tensor:
    """Return the LayerNorm of one number."""
    return F.layer_norm(x, (1,))


def one_root(x: Tensor) -> Tensor:
    """Return the RMSNorm of one number."""
    return F.rms_norm(x, (1,))


def one_group(x: Tensor) -> Tensor:
    """Return the GroupNorm of one number; torch refuses a single one a group."""
    return F.group_norm(x[..., None].expand(1, 1, 2), 1)


def layer_norm(
    frame: Frame,
    function: Any,
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    """Return ``F.layer_norm``."""
    width = math.prod(normalized_shape)
    return normalized(frame, "layer_norm", input, weight, bias, Rows(width, width, 1), eps, True, one_layer)


def rms_norm(
    frame: Frame, function: Any, input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    """Return ``F.rms_norm``."""
    width = math.prod(normalized_shape)
    if eps is None:
        eps = SMALLEST.get(str(input.dtype).partition(".")[2], SMALLEST["float32"])
    return normalized(frame, "rms_norm", input, weight, None, Rows(width, width, 1), eps, False, one_root)


def group_norm(
    frame: Frame,
    function: Any,
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    """Return ``F.group_norm``."""
    if not coded(input) or input.dim() < 2 or input.shape[1] % num_groups:
        return DECLINED
    rows = Rows.of_channels(input.shape, num_groups)
    return normalized(frame, "group_norm", input.contiguous(), weight, bias, rows, eps, True, one_group)


def instance_norm(
    frame: Frame,
    function: Any,
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Return ``F.instance_norm`` by the statistics of each sample, which has no others."""
    if running_mean is not None or not use_input_stats or not coded(input) or input.dim() < 3:
        return DECLINED
    rows = Rows.of_channels(input.shape, input.shape[1])
    # torch refuses to normalise a single number
    if rows.width < 2:
        return DECLINED
    return normalized(frame, "instance_norm", input.contiguous(), weight, bias, rows, eps, True, one_group)


def batch_norm(
    frame: Frame,
    function: Any,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Return ``F.batch_norm`` by the statistics of the batch."""
    given = [own for own in (weight, bias) if own is not None]
    if not (training and frame.training and coded(input, *given) and wants_gradient(input, weight)):
        return DECLINED
    # a weight that is standardised is no activation
    if input.dim() < 2 or (input._base is not None and input._base.is_leaf):
        return DECLINED
    site = frame.site(frame.count("batch_norm"), batch_norm=True)
    site.parameter = None if weight is None else id(weight)
    if not site.compresses or input.numel() <= input.shape[1]:
        return DECLINED
    running = None if running_mean is None else Running(running_mean, running_var, momentum)

    def exact(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)

    y = operation(ARRAYS, input, None, site, eps, running, None, exact, batch_normalized, (weight, bias))
    return DECLINED if y is None else y


RULES: dict[Any, Rule] = {
    F.batch_norm: batch_norm,
    F.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    F.group_norm: group_norm,
    F.instance_norm: instance_norm,
}
