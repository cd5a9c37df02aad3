"""Large convolutions work on parts of the batch where that bounds memory: same forward, same gradients."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from frameworks import numbers
from paddle import nn
from paddle_framework import FRAMEWORK
from steps import close

from actnn.paddle.functions import maps
from actnn.session import session

compressed = FRAMEWORK.compressed

LAYERS = {
    "one sample": (lambda: nn.Conv2D(4, 6, 3), (1, 4, 20, 20)),
    "channels last": (lambda: nn.Conv2D(4, 6, 3, data_format="NHWC"), (5, 20, 20, 4)),
    "channels last, transposed": (lambda: nn.Conv2DTranspose(4, 6, 3, 2, data_format="NHWC"), (5, 12, 12, 4)),
    "output padding": (lambda: nn.Conv2DTranspose(4, 6, 3, 2, 1, output_padding=1), (5, 4, 12, 12)),
    "groups": (lambda: nn.Conv2D(4, 8, 3, groups=2), (5, 4, 20, 20)),
    "depthwise": (lambda: nn.Conv2D(4, 8, 3, groups=4), (5, 4, 20, 20)),
    "depthwise, one dimension": (lambda: nn.Conv1D(4, 8, 3, groups=4), (5, 4, 400)),
    "groups, transposed": (lambda: nn.Conv2DTranspose(4, 8, 3, 2, groups=2, output_padding=1), (5, 4, 12, 12)),
    "a stride that leaves a rest": (lambda: nn.Conv2D(4, 6, 3, 3), (5, 4, 21, 22)),
    "SAME with strides": (lambda: nn.Conv2D(4, 6, 3, 2, padding="SAME"), (5, 4, 21, 22)),
    "SAME with a dilation": (lambda: nn.Conv2D(4, 6, 3, dilation=2, padding="SAME"), (5, 4, 20, 20)),
    "SAME, transposed": (lambda: nn.Conv2DTranspose(4, 6, 3, 2, padding="SAME"), (5, 4, 12, 13)),
    "before and behind": (lambda: nn.Conv2D(4, 6, 3, 2, padding=[0, 1, 2, 0]), (5, 4, 20, 20)),
    "one dimension": (lambda: nn.Conv1D(4, 6, 5, padding="same"), (5, 4, 400)),
    "one dimension, transposed": (lambda: nn.Conv1DTranspose(4, 6, 5, 3, padding=[1, 2]), (5, 4, 200)),
    "three dimensions": (lambda: nn.Conv3D(2, 4, 3, padding=1, padding_mode="circular"), (5, 2, 8, 8, 8)),
    "three dimensions, transposed": (lambda: nn.Conv3DTranspose(2, 4, 3, 2, padding=1), (5, 2, 6, 6, 6)),
}
GRADIENTS = {"all": (True, True, True), "bias": (False, False, True), "weight": (False, True, False)}
GRADIENTS |= {"input": (True, False, False), "input and bias": (True, False, True)}


@pytest.fixture
def small_pieces(monkeypatch):
    """Let hardly more than a sample be worked on at once, whatever the weight."""
    monkeypatch.setattr(session, "WORKING_BYTES", 4096)


def step(model: nn.Layer, x: np.ndarray, of_x: bool) -> tuple[paddle.Tensor, list[np.ndarray | None]]:
    """Return the output of a step, and the gradients of input, weight and bias."""
    given = FRAMEWORK.tensor(x, gradient=of_x)
    y = model(given)
    y.backward(FRAMEWORK.tensor(numbers(y.shape, 2)))
    grads = (tensor.grad for tensor in (given, model.weight, model.bias))
    return y, [None if grad is None else FRAMEWORK.array(grad).copy() for grad in grads]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("wanted", GRADIENTS)
@pytest.mark.parametrize("name", LAYERS)
def test_whatever_gradient_is_wanted_pieces_give_that_of_the_whole(name, wanted, monkeypatch):
    (build, shape), (of_x, of_weight, of_bias) = LAYERS[name], GRADIENTS[wanted]
    layer, x = build(), numbers(shape)
    layer.weight.stop_gradient, layer.bias.stop_gradient = not of_weight, not of_bias
    y, found = step(compressed(layer, 2), x, of_x)
    monkeypatch.undo()
    whole, expected = step(compressed(layer, 2), x, of_x)
    close(FRAMEWORK.array(y), FRAMEWORK.array(whole), 1e-6)
    exact = step(layer, x, of_x)[1]
    for ours, theirs, needed in zip(found, expected, GRADIENTS[wanted], strict=True):
        assert (ours is not None) == (theirs is not None) == needed
        if needed:
            close(ours, theirs, 1e-5)
    if of_x:
        # which needs no activation
        close(found[0], exact[0], 1e-5)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(("form", "shape", "parts"), [("NCHW", (5, 4, 20, 20), 1), ("NHWC", (5, 20, 20, 4), 5)])
def test_a_forward_is_cut_only_where_paddle_rearranges_the_batch(form, shape, parts, monkeypatch):
    seen = []
    convolve = maps.Convolution.__call__
    monkeypatch.setattr(
        maps.Convolution, "__call__", lambda own, x, *rest: seen.append(len(x)) or convolve(own, x, *rest)
    )
    compressed(nn.Conv2D(4, 6, 3, data_format=form), 2)(FRAMEWORK.tensor(numbers(shape)))
    assert len(seen) == parts


@pytest.mark.usefixtures("small_pieces")
def test_no_more_than_a_part_is_decoded_at_once(monkeypatch):
    seen = []
    gradients = maps.Convolution.gradients
    monkeypatch.setattr(
        maps.Convolution,
        "gradients",
        lambda own, grad, x, weight: seen.append(len(x)) or gradients(own, grad, x, weight),
    )
    compressed(nn.Conv2D(4, 6, 3), 2)(FRAMEWORK.tensor(numbers((5, 4, 20, 20)), gradient=True)).sum().backward()
    assert seen == [1] * 5


def test_a_plan_is_made_once_for_each_form(monkeypatch):
    made = []
    plan = maps.Convolution.__init__
    monkeypatch.setattr(maps.Convolution, "__init__", lambda own, *rest: made.append(own) or plan(own, *rest))
    model = compressed(nn.Conv2D(4, 6, 3), 2)
    for shape in ((5, 4, 20, 20), (5, 4, 20, 20), (5, 4, 9, 9), (5, 4, 20, 20)):
        model(FRAMEWORK.tensor(numbers(shape)))
    assert len(made) == 2


def test_settings_of_a_layer_that_change_are_not_missed():
    layer = nn.Conv2D(4, 6, 3)
    model, x = compressed(layer, 2), FRAMEWORK.tensor(numbers((5, 4, 20, 20)))
    assert model(x).shape[2:] == [18, 18]
    model._model._stride = [2, 2]
    assert model(x).shape[2:] == [9, 9]
