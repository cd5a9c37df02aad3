"""Dilation8 (Yu and Koltun, 2016): VGG-16 without its last two poolings, and a context module of dilated convolutions.

BatchNorms, which the paper has none of, stand behind the convolutions of the front end, so that it learns from scratch.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

# convolutions of each stage, and their width in that of the first stage
STAGES = ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))
# the stages behind which VGG-16 pools and the front end still does; those behind the others are dilated instead
POOLED = 3
HEAD = 16
CONTEXT = (1, 1, 2, 4, 8, 16, 1)


def dilation8(width: int, classes: int, channels: int) -> nn.Module:
    """Return the network; ``width`` is that of the first stage, 64 in VGG-16."""
    from torch import nn

    layers: list[nn.Module] = []
    inputs = channels
    for stage, (count, times) in enumerate(STAGES):
        dilation = 2 ** max(0, stage - POOLED)
        for _ in range(count):
            layers += normalised(inputs, width * times, 3, dilation)
            inputs = width * times
        if stage < POOLED:
            layers.append(nn.MaxPool2d(2))
    layers += [*normalised(inputs, HEAD * width, 3, 4), nn.Conv2d(HEAD * width, classes, 1)]
    context: list[nn.Module] = []
    for dilation in CONTEXT:
        context += [nn.Conv2d(classes, classes, 3, padding=dilation, dilation=dilation), nn.ReLU(inplace=True)]
    context.append(nn.Conv2d(classes, classes, 1))
    for layer in context:
        if isinstance(layer, nn.Conv2d):
            as_identity(layer)
    model: nn.Module = types()["Dilation8"](nn.Sequential(*layers), nn.Sequential(*context))
    return model


def normalised(inputs: int, outputs: int, kernel: int, dilation: int) -> list[nn.Module]:
    """Return a dilated convolution with BatchNorm and ReLU."""
    from torch import nn

    convolution = nn.Conv2d(inputs, outputs, kernel, padding=dilation, dilation=dilation, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def as_identity(convolution: nn.Conv2d) -> None:
    """Let a convolution hand on what it gets, which is how the paper's context module begins."""
    from torch import nn

    nn.init.dirac_(convolution.weight)
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)


@cache
def types() -> dict[str, Any]:
    """Return the classes by name; they are made on first use because importing a benchmark must not import torch."""
    from torch import nn
    from torch.nn import functional

    class Dilation8(nn.Module):
        """Front end and context module, and logits resized to the images."""

        def __init__(self, features: nn.Module, context: nn.Module) -> None:
            super().__init__()
            self.features, self.context = features, context

        def forward(self, images: Tensor) -> Tensor:
            logits = self.context(self.features(images))
            return functional.interpolate(logits, size=images.shape[2:], mode="bilinear", align_corners=False)

    return {"Dilation8": Dilation8}
