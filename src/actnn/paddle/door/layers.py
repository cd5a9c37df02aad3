"""Rules of functions whose operations layers serve: a layer that holds what the function was given does the same."""

from __future__ import annotations

from inspect import signature
from typing import Any

from paddle.nn import functional as F

from actnn.model.door import DECLINED, Frame, Rule
from actnn.paddle.door.forms import coded
from actnn.paddle.functional import (
    FUNCTIONS,
    Lower,
    bare,
    of_activation,
    of_adaptive_pooling,
    of_leaky_relu,
    of_one_axis,
    of_pooling,
)
from actnn.paddle.layers.activation import QLeakyReLU, QReLU6
from actnn.paddle.layers.pooling import QAdaptiveAvgPool2D, QMaxPool1D, QMaxPool3D

LOWER: dict[str, Lower] = {
    "linear": FUNCTIONS["qlinear"],
    "conv1d": FUNCTIONS["qconv1d"],
    "conv2d": FUNCTIONS["qconv2d"],
    "conv3d": FUNCTIONS["qconv3d"],
    "conv1d_transpose": FUNCTIONS["qconv_transpose1d"],
    "conv2d_transpose": FUNCTIONS["qconv_transpose2d"],
    "conv3d_transpose": FUNCTIONS["qconv_transpose3d"],
    "relu": FUNCTIONS["qrelu"],
    "relu6": Lower(QReLU6, F.relu6, of_activation),
    "leaky_relu": Lower(QLeakyReLU, F.leaky_relu, of_leaky_relu),
    "dropout": FUNCTIONS["qdropout"],
    "max_pool1d": Lower(QMaxPool1D, F.max_pool1d, of_one_axis),
    "max_pool2d": FUNCTIONS["qmax_pool2d"],
    "max_pool3d": Lower(QMaxPool3D, F.max_pool3d, of_pooling),
    "avg_pool2d": FUNCTIONS["qavg_pool2d"],
    "adaptive_avg_pool2d": Lower(QAdaptiveAvgPool2D, F.adaptive_avg_pool2d, of_adaptive_pooling),
}


def by_layer(name: str, lower: Lower) -> Rule:
    """Return the rule of a function that stands for a layer."""
    given = signature(lower.plain)

    def rule(frame: Frame, function: Any, *arguments: Any, **options: Any) -> Any:
        if "input" in options:
            # Paddle's second name for it
            options["x"] = options.pop("input")
        bound = given.bind(*arguments, **options)
        bound.apply_defaults()
        x = bound.arguments["x"]
        if not coded(x) or not learned(bound.arguments):
            return DECLINED
        site = frame.site(frame.count(name))
        site.parameter = id(bound.arguments.get("weight"))
        layer = site.plans.get(lower)
        if layer is None:
            layer = site.remember(lower, bare(lower.layer, {}, site))
        vars(layer).update({"training": frame.training} | lower.held(bound.arguments))
        if not layer.records(x):
            return DECLINED
        size = bound.arguments.get("output_size") if "output_padding" in bound.arguments else None
        return layer.forward(x) if size is None else layer.forward(x, size)

    return rule


def convolution(
    frame: Frame,
    function: Any,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    padding_algorithm: Any = None,
    dilation: Any = 1,
    groups: int = 1,
    data_format: str = "NCHW",
    *others: Any,
    **options: Any,
) -> Any:
    """Return what layers of Paddle, and subclasses of them, compute instead of ``F.conv2d`` and ``F.conv3d``."""
    name = f"conv{len(weight.shape) - 2}d"
    around = padding if padding_algorithm in (None, "EXPLICIT") else padding_algorithm
    return RULES[name](frame, getattr(F, name), x, weight, bias, stride, around, dilation, groups, data_format)


def adaptive_max_pool(rank: int) -> Rule:
    """Return the rule of a max pooling to so many outputs an axis; declines windows of different sizes."""
    windows = f"max_pool{rank}d"

    def rule(frame: Frame, function: Any, x: Any, output_size: Any, return_mask: bool = False, name: Any = None) -> Any:
        if return_mask or not coded(x) or len(x.shape) != rank + 2:
            return DECLINED
        space = x.shape[2:]
        given = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * rank
        output = [own if size is None else size for size, own in zip(given, space, strict=True)]
        if any(size < 1 or own % size for size, own in zip(output, space, strict=True)):
            return DECLINED
        sizes = [own // size for size, own in zip(output, space, strict=True)]
        return RULES[windows](frame, getattr(F, windows), x, sizes)

    return rule


def learned(given: dict[str, Any]) -> bool:
    """Tell whether the weight of a map learns; what is no map has none."""
    weight = given.get("weight")
    return weight is None or (coded(weight) and not weight.stop_gradient)


RULES: dict[str, Rule] = {name: by_layer(name, lower) for name, lower in LOWER.items()}
RULES |= {f"adaptive_max_pool{rank}d": adaptive_max_pool(rank) for rank in (1, 2, 3)}
# what only layers of Paddle call
INNER: dict[str, Rule] = {"_conv_nd": convolution}
