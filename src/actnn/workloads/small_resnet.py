"""The network of the demo: three stages of residual blocks for small images."""

from __future__ import annotations

from collections.abc import Sequence


def small_resnet(classes: int = 10, channels: Sequence[int] = (16, 32, 64), blocks: int = 2, inputs: int = 1):
    """Return a ResNet for images of ``inputs`` channels; each stage after the first halves the resolution."""
    from torch import nn

    class Block(nn.Module):
        """Two convolutions and a way around them."""

        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.branch = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
                nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
            )
            self.shortcut = nn.Identity()
            if (inputs, stride) != (outputs, 1):
                self.shortcut = nn.Sequential(
                    nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
                )
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.relu(self.branch(x) + self.shortcut(x))

    layers = [
        nn.Conv2d(inputs, channels[0], 3, padding=1, bias=False),
        nn.BatchNorm2d(channels[0]),
        nn.ReLU(inplace=True),
    ]
    inputs = channels[0]
    for stage, outputs in enumerate(channels):
        for block in range(blocks):
            layers.append(Block(inputs, outputs, stride=2 if stage and not block else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
