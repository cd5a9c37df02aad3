"""Layers and networks of which all frameworks make the same codes.

Where layers follow each other, weights and inputs are small whole numbers: sums of them are exact, so that the
frameworks' own convolutions hand on equal activations whatever the order in which they add.
"""

from __future__ import annotations

import numpy as np
from frameworks import Framework, Model, numbers, offers
from layer_cases import GEOMETRY, KINDS, NORM_OPTIONS, ROW_NORMS, SMOOTH

# each framework draws the masks of a dropout itself; torch pads beforehand where both sides are not padded alike, and
# Paddle pads as if there were no dilation; the size of a three-dimensional pool is rounded in two ways
DIFFERENT = [
    case
    for case in (*KINDS, *GEOMETRY)
    if case.kind == "Dropout"
    or (case.options.get("padding") == "same" and case.arguments[2] not in (3, 5))
    or (case.kind == "MaxPool3d" and "ceil_mode" in case.options)
]
SHARED = [case for case in (*KINDS, *GEOMETRY, *NORM_OPTIONS) if offers("paddle", case) and case not in DIFFERENT]
# those of which no codes are stored too
EQUAL = [*SHARED, *(case for case in (*ROW_NORMS, *SMOOTH) if offers("paddle", case))]


def codes_and_gradients(framework: Framework, model: Model, x) -> tuple[list[bytes], dict[str, np.ndarray]]:
    """Take two steps; return the codes and the gradients of the second."""
    framework.step(model, x)
    found = []

    def step() -> None:
        found.append(framework.canonical(model, framework.step(model, x).gradients))

    codes = framework.saved_codes(step)
    return codes, found[0]


def whole(framework: Framework, model: Model) -> Model:
    """Give convolutions and linear layers small whole numbers for parameters."""
    generator = np.random.default_rng(3)
    for _, layer in framework.layers(model):
        own = framework.own_parameters(layer)
        if "weight" not in own or "Norm" in type(layer).__name__:
            continue
        shape = tuple(own["weight"].shape)
        turned = "Linear" in type(layer).__name__ and framework.linear_is_transposed
        values = generator.integers(-1, 2, shape[::-1] if turned else shape).astype(np.float32)
        framework.assign(own["weight"], values.T if turned else values)
        if "bias" in own:
            framework.assign(own["bias"], generator.integers(-2, 3, tuple(own["bias"].shape)).astype(np.float32))
    return model


def whole_images(batch: int = 8) -> np.ndarray:
    return np.rint(2 * numbers((batch, 3, 16, 16), 7)).astype(np.float32)


def flat_copy(model: Model, x):
    """Flatten a copy: in torch, what reads a view of a coded tensor shares its code, and Paddle knows no views."""
    return (x + 0).flatten(1)


def chain(framework: Framework) -> Model:
    """Return convolutions, pools and linear layers."""
    layer = framework.layer
    return whole(
        framework,
        framework.sequential(
            layer("Conv2d", 3, 8, 3, padding=1),
            layer("ReLU"),
            layer("MaxPool2d", 2),
            layer("Conv2d", 8, 8, 3, padding=1),
            layer("ReLU"),
            layer("AvgPool2d", 2),
            layer("ConvTranspose2d", 8, 6, 2, stride=2),
            layer("ReLU"),
            framework.wired(flat_copy),
            layer("Linear", 6 * 64, 20),
            layer("ReLU"),
            layer("Linear", 20, 5),
        ),
    )


def unit(framework: Framework) -> Model:
    """Return a BatchNorm and a ReLU between two convolutions, which share a code."""
    layer = framework.layer
    # the gradient of a bias before a BatchNorm would be nothing but rounding
    first = layer("Conv2d", 3, 8, 3, padding=1, bias=False), layer("BatchNorm2d", 8), layer("ReLU", inplace=True)
    return whole(framework, framework.sequential(*first, layer("Conv2d", 8, 4, 1)))
