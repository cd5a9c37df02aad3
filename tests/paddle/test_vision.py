"""The networks of paddle.vision, converted in one line, on images small enough to train on one core."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import paddle
import pytest
from frameworks import numbers, vector
from paddle import nn
from paddle.vision import models
from paddle_framework import FRAMEWORK
from steps import check_equal, distance

import actnn.paddle as actnn

CLASSES = 10


def resnet18() -> nn.Layer:
    paddle.seed(1)
    return models.resnet18(num_classes=CLASSES)


def pictures(batch: int = 8, size: int = 32) -> np.ndarray:
    return numbers((batch, 3, size, size))


def train(model: nn.Layer, steps: int, x: np.ndarray, rate: float = 0.02) -> list[float]:
    """Train on one batch; return the losses."""
    paddle.seed(2)
    advance = FRAMEWORK.optimizer(model, rate, momentum=0.9)
    batch, losses = FRAMEWORK.tensor(x), []
    for _ in range(steps):
        FRAMEWORK.clear(model)
        loss = FRAMEWORK.cross_entropy(model(batch), np.arange(len(x)) % CLASSES)
        loss.backward()
        advance()
        losses.append(loss.item())
    return losses


def resnet50() -> nn.Layer:
    paddle.seed(1)
    return models.resnet50(num_classes=CLASSES)


each = pytest.mark.parametrize("build", [resnet18, resnet50])


@each
def test_the_forward_in_training_is_that_of_plain_paddle(build):
    plain, x = build(), FRAMEWORK.tensor(pictures())
    ours = actnn.QModule(deepcopy(plain), level="L3")
    for _ in range(2):
        found, expected = (FRAMEWORK.array(model(x)) for model in (ours, plain))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@each
def test_evaluation_is_plain_paddle_bit_for_bit(build):
    plain, x = build(), FRAMEWORK.tensor(pictures())
    ours = actnn.QModule(deepcopy(plain), level="L3")
    found, expected = (FRAMEWORK.array(FRAMEWORK.evaluating(model)(x)) for model in (ours, plain))
    np.testing.assert_array_equal(found, expected)


@each
def test_level_zero_is_plain_paddle_bit_for_bit(build):
    plain, x = build(), pictures(4)
    ours = actnn.QModule(deepcopy(plain), level="L0")
    check_equal(FRAMEWORK.step(ours, x), FRAMEWORK.step(plain, x))


@pytest.mark.parametrize(("build", "times"), [(resnet18, 12), (resnet50, 14)])
def test_a_small_part_of_the_bytes_is_kept(build, times):
    # small images waste some: the last maps have less than a group of values
    plain, x = build(), pictures(4, 64)
    ours = actnn.QModule(deepcopy(plain), level="L3")
    for _ in range(2):
        FRAMEWORK.step(ours, x)
    batch = FRAMEWORK.tensor(x)
    kept, exact = (FRAMEWORK.saved_bytes(model, lambda model=model: model(batch)) for model in (ours, plain))
    assert exact >= times * kept
    assert ours.report().ratio >= times


def test_every_layer_of_resnet18_is_converted():
    ours = actnn.QModule(resnet18(), level="L3")
    assert ours.report().left_exact == []
    kinds = {type(layer).__name__ for _, layer in FRAMEWORK.layers(ours)}
    assert {"QConv2D", "QBatchNorm2D", "QReLU", "QMaxPool2D", "QLinear"} <= kinds


def test_the_loss_of_resnet18_falls_as_that_of_plain_paddle():
    plain, x = resnet18(), pictures()
    ours = actnn.QModule(deepcopy(plain), level="L3")
    found, expected = train(ours, 8, x), train(plain, 8, x)
    assert found[0] == pytest.approx(expected[0], rel=1e-3)
    assert found[-1] < 0.5 * found[0]
    assert expected[-1] < 0.5 * expected[0]


def small_vgg16() -> nn.Layer:
    """Return vgg16 with BatchNorm, and a classifier that is not nearly all of it."""
    model = models.vgg16(batch_norm=True, num_classes=0)
    model.avgpool = nn.AdaptiveAvgPool2D(1)
    return nn.Sequential(model, nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, CLASSES))


OTHERS: dict[str, Callable[[], nn.Layer]] = {
    "mobilenet_v2": lambda: models.mobilenet_v2(num_classes=CLASSES),
    "vgg16 with BatchNorm": small_vgg16,
    "densenet121": lambda: models.densenet121(num_classes=CLASSES),
}


@pytest.mark.slow
@pytest.mark.parametrize("build", OTHERS.values(), ids=OTHERS)
def test_other_networks_train_as_in_plain_paddle(build):
    paddle.seed(3)
    plain, x = build(), pictures()
    ours = actnn.QModule(deepcopy(plain), level="L3")
    found, expected = train(ours, 7, x, 0.01), train(plain, 7, x, 0.01)
    assert found[0] == pytest.approx(expected[0], rel=2e-3)
    # images of 32 pixels leave one position and eight samples to the last BatchNorms: a noisy gradient in any case
    assert min(found) < 0.8 * found[0]
    assert np.mean(found[-3:]) < max(2 * np.mean(expected[-3:]), 0.85 * found[0])
    # what depthwise convolutions read brings bits of its own
    assert ours.report().ratio > 9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v2", "densenet121"])
def test_other_networks_at_eight_bits_have_nearly_the_plain_gradient(name):
    paddle.seed(3)
    plain, x = FRAMEWORK.training(OTHERS[name]()), pictures(size=48)
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [8]
    ours = actnn.QModule(deepcopy(plain))
    for _ in range(2):
        found, expected = FRAMEWORK.step(ours, x).gradients, FRAMEWORK.step(plain, x).gradients
    assert found.keys() == expected.keys()
    assert distance(vector(found), vector(expected)) < 0.1 * np.linalg.norm(vector(expected))
