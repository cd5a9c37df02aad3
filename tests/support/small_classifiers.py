"""Small classifiers that commands find as ``small_classifiers:name``."""

from __future__ import annotations

import os
import signal

from torch import Tensor, nn


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


def with_batch_norm(classes: int, channels: int) -> nn.Module:
    """Return a network without random numbers of its own, whose BatchNorms processes may join."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


class Killed(nn.Module):
    """Ends one of two processes by a signal after so many forwards of its first start."""

    def __init__(self, forwards: int) -> None:
        super().__init__()
        self.left = forwards

    def forward(self, x: Tensor) -> Tensor:
        self.left -= self.training
        if self.left < 0 and os.environ.get("RANK") == "1" and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return x


def that_is_killed(classes: int, channels: int) -> nn.Module:
    """Return the same network, of which a process ends in its seventh step."""
    model = with_batch_norm(classes, channels)
    return nn.Sequential(*model, Killed(6))
