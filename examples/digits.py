"""What the examples share: scikit-learn's handwritten digits, and a small network for them."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset


def arguments(description: str) -> argparse.Namespace:
    """Read the one argument of every example."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--smoke", action="store_true", help="few images and one epoch: only to see that it runs")
    return parser.parse_args()


def digits(smoke: bool) -> tuple[TensorDataset, TensorDataset]:
    """Return 1797 digits of 32 × 32 pixels, to learn from and to test; few of them where that is enough."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    images = F.interpolate(images, size=(32, 32), mode="bilinear")
    data = TensorDataset(images, torch.tensor(labels))
    held_back, count = (64, 256) if smoke else (360, len(images))
    return TensorDataset(*data[held_back:count]), TensorDataset(*data[:held_back])


def network() -> nn.Module:
    """Return an ordinary network: nothing in it knows of actnn."""

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    layers = [*block(1, 16, 1), *block(16, 16, 1), *block(16, 32, 2), *block(32, 32, 1), *block(32, 64, 2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Return the share of digits that a model gets right."""
    images, labels = test.tensors
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean()
    model.train()
    return float(right)
