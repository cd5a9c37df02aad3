"""Options that Paddle's layers have and torch's have not, or that mean something else there."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from frameworks import numbers
from layer_cases import Case
from paddle import nn
from paddle_framework import FRAMEWORK
from steps import check_equal, check_step, close, same

import actnn.paddle as actnn

step, compressed = FRAMEWORK.step, FRAMEWORK.compressed

CONVOLUTIONS = {
    "number": lambda: nn.Conv2D(4, 6, 3, padding=2),
    "one a side": lambda: nn.Conv2D(4, 6, 3, padding=[1, 2]),
    "before and behind": lambda: nn.Conv2D(4, 6, 3, padding=[1, 2, 0, 1]),
    "pairs of all axes": lambda: nn.Conv2D(4, 6, 3, padding=[[0, 0], [0, 0], [1, 2], [2, 1]]),
    "SAME": lambda: nn.Conv2D(4, 6, 3, padding="SAME"),
    "same": lambda: nn.Conv2D(4, 6, 4, padding="same"),
    "SAME with strides": lambda: nn.Conv2D(4, 6, 3, stride=2, padding="SAME"),
    "SAME with a dilation": lambda: nn.Conv2D(4, 6, 3, dilation=2, padding="SAME"),
    "SAME and groups": lambda: nn.Conv2D(4, 6, (2, 3), stride=(2, 3), padding="SAME", groups=2),
    "VALID": lambda: nn.Conv2D(4, 6, 3, stride=2, padding="VALID"),
    "asymmetric with strides": lambda: nn.Conv2D(4, 6, 3, stride=2, padding=[0, 1, 2, 0]),
    "transposed, one a side": lambda: nn.Conv2DTranspose(4, 6, 3, stride=2, padding=[1, 0], output_padding=1),
    "transposed, before and behind": lambda: nn.Conv2DTranspose(4, 6, 3, stride=2, padding=[1, 0, 2, 1]),
    "transposed SAME": lambda: nn.Conv2DTranspose(4, 6, 3, stride=2, padding="SAME"),
    "transposed VALID": lambda: nn.Conv2DTranspose(4, 6, 3, stride=2, padding="VALID"),
    "max pool SAME": lambda: nn.MaxPool2D(3, stride=2, padding="SAME"),
    "max pool VALID": lambda: nn.MaxPool2D(3, stride=2, padding="VALID"),
    "max pool, before and behind": lambda: nn.MaxPool2D(3, stride=2, padding=[1, 0, 0, 1]),
    "average pool SAME": lambda: nn.AvgPool2D(3, stride=2, padding="SAME"),
    "average pool, before and behind": lambda: nn.AvgPool2D(3, stride=2, padding=[1, 0, 0, 1]),
    "average pool with what pads": lambda: nn.AvgPool2D(3, padding=1, exclusive=False),
    "average pool with a divisor": lambda: nn.AvgPool2D(3, padding=1, divisor_override=5),
}
OTHER_RANKS = {
    "1D SAME": (lambda: nn.Conv1D(4, 6, 3, stride=2, padding="SAME"), (3, 4, 61)),
    "1D before and behind": (lambda: nn.Conv1D(4, 6, 3, padding=[2, 1]), (3, 4, 61)),
    "1D transposed": (lambda: nn.Conv1DTranspose(4, 6, 3, stride=2, padding="SAME"), (3, 4, 61)),
    "3D SAME": (lambda: nn.Conv3D(4, 3, 2, stride=2, padding="SAME"), (2, 4, 5, 6, 7)),
    "3D before and behind": (lambda: nn.Conv3D(4, 3, 2, padding=[1, 0, 0, 1, 1, 1]), (2, 4, 5, 6, 7)),
    "3D transposed": (lambda: nn.Conv3DTranspose(4, 3, 2, stride=2, padding="VALID"), (2, 4, 3, 4, 5)),
    "1D pool SAME": (lambda: nn.MaxPool1D(3, padding="SAME"), (3, 4, 61)),
    "3D pool SAME": (lambda: nn.MaxPool3D(2, padding="SAME"), (2, 4, 5, 6, 7)),
}
CHANNELS_LAST = {
    "Conv1D": (lambda: nn.Conv1D(4, 6, 3, padding=1, data_format="NLC"), (3, 61, 4)),
    "Conv2D": (lambda: nn.Conv2D(4, 6, 3, padding=1, data_format="NHWC"), (3, 11, 13, 4)),
    "Conv2D SAME": (lambda: nn.Conv2D(4, 6, 3, stride=2, padding="SAME", data_format="NHWC"), (3, 11, 13, 4)),
    "Conv2D pairs": (
        lambda: nn.Conv2D(4, 6, 3, padding=[[0, 0], [1, 2], [0, 1], [0, 0]], data_format="NHWC"),
        (3, 11, 13, 4),
    ),
    "Conv2D grouped": (lambda: nn.Conv2D(4, 6, 3, groups=2, data_format="NHWC"), (3, 11, 13, 4)),
    "Conv3D": (lambda: nn.Conv3D(4, 3, 2, data_format="NDHWC"), (2, 5, 6, 7, 4)),
    "Conv2DTranspose": (lambda: nn.Conv2DTranspose(4, 6, 3, stride=2, data_format="NHWC"), (3, 7, 9, 4)),
    "Conv1DTranspose": (lambda: nn.Conv1DTranspose(4, 6, 3, stride=2, data_format="NLC"), (3, 31, 4)),
    "Conv3DTranspose": (lambda: nn.Conv3DTranspose(4, 6, 3, stride=2, data_format="NDHWC"), (2, 4, 5, 3, 4)),
    "Conv3DTranspose grouped": (
        lambda: nn.Conv3DTranspose(4, 6, 3, padding=1, groups=2, data_format="NDHWC"),
        (2, 4, 5, 3, 4),
    ),
    "BatchNorm1D": (lambda: nn.BatchNorm1D(4, data_format="NLC"), (16, 31, 4)),
    "BatchNorm2D": (lambda: nn.BatchNorm2D(4, data_format="NHWC"), (8, 11, 13, 4)),
    "BatchNorm3D": (lambda: nn.BatchNorm3D(4, data_format="NDHWC"), (4, 5, 6, 7, 4)),
    "MaxPool2D": (lambda: nn.MaxPool2D(3, stride=2, padding=1, data_format="NHWC"), (3, 11, 13, 4)),
    "AvgPool2D": (lambda: nn.AvgPool2D(3, stride=2, padding=1, data_format="NHWC"), (3, 11, 13, 4)),
    "MaxPool3D": (lambda: nn.MaxPool3D(2, data_format="NDHWC"), (2, 6, 6, 8, 4)),
}


def check(layer: nn.Layer, x: np.ndarray, steps: int = 2) -> None:
    """Raise unless a layer at eight bits has the forward of the plain one, and gradients within one percent."""
    kind = type(layer).__name__
    case = Case(kind, x.shape, lossless="Pool" in kind)
    ours = compressed(layer)
    for _ in range(steps):
        check_step(step(ours, x), step(layer, x), case, 0.015 if "Norm" in kind else 0.01)


@pytest.mark.parametrize("build", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_every_form_of_padding_works_as_in_the_plain_layer(build):
    check(build(), numbers((3, 4, 11, 13)))


@pytest.mark.parametrize(("build", "shape"), OTHER_RANKS.values(), ids=OTHER_RANKS)
def test_padding_of_other_ranks_works_as_in_the_plain_layer(build, shape):
    check(build(), numbers(shape))


@pytest.mark.parametrize(("build", "shape"), CHANNELS_LAST.values(), ids=CHANNELS_LAST)
def test_channels_may_come_last(build, shape):
    check(build(), numbers(shape))


@pytest.mark.parametrize("threshold", [1, 3000])
@pytest.mark.parametrize(("build", "shape"), CHANNELS_LAST.values(), ids=CHANNELS_LAST)
def test_a_backward_in_pieces_works_with_channels_last(build, shape, threshold):
    layer, x = build(), numbers(shape)
    pieces, whole = (compressed(layer, 2, pipeline_threshold=value) for value in (threshold, None))
    found, expected = step(pieces, x).gradients, step(whole, x).gradients
    for name, gradient in expected.items():
        close(found[name], gradient, 1e-5, name)


def test_layers_with_channels_last_share_codes():
    form = {"data_format": "NHWC"}
    layers = nn.Conv2D(3, 8, 3, **form), nn.BatchNorm2D(8, **form), nn.ReLU(), nn.Conv2D(8, 4, 1, **form)
    ours, x = compressed(nn.Sequential(*layers), 2), numbers((4, 12, 12, 3))
    step(ours, x)
    rows = {row.layer: row for row in ours.report().rows}
    assert rows["1"].readers == ("2", "3")
    assert set(rows) == {"0", "1"}


def test_a_convolution_that_reads_channels_first_after_a_norm_of_channels_last_is_right():
    norm, relu, tail = nn.BatchNorm2D(12, data_format="NHWC"), nn.ReLU(), nn.Conv2D(8, 4, 1)
    network, x = nn.Sequential(norm, relu, tail), numbers((4, 8, 12, 12))
    found, expected = step(compressed(network), x), step(network, x)
    close(found.gradients["2.weight"], expected.gradients["2.weight"], 0.02)


# parameters


def test_attributes_of_parameters_stay():
    halved = paddle.ParamAttr(name="mine", initializer=nn.initializer.Constant(0.5), learning_rate=0.5)
    layer = nn.Linear(30, 4, weight_attr=halved, bias_attr=False)
    ours = compressed(nn.Sequential(layer))
    assert ours[0].weight.optimize_attr["learning_rate"] == 0.5
    assert ours[0].bias is None
    same(FRAMEWORK.array(ours[0].weight), np.full((30, 4), 0.5, np.float32))


def test_a_layer_made_by_hand_takes_attributes_of_parameters():
    actnn.set_optimization_level("L2")
    constant = paddle.ParamAttr(initializer=nn.initializer.Constant(0.5))
    layer = actnn.QConv2D(3, 4, 3, weight_attr=constant, bias_attr=False)
    same(FRAMEWORK.array(layer.weight), np.full((4, 3, 3, 3), 0.5, np.float32))
    assert layer.bias is None


def test_a_weight_that_is_not_trainable_stays_so_and_keeps_nothing():
    frozen = paddle.ParamAttr(trainable=False)
    ours = compressed(nn.Sequential(nn.Conv2D(3, 4, 3, weight_attr=frozen)))
    x = FRAMEWORK.tensor(numbers((2, 3, 9, 9)), gradient=True)
    assert FRAMEWORK.saved_bytes(ours, lambda: ours(x)) == 0
    ours(x).sum().backward()
    assert ours[0].weight.grad is None
    assert ours[0].bias.grad is not None


def test_the_weight_of_a_linear_layer_is_in_by_out():
    actnn.set_optimization_level("L2")
    assert list(actnn.QLinear(30, 4).weight.shape) == [30, 4]
    layer, x = nn.Linear(300, 4), numbers((8, 300))
    found, expected = step(compressed(layer), x), step(layer, x)
    assert found.gradients["weight"].shape == (300, 4)
    close(found.gradients["weight"], expected.gradients["weight"], 0.01)


# BatchNorm


@pytest.mark.parametrize("momentum", [0.9, 0.5, 0.0])
def test_momentum_weighs_the_old_statistics(momentum):
    actnn.set_optimization_level("L2")
    x = 3 + 2 * numbers((16, 4, 7, 7))
    for ours in (compressed(nn.BatchNorm2D(4, momentum=momentum)), actnn.QBatchNorm2D(4, momentum=momentum)):
        step(ours, x)
        expected = (1 - momentum) * x.mean((0, 2, 3))
        np.testing.assert_allclose(FRAMEWORK.array(ours._mean), expected, rtol=1e-4, atol=1e-6)


OLD_NORMS = {
    "plain": {},
    "activated": {"act": "relu"},
    "global statistics": {"use_global_stats": True},
    "channels last": {"data_layout": "NHWC"},
}


@pytest.mark.parametrize("options", OLD_NORMS.values(), ids=OLD_NORMS)
def test_the_older_batch_norm_works_as_the_plain_one(options):
    layer = nn.BatchNorm(6, **options)
    x = numbers((8, 13, 11, 6) if "data_layout" in options else (8, 6, 13, 11))
    ours = compressed(layer)
    for _ in range(2):
        found, expected = step(ours, x), step(layer, x)
    close(found.output, expected.output, 1e-5)
    for name, gradient in expected.gradients.items():
        close(found.gradients[name], gradient, 0.015, name)
    for name, buffer in expected.buffers.items():
        close(found.buffers[name], buffer, 1e-5, name)


@pytest.mark.parametrize("shape", [(32, 6), (32, 6, 7), (8, 6, 5, 5), (4, 6, 3, 4, 5)], ids=len)
def test_the_older_batch_norm_takes_every_rank(shape):
    layer, x = nn.BatchNorm(6), numbers(shape)
    close(step(compressed(layer), x).output, step(layer, x).output, 1e-5)


@pytest.mark.parametrize("use_global_stats", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_statistics_are_chosen_as_by_the_plain_layer(use_global_stats, training):
    layer, x = nn.BatchNorm2D(4, use_global_stats=use_global_stats), 1 + numbers((8, 4, 7, 7))
    FRAMEWORK.training(layer, training)
    ours = compressed(layer)
    found, expected = step(ours, x), step(layer, x)
    close(found.output, expected.output, 1e-5)
    for name, buffer in expected.buffers.items():
        close(found.buffers[name], buffer, 1e-5, name)


def test_a_sync_batch_norm_alone_works_as_a_plain_batch_norm():
    paddle.seed(1)
    plain, x = nn.BatchNorm2D(6), numbers((8, 6, 7, 7))
    ours = compressed(nn.Sequential(nn.SyncBatchNorm(6)))
    FRAMEWORK.load(ours[0], plain.state_dict())
    found, expected = step(ours, x), step(plain, x)
    close(found.output, expected.output, 1e-5)
    close(found.gradients["input"], expected.gradients["input"], 0.015)
    close(found.buffers["0._variance"], expected.buffers["_variance"], 1e-5)


# Dropout


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mode", ["upscale_in_train", "downscale_in_infer"])
@pytest.mark.parametrize("axis", [None, 0, 1, [0, 1]], ids=str)
def test_every_mode_of_dropout_works_as_in_the_plain_layer(mode, axis, training):
    layer, x = FRAMEWORK.training(nn.Dropout(0.5, axis=axis, mode=mode), training), numbers((8, 6, 7, 5))
    check_equal(step(compressed(layer), x), step(layer, x))


@pytest.mark.parametrize("p", [0, 1, 0.25])
def test_dropout_of_every_probability_works_as_in_the_plain_layer(p):
    layer, x = nn.Dropout(p), numbers((8, 6, 7, 5))
    check_equal(step(compressed(layer), x), step(layer, x))


def test_a_dropout_keeps_a_bit_an_element():
    layer, x = compressed(nn.Dropout(0.5)), FRAMEWORK.tensor(numbers((8, 512)), gradient=True)
    assert FRAMEWORK.saved_bytes(layer, lambda: layer(x)) <= 8 * 512 / 8 + 64


def test_a_pool_that_returns_positions_is_left_as_it_is():
    layer, x = nn.MaxPool2D(2, return_mask=True), FRAMEWORK.tensor(numbers((2, 3, 8, 8)))
    (ours, positions), (expected, indices) = compressed(layer)(x), layer(x)
    same(FRAMEWORK.array(ours), FRAMEWORK.array(expected))
    same(FRAMEWORK.array(positions), FRAMEWORK.array(indices))
