"""What torch's layers do besides what all front ends share: work in place, return indices, pool infinities."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_layers import check_equal, compressed, same, step

in_place = pytest.mark.parametrize(
    "layer", [nn.ReLU(True), nn.ReLU6(True), nn.LeakyReLU(0.1, True), nn.Dropout(0.3, True)], ids=str
)


@in_place
def test_a_layer_that_works_in_place_returns_its_input(layer):
    x = torch.randn(4, 300).requires_grad_() * 1
    assert compressed(layer)(x) is x


@in_place
def test_a_layer_that_works_in_place_has_the_plain_gradient(layer):
    x = torch.randn(4, 300)
    check_equal(step(compressed(layer), x), step(layer, x))


def test_a_pool_that_returns_indices_is_left_as_it_is():
    layer, x = nn.MaxPool2d(2, return_indices=True), torch.randn(2, 3, 8, 8)
    (ours, positions), (expected, indices) = compressed(layer)(x), layer(x)
    same(ours, expected)
    same(positions, indices)


# Paddle's pools skip what is not finite


def test_max_pooling_of_minus_infinity_sends_the_gradient_where_the_plain_layer_does():
    layer, x = nn.MaxPool2d(3, stride=2, padding=1), torch.full((2, 3, 9, 9), -float("inf"))
    check_equal(step(compressed(layer), x), step(layer, x))


def test_max_pooling_of_nan_sends_the_gradient_where_the_plain_layer_does():
    layer, x = nn.MaxPool2d(3, stride=2, padding=1), torch.randn(2, 3, 9, 9)
    x[0, 0, 4, 4] = float("nan")
    check_equal(step(compressed(layer), x), step(layer, x))
