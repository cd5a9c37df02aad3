"""Layers in torch's spelling as Paddle spells them: names, options, and what Paddle's layers do not offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from layer_cases import Case

Options = dict[str, Any]

# what torch takes by position, by name
POSITIONAL: Mapping[str, tuple[str, ...]] = {
    "Conv": ("in_channels", "out_channels", "kernel_size", "stride", "padding"),
    "ConvTranspose": ("in_channels", "out_channels", "kernel_size", "stride", "padding"),
    "Linear": ("in_features", "out_features"),
    "BatchNorm": ("num_features",),
    "SyncBatchNorm": ("num_features",),
    "LayerNorm": ("normalized_shape",),
    "GroupNorm": ("num_groups", "num_channels"),
    "LeakyReLU": ("negative_slope",),
    "Dropout": ("p",),
    "MaxPool": ("kernel_size", "stride", "padding"),
    "AvgPool": ("kernel_size", "stride", "padding"),
    "AdaptiveAvgPool": ("output_size",),
    "Flatten": ("start_axis",),
    "Embedding": ("num_embeddings", "embedding_dim"),
}


def family(kind: str) -> str:
    """Return a layer's name without its number of axes."""
    return kind[:-2] if kind[-2:] in ("1d", "2d", "3d") else kind


def paddle_name(kind: str) -> str:
    """Return Paddle's name of a layer."""
    if kind == "SiLU":
        return "Silu"
    name, axes = family(kind), kind[len(family(kind)) :].upper()
    return f"Conv{axes}Transpose" if name == "ConvTranspose" else name + axes


def paddle_options(kind: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Options:
    """Return the arguments of a layer under Paddle's names."""
    named: Options = dict(zip(POSITIONAL.get(family(kind), ()), arguments, strict=False))
    for name, value in options.items():
        named.update(TRANSLATED.get(name, lambda value, name=name: {name: value})(value))
    if kind == "AvgPool2d":
        # torch counts what pads, unless told otherwise; Paddle does not
        named.setdefault("exclusive", False)
    return named


def _without_parameters(wanted: bool) -> Options:
    return {} if wanted else {"weight_attr": False, "bias_attr": False}


TRANSLATED: Mapping[str, Callable[[Any], Options]] = {
    "bias": lambda wanted: {} if wanted else {"bias_attr": False},
    "affine": _without_parameters,
    "elementwise_affine": _without_parameters,
    "dim": lambda value: {"axis": value},
    "eps": lambda value: {"epsilon": value},
    # Paddle weighs the old value
    "momentum": lambda value: {"momentum": 1 - value},
    "padding": lambda value: {"padding": value.upper() if isinstance(value, str) else pairs(value)},
    "count_include_pad": lambda counted: {"exclusive": not counted},
    # Paddle's ReLU and LeakyReLU never work in place
    "inplace": lambda _: {},
}


def pairs(value: Any) -> Any:
    """Return a size as Paddle takes it: lists, not tuples."""
    return list(value) if isinstance(value, tuple) else value


def missing(case: Case) -> bool:
    """Tell whether Paddle has no layer that does what a case asks for."""
    options = case.options
    return (
        (case.kind.startswith("BatchNorm") and options.get("momentum", 0) is None)
        or "track_running_stats" in options
        or (case.kind.startswith("MaxPool") and "dilation" in options)
        or ("padding_mode" in options and not isinstance(options["padding"], int))
        # on the host Paddle's own gradient of a GroupNorm without gamma is wrong
        or (case.kind == "GroupNorm" and "affine" in options)
        or without_batch(case)
    )


def without_batch(case: Case) -> bool:
    """Tell whether a case's input has no batch axis, which Paddle's convolutions and pools want."""
    axes = {"1d": 3, "2d": 4, "3d": 5}.get(case.kind[-2:])
    return axes is not None and family(case.kind) != "BatchNorm" and len(case.shape) < axes
