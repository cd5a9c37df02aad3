"""The lower-case names of the published port: given a tensor they compute, otherwise they make a layer.

``qconv2d(x, weight, bias, …)`` takes what ``paddle.nn.functional.conv2d`` takes, ``qconv2d(3, 16, 3, …)`` what
``QConv2D`` takes. A call that computes shares no code with others, and learns nothing for the next one: layers do.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from paddle import Tensor, nn
from paddle.nn import functional as F

from actnn.paddle.layers.activation import QDropout, QReLU
from actnn.paddle.layers.base import Compressed
from actnn.paddle.layers.batch_norm import QBatchNorm1D, QBatchNorm2D, QBatchNorm3D, QSyncBatchNorm
from actnn.paddle.layers.maps import (
    QConv1D,
    QConv1DTranspose,
    QConv2D,
    QConv2DTranspose,
    QConv3D,
    QConv3DTranspose,
    QLinear,
)
from actnn.paddle.layers.pooling import QAvgPool2D, QMaxPool2D
from actnn.paddle.padding import each_axis
from actnn.session.site import Site

Arguments = dict[str, Any]
# the names under which a layer holds what a function is given
CONVOLUTION = {"padding": "_padding", "groups": "_groups", "data_format": "_data_format"}
BATCH_NORM = {
    **{"running_mean": "_mean", "running_var": "_variance", "training": "training", "momentum": "_momentum"},
    **{"epsilon": "_epsilon", "data_format": "_data_format", "use_global_stats": "_use_global_stats"},
}


class Lower:
    """A layer and the function that it stands for, under one name."""

    def __init__(
        self, layer: type[Compressed], plain: Callable[..., Any], held: Callable[[Arguments], Arguments]
    ) -> None:
        self.layer, self.plain, self.held = layer, plain, held
        self.__doc__ = f"Make a ``{layer.__name__}``, or compute ``{plain.__name__}`` of a tensor with codes."

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute, given a tensor; make a layer otherwise."""
        if "input" in kwargs:
            # Paddle's second name for it
            kwargs["x"] = kwargs.pop("input")
        if not isinstance(args[0] if args else kwargs.get("x"), Tensor):
            return self.layer(*args, **kwargs)
        bound = signature(self.plain).bind(*args, **kwargs)
        bound.apply_defaults()
        layer, x = bare(self.layer, self.held(bound.arguments)), bound.arguments["x"]
        if not layer.records(x):
            return self.plain(*args, **kwargs)
        if (size := bound.arguments.get("output_size")) is not None:
            return layer.forward(x, size)
        return layer.forward(x)


def bare(kind: type[Compressed], held: Arguments, site: Site | None = None) -> Compressed:
    """Return a layer that holds what it was given, and no parameters of its own; without a site, alone."""
    layer = kind.__new__(kind)
    nn.Layer.__init__(layer)
    layer.__dict__.update(held)
    if site is None:
        layer.begin_alone()
    else:
        layer.site = site
    return layer


def of_convolution(given: Arguments) -> Arguments:
    """Return what a convolution holds."""
    weight = given["weight"]
    rank, transposed = len(weight.shape) - 2, "output_padding" in given
    held = {name: given[of] for of, name in CONVOLUTION.items()} | {"weight": weight, "bias": given["bias"]}
    held |= {f"_{name}": list(each_axis(given[name], rank)) for name in ("stride", "dilation")}
    held |= {"_in_channels": weight.shape[0] if transposed else weight.shape[1] * given["groups"]}
    return held | ({"output_padding": given["output_padding"]} if transposed else {"_padding_mode": "zeros"})


def of_batch_norm(given: Arguments) -> Arguments:
    """Return what a BatchNorm holds."""
    return {name: given[of] for of, name in BATCH_NORM.items()} | {name: given[name] for name in ("weight", "bias")}


def of_linear(given: Arguments) -> Arguments:
    """Return what a linear layer holds."""
    return {name: given[name] for name in ("weight", "bias", "name")}


def of_pooling(given: Arguments) -> Arguments:
    """Return what a pooling layer holds."""
    rest = {name: value for name, value in given.items() if name not in ("x", "kernel_size", "divisor_override")}
    return rest | {"ksize": given["kernel_size"], "divisor": given.get("divisor_override")}


def of_one_axis(given: Arguments) -> Arguments:
    """Return what a pooling layer of one axis holds."""
    return {name: value for name, value in given.items() if name != "x"}


def of_dropout(given: Arguments) -> Arguments:
    """Return what a dropout layer holds."""
    return {name: value for name, value in given.items() if name != "x"}


def of_activation(given: Arguments) -> Arguments:
    """Return what an activation holds."""
    return {"_name": given["name"]}


def of_leaky_relu(given: Arguments) -> Arguments:
    """Return what a LeakyReLU holds."""
    return {"_negative_slope": given["negative_slope"], "_name": given["name"]}


def of_adaptive_pooling(given: Arguments) -> Arguments:
    """Return what a pooling layer of fixed output holds."""
    return {f"_{name}": given[name] for name in ("output_size", "data_format", "name")}


FUNCTIONS: dict[str, Lower] = {
    "qconv1d": Lower(QConv1D, F.conv1d, of_convolution),
    "qconv2d": Lower(QConv2D, F.conv2d, of_convolution),
    "qconv3d": Lower(QConv3D, F.conv3d, of_convolution),
    "qconv_transpose1d": Lower(QConv1DTranspose, F.conv1d_transpose, of_convolution),
    "qconv_transpose2d": Lower(QConv2DTranspose, F.conv2d_transpose, of_convolution),
    "qconv_transpose3d": Lower(QConv3DTranspose, F.conv3d_transpose, of_convolution),
    "qbatch_norm1d": Lower(QBatchNorm1D, F.batch_norm, of_batch_norm),
    "qbatch_norm2d": Lower(QBatchNorm2D, F.batch_norm, of_batch_norm),
    "qbatch_norm3d": Lower(QBatchNorm3D, F.batch_norm, of_batch_norm),
    "qsync_batch_norm": Lower(QSyncBatchNorm, F.batch_norm, of_batch_norm),
    "qlinear": Lower(QLinear, F.linear, of_linear),
    "qrelu": Lower(QReLU, F.relu, of_activation),
    "qdropout": Lower(QDropout, F.dropout, of_dropout),
    "qmax_pool2d": Lower(QMaxPool2D, F.max_pool2d, of_pooling),
    "qavg_pool2d": Lower(QAvgPool2D, F.avg_pool2d, of_pooling),
}
