"""What torch's layers do besides what all front ends share: work in place, return indices, pool infinities."""

from __future__ import annotations

import pytest
import torch
from steps import check_equal
from torch import nn
from torch_framework import FRAMEWORK, same_tensors

in_place = pytest.mark.parametrize(
    "layer", [nn.ReLU(True), nn.ReLU6(True), nn.LeakyReLU(0.1, True), nn.Dropout(0.3, True)], ids=str
)


@in_place
def test_a_layer_that_works_in_place_returns_its_input(layer):
    x = torch.randn(4, 300).requires_grad_() * 1
    assert FRAMEWORK.compressed(layer)(x) is x


@in_place
def test_a_layer_that_works_in_place_has_the_plain_gradient(layer):
    x = torch.randn(4, 300)
    check_equal(FRAMEWORK.step(FRAMEWORK.compressed(layer), x), FRAMEWORK.step(layer, x))


def test_a_pool_that_returns_indices_is_left_as_it_is():
    layer, x = nn.MaxPool2d(2, return_indices=True), torch.randn(2, 3, 8, 8)
    (ours, positions), (expected, indices) = FRAMEWORK.compressed(layer)(x), layer(x)
    same_tensors(ours, expected)
    same_tensors(positions, indices)


# Paddle's pools skip what is not finite


def test_max_pooling_of_minus_infinity_sends_the_gradient_where_the_plain_layer_does():
    layer, x = nn.MaxPool2d(3, stride=2, padding=1), torch.full((2, 3, 9, 9), -float("inf"))
    check_equal(FRAMEWORK.step(FRAMEWORK.compressed(layer), x), FRAMEWORK.step(layer, x))


def test_max_pooling_of_nan_sends_the_gradient_where_the_plain_layer_does():
    layer, x = nn.MaxPool2d(3, stride=2, padding=1), torch.randn(2, 3, 9, 9)
    x[0, 0, 4, 4] = float("nan")
    check_equal(FRAMEWORK.step(FRAMEWORK.compressed(layer), x), FRAMEWORK.step(layer, x))


def test_one_value_a_channel_is_refused_as_by_the_plain_batch_norm():
    layer, x = nn.BatchNorm2d(3), torch.randn(1, 3, 1, 1)
    with pytest.raises(ValueError, match="Expected more than 1 value"):
        layer(x)
    with pytest.raises(ValueError, match=r"one value a channel|more than 1 value"):
        FRAMEWORK.compressed(layer)(x)
