"""ResNets in plain torch, with the names and shapes of torchvision's, and scaled ones of any depth and width."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from actnn.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

CHANNELS = (64, 128, 256, 512)
# blocks of ResNet-152; the scaled ones add to the second and third stage
BASE_DEPTH, BASE_BLOCKS, SECOND_SHARE = 152, (3, 8, 36, 3), 8 / 44
BASE_WIDTH = 64
SMALLEST_DEPTH = 110
# far beyond what any machine trains
LARGEST_DEPTH = LARGEST_WIDTH = 10_000


class Shape(NamedTuple):
    """What tells one ResNet from another: blocks a stage, the kind of block, and the width of its middle."""

    blocks: Sequence[int]
    bottleneck: bool
    width_per_group: int = BASE_WIDTH


SHAPES = {
    "resnet18": Shape((2, 2, 2, 2), False),
    "resnet34": Shape((3, 4, 6, 3), False),
    "resnet50": Shape((3, 4, 6, 3), True),
    "resnet101": Shape((3, 4, 23, 3), True),
    "resnet152": Shape(BASE_BLOCKS, True),
    "wide_resnet50_2": Shape((3, 4, 6, 3), True, 128),
    "wide_resnet101_2": Shape((3, 4, 23, 3), True, 128),
}


def deep(depth: int) -> Shape:
    """Return the shape of the scaled ResNet of a depth, which is that of ResNet-152 at 152."""
    check_scale("depth", depth, SMALLEST_DEPTH, LARGEST_DEPTH)
    second = int((depth - BASE_DEPTH) * SECOND_SHARE)
    first, *middle, last = BASE_BLOCKS
    return Shape((first, middle[0] + second, middle[1] + depth - BASE_DEPTH - second, last), True)


def wide(width_per_group: int) -> Shape:
    """Return the shape of the scaled ResNet of a width, which is that of ResNet-152 at 64."""
    check_scale("width", width_per_group, 1, LARGEST_WIDTH)
    return Shape(BASE_BLOCKS, True, width_per_group)


def check_scale(what: str, given: int, least: int, most: int) -> None:
    """Raise ConfigError where a ResNet cannot be scaled so far."""
    if not least <= given <= most:
        raise ConfigError(f"there is no scaled ResNet of {what} {given}: expected at least {least} and at most {most}.")


def resnet(shape: Shape, classes: int, channels: int) -> nn.Module:
    """Return a fresh ResNet of a shape."""
    model: nn.Module = types()["ResNet"](shape, classes, channels)
    return model


@cache
def types() -> dict[str, Any]:
    """Return the classes by name; they are made on first use because importing a benchmark must not import torch."""
    from torch import nn

    def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
        return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)

    class Block(nn.Module):
        """A residual block: ``kernels`` convolutions, each with its BatchNorm, and a way around them."""

        kernels: Sequence[int]
        expansion: int

        def __init__(self, inputs: int, planes: int, width: int, stride: int) -> None:
            super().__init__()
            outputs = planes * self.expansion
            sizes = [inputs, *[width] * (len(self.kernels) - 1), outputs]
            strided = self.kernels.index(3)
            for place, kernel in enumerate(self.kernels):
                step = stride if place == strided else 1
                setattr(self, f"conv{place + 1}", convolution(sizes[place], sizes[place + 1], kernel, step))
                setattr(self, f"bn{place + 1}", nn.BatchNorm2d(sizes[place + 1]))
            self.relu = nn.ReLU(inplace=True)
            self.downsample = None
            if (inputs, stride) != (outputs, 1):
                self.downsample = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

        def forward(self, x: Any) -> Any:
            identity = x if self.downsample is None else self.downsample(x)
            for place in range(1, len(self.kernels) + 1):
                x = getattr(self, f"bn{place}")(getattr(self, f"conv{place}")(x))
                if place < len(self.kernels):
                    x = self.relu(x)
            x += identity
            return self.relu(x)

    class BasicBlock(Block):
        """Two convolutions."""

        kernels, expansion = (3, 3), 1

    class Bottleneck(Block):
        """A convolution between two that change the number of channels."""

        kernels, expansion = (1, 3, 1), 4

    class ResNet(nn.Module):
        """A stem, four stages of blocks, and a linear layer."""

        def __init__(self, shape: Shape, classes: int, channels: int) -> None:
            super().__init__()
            kind = Bottleneck if shape.bottleneck else BasicBlock
            self.conv1 = nn.Conv2d(channels, CHANNELS[0], 7, 2, padding=3, bias=False)
            self.bn1, self.relu = nn.BatchNorm2d(CHANNELS[0]), nn.ReLU(inplace=True)
            self.maxpool = nn.MaxPool2d(3, 2, padding=1)
            inputs = CHANNELS[0]
            for stage, (planes, count) in enumerate(zip(CHANNELS, shape.blocks, strict=True)):
                width = planes * shape.width_per_group // BASE_WIDTH
                blocks = []
                for place in range(count):
                    blocks.append(kind(inputs, planes, width, 2 if stage and not place else 1))
                    inputs = planes * kind.expansion
                setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
            self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(inputs, classes)
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d):
                    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

        def forward(self, x: Any) -> Any:
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
            for stage in range(len(CHANNELS)):
                x = getattr(self, f"layer{stage + 1}")(x)
            return self.fc(self.avgpool(x).flatten(1))

    return {"ResNet": ResNet, "BasicBlock": BasicBlock, "Bottleneck": Bottleneck}
