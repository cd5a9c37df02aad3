"""Networks whose widths are decided while training, batches for them, and what a step of theirs tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from frameworks import Array, Framework, Model, numbers
from networks import residual_block

from actnn.model.wrapper import session_of
from actnn.planning.records import Record

CLASSES = 4


def unit(framework: Framework, inputs: int, outputs: int, stride: int = 1) -> list[Model]:
    """Return a convolution with its BatchNorm and ReLU."""
    layer = framework.layer
    convolution = layer("Conv2d", inputs, outputs, 3, stride, 1, bias=False)
    return [convolution, layer("BatchNorm2d", outputs), layer("ReLU", inplace=True)]


def classifier(framework: Framework, channels: int) -> list[Model]:
    layer = framework.layer
    return [layer("AdaptiveAvgPool2d", 2), layer("Flatten"), layer("Linear", 4 * channels, CLASSES)]


def in_a_row(framework: Framework, *layers: Model) -> Model:
    return framework.initialised(framework.sequential(*layers), 0)


def plain_network(framework: Framework) -> Model:
    """Return convolutions, each with BatchNorm and ReLU."""
    sizes = (3, 8, 1), (8, 8, 1), (8, 16, 2), (16, 16, 1)
    units = [layer for size in sizes for layer in unit(framework, *size)]
    return in_a_row(framework, *units, *classifier(framework, 16))


def residual_network(framework: Framework) -> Model:
    """Return residual blocks."""
    blocks = residual_block(framework, 8, 12), residual_block(framework, 12, 12)
    return in_a_row(framework, *unit(framework, 3, 8), *blocks, *classifier(framework, 12))


def linear_network(framework: Framework) -> Model:
    """Return linear layers with ReLU."""
    layer = framework.layer
    sizes = (768, 256), (256, 256), (256, 256), (256, 256)
    hidden = [each for size in sizes for each in (layer("Linear", *size), layer("ReLU"))]
    return in_a_row(framework, layer("Flatten"), *hidden, layer("Linear", 256, CLASSES))


def network_without_relu(framework: Framework) -> Model:
    """Return convolutions and BatchNorms that no ReLU reads."""
    layer = framework.layer
    layers = [
        each for size in (3, 8, 8) for each in (layer("Conv2d", size, 8, 3), layer("BatchNorm2d", 8), layer("Softsign"))
    ]
    return in_a_row(framework, *layers, *classifier(framework, 8))


NETWORKS: dict[str, Callable[[Framework], Model]] = {
    "conv, norm, relu": plain_network,
    "residual": residual_network,
    "linear": linear_network,
    "norm without relu": network_without_relu,
}


def ranges(batch: int, axes: int = 4) -> Array:
    """Return a factor for each sample, from a tenth to five."""
    return np.logspace(-1, 0.7, batch, dtype=np.float32).reshape(-1, *[1] * (axes - 1))


def pictures(batch: int = 8, seed: int = 0) -> Array:
    """Return inputs whose samples differ in range."""
    return numbers((batch, 3, 16, 16), 100 + seed) * ranges(batch)


def loss_of(framework: Framework, model: Model, x: Any) -> Any:
    """Return the loss on an array, or a tensor."""
    x = framework.tensor(x) if isinstance(x, np.ndarray) else x
    return framework.cross_entropy(model(x), np.arange(len(x)) % CLASSES)


def train(framework: Framework, model: Model, x: Any) -> Any:
    """Compute the gradient of one batch and return the report of it."""
    framework.clear(model)
    loss_of(framework, model, x).backward()
    return model.report()


def averages(framework: Framework, model: Model, batches: list[int]) -> list[float]:
    """Return the average width of each of several steps."""
    return [train(framework, model, pictures(batch, number)).average_bits for number, batch in enumerate(batches)]


def run(framework: Framework, model: Model, steps: int = 3) -> dict[str, Array]:
    """Train for some steps; return the gradients of the last one."""
    for number in range(steps):
        train(framework, model, pictures(seed=number))
    return framework.gradients(model)


class Widths:
    """Every code that a model plans while this is entered: the width of each sample, by layer."""

    def __init__(self, model: Model) -> None:
        self.planner = session_of(model).planner
        self.records: list[Record] = []

    def __enter__(self) -> Widths:
        record = self.planner.record

        def noted(*arguments):
            self.records.append(record(*arguments))
            return self.records[-1]

        self.planner.record = noted
        return self

    def __exit__(self, *_: object) -> None:
        # the noted one lies on the object, before that of the class
        del self.planner.record

    @property
    def of(self) -> dict[str, list[list[int]]]:
        """The widths that the kernels decided."""
        found: dict[str, list[list[int]]] = {}
        for record in self.records:
            found.setdefault(record.site.name, []).append(list(record.layout.sample_bits))
        return found


def widths_of(framework: Framework, model: Model, x: Any) -> dict[str, list[int]]:
    """Take a step; return the widths of the samples of each layer's code."""
    with Widths(model) as widths:
        train(framework, model, x)
    return {name: codes[0] for name, codes in widths.of.items()}


def check_all_finite(framework: Framework, model: Model) -> None:
    """Raise unless every parameter that learns has a gradient, and it is finite."""
    found = framework.gradients(model)
    for name, parameter in model.named_parameters():
        if not framework.is_frozen(parameter):
            assert name in found, f"{name} has no gradient"
            assert np.isfinite(found[name]).all(), f"the gradient of {name} is not finite"
