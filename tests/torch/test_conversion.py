"""What conversion keeps of things that torch alone has: buffers as such, devices, hooks, parametrisations."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch_layers import compressed, images, same, small_network, step

import actnn


def convert(model: nn.Module, **options) -> actnn.QModule:
    return actnn.QModule(model, level="L2", **options)


def left_exact(model: actnn.QModule) -> dict[str, str]:
    return {layer: reason for layer, _, reason in model.report().left_exact}


def test_buffers_are_the_same_objects():
    network = small_network()
    step(network, images())
    before = dict(network.named_buffers())
    after = dict(convert(network).named_buffers())
    assert after.keys() == before.keys()
    assert all(after[name] is buffer for name, buffer in before.items())


def test_the_device_of_parameters_stays():
    ours = convert(small_network().to("meta"))
    assert {parameter.device.type for parameter in ours.parameters()} == {"meta"}


def test_hooks_keep_working():
    network, calls = small_network(), []
    network.head.register_forward_pre_hook(lambda *_: calls.append("before"))
    network.head.register_forward_hook(lambda *_: calls.append("after"))
    network.head.register_full_backward_hook(lambda *_: calls.append("backward"))
    step(convert(network), images())
    assert calls == ["before", "after", "backward"]


def test_a_parametrised_layer_is_left_alone_and_listed():
    ours = convert(nn.Sequential(parametrizations.weight_norm(nn.Linear(70, 5)), nn.ReLU()))
    assert "parametrised" in left_exact(ours)["0"]


def test_a_parametrised_layer_has_exact_gradients():
    network, x = nn.Sequential(parametrizations.weight_norm(nn.Linear(70, 5))), torch.randn(8, 70)
    found, expected = step(compressed(network, 1), x), step(network, x)
    for name, gradient in expected.gradients.items():
        same(found.gradients[name], gradient, name)


def test_a_layer_parametrised_after_conversion_works():
    network, x = nn.Sequential(nn.Linear(150, 5)), torch.randn(8, 150)
    ours = compressed(network)
    parametrizations.weight_norm(ours.get_submodule("0"))
    found = step(ours, x)
    assert all(torch.isfinite(gradient).all() for gradient in found.gradients.values())
