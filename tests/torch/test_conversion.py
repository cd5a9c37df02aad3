"""What conversion keeps of things that torch alone has: buffers as such, devices, hooks, parametrisations."""

from __future__ import annotations

import torch
from networks import images, small_network
from steps import check_close_gradients
from torch import nn
from torch.nn.utils import parametrizations
from torch_framework import FRAMEWORK

import actnn


def convert(model: nn.Module, **options) -> actnn.QModule:
    return actnn.QModule(model, level="L2", **options)


def left_exact(model: actnn.QModule) -> dict[str, str]:
    return {layer: reason for layer, _, reason in model.report().left_exact}


def test_buffers_are_the_same_objects():
    network = small_network(FRAMEWORK)
    FRAMEWORK.step(network, images())
    before = dict(network.named_buffers())
    after = dict(convert(network).named_buffers())
    assert after.keys() == before.keys()
    assert all(after[name] is buffer for name, buffer in before.items())


def test_the_device_of_parameters_stays():
    ours = convert(small_network(FRAMEWORK).to("meta"))
    assert {parameter.device.type for parameter in ours.parameters()} == {"meta"}


def test_hooks_keep_working():
    network, calls = small_network(FRAMEWORK), []
    network.head.register_forward_pre_hook(lambda *_: calls.append("before"))
    network.head.register_forward_hook(lambda *_: calls.append("after"))
    network.head.register_full_backward_hook(lambda *_: calls.append("backward"))
    FRAMEWORK.step(convert(network), images())
    assert calls == ["before", "after", "backward"]


def test_a_parametrised_layer_is_served_by_the_function_that_it_calls():
    network, x = nn.Sequential(parametrizations.weight_norm(nn.Linear(150, 5))), torch.randn(8, 150)
    ours = FRAMEWORK.compressed(network)
    check_close_gradients(*(FRAMEWORK.step(model, x).gradients for model in (ours, network)), 0.02)
    assert [row.layer for row in ours.report().rows] == ["0/linear"]


def test_a_layer_parametrised_after_conversion_has_the_plain_gradients():
    network, x = nn.Sequential(nn.Linear(150, 5)), torch.randn(8, 150)
    models = FRAMEWORK.compressed(network), network
    for model in models:
        parametrizations.weight_norm(model.get_submodule("0"))
    check_close_gradients(*(FRAMEWORK.step(model, x).gradients for model in models), 0.02)
