"""A feature pyramid for segmentation (Kirillov et al., 2019) on ResNet-18: four resolutions, summed at the finest."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from actnn.workloads import resnets

if TYPE_CHECKING:
    from torch import Tensor, nn

WIDTH = 64


def fpn(classes: int, channels: int) -> nn.Module:
    """Return the network: logits ``[batch, classes, height, width]`` at the resolution of the images."""
    backbone = resnets.resnet(resnets.SHAPES["resnet18"], classes, channels)
    model: nn.Module = types()["Pyramid"](backbone, classes)
    return model


@cache
def types() -> dict[str, Any]:
    """Return the classes by name; they are made on first use because importing a benchmark must not import torch."""
    from torch import nn
    from torch.nn import functional

    def resized(x: Tensor, like: Tensor) -> Tensor:
        return functional.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=False)

    class Pyramid(nn.Module):
        """A backbone, ways from each of its stages to one width, and a head."""

        def __init__(self, backbone: Any, classes: int) -> None:
            super().__init__()
            self.stem = nn.Sequential(backbone.conv1, backbone.bn1, backbone.relu, backbone.maxpool)
            self.stages = nn.ModuleList(getattr(backbone, f"layer{stage}") for stage in (1, 2, 3, 4))
            self.lateral = nn.ModuleList(nn.Conv2d(width, WIDTH, 1) for width in resnets.CHANNELS)
            self.smooth = nn.ModuleList(
                nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU())
                for _ in resnets.CHANNELS
            )
            self.head = nn.Conv2d(WIDTH, classes, 1)

        def forward(self, images: Tensor) -> Tensor:
            x, maps = self.stem(images), []
            for stage, lateral in zip(self.stages, self.lateral, strict=True):
                x = stage(x)
                maps.append(lateral(x))
            for place in reversed(range(len(maps) - 1)):
                maps[place] = maps[place] + resized(maps[place + 1], maps[place])
            smooth = [layer(x) for layer, x in zip(self.smooth, maps, strict=True)]
            total = smooth[0]
            for x in smooth[1:]:
                total = total + resized(x, total)
            return resized(self.head(total), images)

    return {"Pyramid": Pyramid}
