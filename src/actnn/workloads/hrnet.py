"""FCN-HRNet, in the width 48 of the paper's memory table and in others, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from actnn.workloads import resnets

if TYPE_CHECKING:
    from torch import Tensor, nn

STEM = 64
# how often branches of 2, 3 and 4 resolutions run side by side and exchange what they found
ROUNDS = {2: 1, 3: 4, 4: 3}
BLOCKS = 4


def fcn_hrnet(width: int, classes: int, channels: int) -> nn.Module:
    """Return the network: logits ``[batch, classes, height, width]`` at the resolution of the images.

    ``width`` is that of the finest of four resolutions; each next one is twice as wide.
    """
    from torch import nn

    widths = tuple(width * 2**place for place in range(4))

    parts = types()
    bottleneck = resnets.types()["Bottleneck"]
    stem = nn.Sequential(
        normalised(channels, STEM, stride=2),
        normalised(STEM, STEM, stride=2),
        bottleneck(STEM, STEM, STEM, 1),
        *(bottleneck(4 * STEM, STEM, STEM, 1) for _ in range(BLOCKS - 1)),
    )
    model: nn.Module = parts["Segmentation"](stem, parts["Trunk"](4 * STEM, widths), head(classes, sum(widths)))
    return model


def head(classes: int, width: int) -> nn.Module:
    """Return the fully convolutional head over all resolutions laid side by side."""
    from torch import nn

    return nn.Sequential(normalised(width, width, kernel=1), nn.Conv2d(width, classes, 1))


def normalised(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, relu: bool = True) -> nn.Module:
    """Return a convolution with BatchNorm and, unless it ends a path, ReLU."""
    from torch import nn

    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), *[nn.ReLU(inplace=True)] * relu)


def path(widths: Sequence[int], source: int, target: int) -> nn.Module:
    """Return the way from one resolution to another: strided convolutions down, one convolution and resizing up."""
    from torch import nn

    inputs, outputs = widths[source], widths[target]
    if source == target:
        return nn.Identity()
    if source > target:
        resize = nn.Upsample(scale_factor=2 ** (source - target), mode="bilinear", align_corners=False)
        return nn.Sequential(normalised(inputs, outputs, kernel=1, relu=False), resize)
    between = [normalised(inputs, inputs, stride=2) for _ in range(target - source - 1)]
    return nn.Sequential(*between, normalised(inputs, outputs, stride=2, relu=False))


@cache
def types() -> dict[str, Any]:
    """Return the classes by name; they are made on first use because importing a benchmark must not import torch."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Round(nn.Module):
        """Some residual blocks at each resolution, then every resolution gets the sum of all."""

        def __init__(self, widths: Sequence[int], count: int) -> None:
            super().__init__()
            block = resnets.types()["BasicBlock"]
            self.branches = nn.ModuleList(
                nn.Sequential(*(block(width, width, width, 1) for _ in range(BLOCKS))) for width in widths[:count]
            )
            self.paths: Any = nn.ModuleList(
                nn.ModuleList(path(widths, source, target) for source in range(count)) for target in range(count)
            )
            self.relu = nn.ReLU()

        def forward(self, maps: list[Tensor]) -> list[Tensor]:
            maps = [branch(x) for branch, x in zip(self.branches, maps, strict=True)]
            return [self.relu(sum(way(x) for way, x in zip(paths, maps, strict=True))) for paths in self.paths]

    class Trunk(nn.Module):
        """Rounds over two, three and four resolutions; each stage begins one resolution below the last."""

        def __init__(self, inputs: int, widths: Sequence[int]) -> None:
            super().__init__()
            self.first = normalised(inputs, widths[0])
            below = [inputs, *widths[1:]]
            self.down = nn.ModuleList(normalised(below[count - 2], widths[count - 1], stride=2) for count in ROUNDS)
            self.stages = nn.ModuleList(
                nn.Sequential(*(Round(widths, count) for _ in range(rounds))) for count, rounds in ROUNDS.items()
            )

        def forward(self, x: Tensor) -> list[Tensor]:
            maps, lowest = [self.first(x)], x
            for down, stage in zip(self.down, self.stages, strict=True):
                maps = stage([*maps, down(lowest)])
                lowest = maps[-1]
            return maps

    class Segmentation(nn.Module):
        """Stem, trunk and head, and logits resized to the images."""

        def __init__(self, stem: nn.Module, trunk: nn.Module, head: nn.Module) -> None:
            super().__init__()
            self.stem, self.trunk, self.head = stem, trunk, head

        def forward(self, images: Tensor) -> Tensor:
            def resized(x: Tensor, like: Tensor) -> Tensor:
                return functional.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=False)

            finest, *coarser = self.trunk(self.stem(images))
            logits = self.head(torch.cat([finest, *(resized(x, finest) for x in coarser)], 1))
            return resized(logits, images)

    return {"Trunk": Trunk, "Segmentation": Segmentation}
