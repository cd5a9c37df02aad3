"""Convolutions of large samples work on some rows at a time: the same results, in less memory."""

from __future__ import annotations

import pytest
import torch
from overwriting import both, images
from torch import nn
from torch.nn import functional as F

import actnn
from actnn.torch.functions import stripes
from actnn.torch.functions.maps import Convolution

CHANNELS = 6


@pytest.fixture(autouse=True)
def every_sample_is_large(monkeypatch):
    """Let stripes have a few rows."""
    monkeypatch.setattr(stripes, "LEAST_BYTES", 0)
    monkeypatch.setattr(stripes, "STRIPE_BYTES", 2048)


FORMS = [
    *({"kernel_size": 1}, {"kernel_size": 3, "padding": 1}, {"kernel_size": 3}, {"kernel_size": 2, "stride": 2}),
    *({"kernel_size": 1, "stride": 2}, {"kernel_size": 5, "padding": 4, "dilation": 2, "groups": 2}),
    *({"kernel_size": (3, 1), "padding": (1, 0)}, {"kernel_size": 7, "stride": 2, "padding": 3, "bias": False}),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("samples", [1, 3])
def test_results_in_stripes_are_those_of_the_whole(form, samples):
    torch.manual_seed(0)
    layer = actnn.QConv2d(4, 8, **form).double()
    weight, bias = layer.weight, layer.bias
    x = torch.randn(samples, 4, 33, 21, dtype=torch.float64, requires_grad=True)
    fixed = (layer.stride, layer.padding, layer.dilation, False, layer.output_padding, layer.groups)
    ours = Convolution(layer.site, x, weight, fixed).stripes
    y = F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
    grad = torch.randn_like(y)
    y.backward(grad)
    with torch.no_grad():
        torch.testing.assert_close(ours.output(x, weight, bias, None), y)
        torch.testing.assert_close(ours.input_gradient(grad, weight, None), x.grad)
        of_weight, of_bias = ours.parameter_gradients(grad, x, weight, (False, True, bias is not None))
    torch.testing.assert_close(of_weight, weight.grad)
    if bias is not None:
        torch.testing.assert_close(of_bias, bias.grad)


def test_stripes_that_read_no_row_of_others_may_take_its_place():
    layer = actnn.QConv2d(CHANNELS, CHANNELS, 1)
    x = torch.randn(2, CHANNELS, 20, 20)
    ours = Convolution(layer.site, x, layer.weight, ((1, 1), (0, 0), (1, 1), False, (0, 0), 1))
    with torch.no_grad():
        expected = layer(x)
        assert ours.may_overwrite(None)
        place = x.clone()
        assert ours.stripes.output(place, layer.weight, layer.bias, place) is place
    torch.testing.assert_close(place, expected)
    wide = actnn.QConv2d(CHANNELS, CHANNELS, 3, padding=1)
    reaching = Convolution(wide.site, x, wide.weight, ((1, 1), (1, 1), (1, 1), False, (0, 0), 1))
    assert not reaching.may_overwrite([range(1), range(1, 2)])


def network(kernel):
    padding = kernel // 2
    return nn.Sequential(
        *(nn.Conv2d(3, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.ReLU()),
        *(nn.Conv2d(CHANNELS, CHANNELS, kernel, padding=padding), nn.BatchNorm2d(CHANNELS), nn.ReLU()),
        nn.Conv2d(CHANNELS, 2, 1),
    )


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("samples", [1, 2])
def test_no_bit_depends_on_what_is_overwritten(kernel, samples, monkeypatch):
    from actnn.torch import release

    monkeypatch.setattr(release, "LARGE_BYTES", 1)
    both(network(kernel), images(samples), steps=4)
