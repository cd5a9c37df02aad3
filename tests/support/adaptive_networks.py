"""Networks whose widths are decided while training, batches for them, and what a step of theirs tells."""

from __future__ import annotations

from collections.abc import Callable

import torch
from planned_networks import Widths
from torch import Tensor, nn
from torch.nn import functional as F
from torch_layers import ResidualBlock

import actnn

CLASSES = 4


def unit(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution with its BatchNorm and ReLU."""
    layers = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    return list(layers)


def classifier(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, CLASSES)]


def plain_network() -> nn.Module:
    """Return convolutions, each with BatchNorm and ReLU."""
    torch.manual_seed(0)
    return nn.Sequential(*unit(3, 8), *unit(8, 8), *unit(8, 16, 2), *unit(16, 16), *classifier(16))


def residual_network() -> nn.Module:
    """Return residual blocks."""
    torch.manual_seed(0)
    return nn.Sequential(*unit(3, 8), ResidualBlock(8, 12), ResidualBlock(12, 12), *classifier(12))


def linear_network() -> nn.Module:
    """Return linear layers with ReLU."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 256), nn.ReLU(), *hidden, nn.Linear(256, CLASSES))


def network_without_relu() -> nn.Module:
    """Return convolutions and BatchNorms that no ReLU reads."""
    torch.manual_seed(0)
    layers = [layer for inputs in (3, 8, 8) for layer in (nn.Conv2d(inputs, 8, 3), nn.BatchNorm2d(8), nn.Tanh())]
    return nn.Sequential(*layers, *classifier(8))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "conv, norm, relu": plain_network,
    "residual": residual_network,
    "linear": linear_network,
    "norm without relu": network_without_relu,
}


def pictures(batch: int = 8, seed: int = 0) -> Tensor:
    """Return inputs whose samples differ in range."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, 16, 16, generator=generator) * torch.logspace(-1, 0.7, batch).view(-1, 1, 1, 1)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x).float(), torch.arange(len(x)) % CLASSES)


def train(model: nn.Module, x: Tensor) -> actnn.session.report.Report:
    """Compute the gradient of one batch and return the report of it."""
    model.zero_grad()
    loss_of(model, x).backward()
    return model.report()


def averages(model: nn.Module, batches: list[int]) -> list[float]:
    """Return the average width of each of several steps."""
    return [train(model, pictures(batch, number)).average_bits for number, batch in enumerate(batches)]


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def check_finite(model: nn.Module) -> None:
    """Raise unless every gradient is there and finite."""
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert torch.isfinite(parameter.grad).all(), f"the gradient of {name} is not finite"


def check_equal_gradients(found: list[Tensor], expected: list[Tensor]) -> None:
    """Raise unless gradients are the same bit for bit."""
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def widths_of(model: actnn.QModule, x: Tensor) -> dict[str, list[int]]:
    """Take a step; return the widths of the samples of each layer's code."""
    with Widths(model) as widths:
        train(model, x)
    return {name: codes[0] for name, codes in widths.of.items()}
