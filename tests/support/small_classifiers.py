"""Small classifiers that commands find as ``small_classifiers:name``."""

from __future__ import annotations

from torch import nn


def with_dropout(classes: int, channels: int) -> nn.Module:
    """Return convolutions with BatchNorm and ReLU, and a dropout."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(32, classes),
    )


def of_maps(classes: int, channels: int) -> nn.Module:
    """Return a network that classifies every position of an image."""
    return nn.Conv2d(channels, classes, 3)


def of_one_size(classes: int, channels: int) -> nn.Module:
    """Return a network for images of 16 pixels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(256 * channels, classes))


def of_two_classes(channels: int) -> nn.Module:
    """Return a network that knows two classes, whatever the images are of."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2))
