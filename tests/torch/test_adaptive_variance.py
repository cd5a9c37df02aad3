"""Widths decided while training make the gradient of a trained network less noisy: measured, and as predicted."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_framework import FRAMEWORK
from z_tests import check_unbiased

import actnn
from actnn.workloads.datasets import digits

pytest.importorskip("sklearn")

REPEATS = 150
BATCH = 16
BATCHES = [range(start, start + BATCH) for start in range(0, 4 * BATCH, BATCH)]


def unit(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


@cache
def trained() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a small network that has learned some handwritten digits, and the digits."""
    images, labels = digits(400, 0).train
    images = F.interpolate(images, size=(16, 16), mode="bilinear")
    torch.manual_seed(0)
    layers = *unit(1, 8), *unit(8, 16, 2), *unit(16, 16), *unit(16, 32, 2)
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for _ in range(60):
        chosen = torch.randint(len(images), (32,))
        optimizer.zero_grad()
        F.cross_entropy(network(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return network, images, labels


def gradient(model: nn.Module, samples: range) -> torch.Tensor:
    """Return the gradient of some digits as one vector."""
    _, images, labels = trained()
    chosen = slice(samples.start, samples.stop)
    if isinstance(model, actnn.QModule):
        model.set_samples(samples)
    model.zero_grad()
    F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def experienced(level: str, **settings: object) -> actnn.QModule:
    """Return the trained network at two bits after some epochs over its samples."""
    model = FRAMEWORK.compressed(trained()[0], 2, level=level, **settings)
    for _ in range(3):
        for samples in BATCHES:
            gradient(model, samples)
    return model


def variance(model: actnn.QModule, draws: int = 8) -> float:
    """Return the variance of the gradient, summed over parameters and batches."""
    total = 0.0
    for samples in BATCHES:
        total += float(torch.stack([gradient(model, samples) for _ in range(draws)]).var(0).sum())
    return total


@pytest.mark.parametrize("level", ["L2.5", "L3"])
def test_the_gradient_of_a_trained_network_is_less_noisy_than_at_equal_widths(level: str):
    uniform, planned = experienced("L2"), experienced(level)
    assert variance(planned) <= 0.8 * variance(uniform)
    assert planned.report().average_bits == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("level", ["L2", "L3"])
@pytest.mark.parametrize("rounding", ["dither", "stochastic"])
def test_the_measured_variance_is_within_a_factor_of_two_of_what_is_predicted(level: str, rounding: str):
    model = experienced(level, rounding=rounding)
    measured = variance(model)
    model._session.predictions = {}
    for samples in BATCHES:
        gradient(model, samples)
    total = sum(model._session.predictions.values())
    assert 0.5 < total / measured < 2


def test_a_trained_network_keeps_an_unbiased_gradient():
    network, _, _ = trained()
    exact = gradient(copy.deepcopy(network), BATCHES[0])
    model = experienced("L3")
    found = torch.stack([gradient(model, BATCHES[0]) for _ in range(REPEATS)])
    # a BatchNorm of more than 1024 values a channel has a bias of the order of one over their number
    check_unbiased(found, exact, allowance=0.02 * float(exact.abs().max()))
