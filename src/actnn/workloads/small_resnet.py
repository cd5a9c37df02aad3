"""The network of the demo: three stages of residual blocks for small images, in either framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn

CHANNELS = (16, 32, 64)


class Spelling(NamedTuple):
    """The layers of a framework that the network consists of; a convolution takes inputs, outputs, kernel, stride."""

    module: Any
    sequential: Callable[..., Any]
    convolution: Callable[[int, int, int, int], Any]
    normalization: Callable[[int], Any]
    rectifier: Callable[[], Any]
    identity: Callable[[], Any]
    head: Callable[[int, int], Sequence[Any]]


def small_resnet(classes: int = 10, channels: Sequence[int] = CHANNELS, blocks: int = 2, inputs: int = 1) -> nn.Module:
    """Return a ResNet in torch for images of ``inputs`` channels; each stage after the first halves the resolution."""
    from torch import nn

    spelling = Spelling(
        nn.Module,
        nn.Sequential,
        lambda i, o, kernel, stride: nn.Conv2d(i, o, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d,
        lambda: nn.ReLU(inplace=True),
        nn.Identity,
        lambda width, classes: (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)),
    )
    model: nn.Module = spelled(spelling, classes, channels, blocks, inputs)
    return model


def small_resnet_of_paddle(classes: int, inputs: int = 3) -> Any:
    """Return the same network in PaddlePaddle."""
    from paddle import nn

    spelling = Spelling(
        nn.Layer,
        nn.Sequential,
        lambda i, o, kernel, stride: nn.Conv2D(i, o, kernel, stride, padding=kernel // 2, bias_attr=False),
        nn.BatchNorm2D,
        nn.ReLU,
        nn.Identity,
        lambda width, classes: (nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(width, classes)),
    )
    return spelled(spelling, classes, CHANNELS, 2, inputs)


def spelled(spelling: Spelling, classes: int, channels: Sequence[int], blocks: int, inputs: int) -> Any:
    """Return the network in the layers of one framework."""
    block = block_of(spelling)
    layers = [
        spelling.convolution(inputs, channels[0], 3, 1),
        spelling.normalization(channels[0]),
        spelling.rectifier(),
    ]
    width = channels[0]
    for stage, outputs in enumerate(channels):
        for place in range(blocks):
            layers.append(block(width, outputs, 2 if stage and not place else 1))
            width = outputs
    return spelling.sequential(*layers, *spelling.head(width, classes))


def block_of(spelling: Spelling) -> Callable[[int, int, int], Any]:
    """Return the class of a residual block, made here because importing this module must not import a framework."""
    convolution, normalization = spelling.convolution, spelling.normalization

    class Block(spelling.module):  # type: ignore[misc, name-defined]
        """Two convolutions and a way around them."""

        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.branch = spelling.sequential(
                convolution(inputs, outputs, 3, stride),
                normalization(outputs),
                spelling.rectifier(),
                convolution(outputs, outputs, 3, 1),
                normalization(outputs),
            )
            self.shortcut = spelling.identity()
            if (inputs, stride) != (outputs, 1):
                self.shortcut = spelling.sequential(convolution(inputs, outputs, 1, stride), normalization(outputs))
            self.relu = spelling.rectifier()

        def forward(self, x: Any) -> Any:
            return self.relu(self.branch(x) + self.shortcut(x))

    return Block
