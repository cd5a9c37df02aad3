"""Graphs as users of torch write them: tensors changed in place, memory formats, tensors that are kept or saved."""

from __future__ import annotations

import gc
import io
import weakref
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_framework import FRAMEWORK, same_tensors
from wirings import WIRES, batch, check_steps, check_with_frozen_first_layers, graph, norm

STEPS = 4


def images() -> Tensor:
    return FRAMEWORK.tensor(batch())


def scaled_in_place_before_relu(net, x):
    h = norm(net, x)
    h.mul_(-1)
    return net.second(net.relu(h))


def scaled_in_place_after_relu(net, x):
    h = net.relu(norm(net, x)) * 1
    h.sub_(0.5)
    return net.second(net.relu(h))


def part_overwritten(net, x):
    h = norm(net, x)
    h[:, 0] = 1.5
    return net.second(net.relu(h))


def functional_relu_in_place(net, x):
    return net.second(F.relu_(norm(net, x)))


IN_PLACE = {
    wire.__name__.replace("_", " "): wire
    for wire in (
        functional_relu_in_place,
        scaled_in_place_before_relu,
        scaled_in_place_after_relu,
        part_overwritten,
    )
}
ALL = WIRES | IN_PLACE
in_place = pytest.mark.parametrize("wire", IN_PLACE)


def frozen_norm(network: nn.Module) -> None:
    network.norm.requires_grad_(False)


def norm_in_evaluation(network: nn.Module) -> None:
    network.norm.eval()


def frozen(network: nn.Module) -> None:
    network.requires_grad_(False)


def as_it_is(network: nn.Module) -> None:
    """Leave everything as it is."""


@pytest.mark.parametrize("change", [as_it_is, frozen_norm, norm_in_evaluation, frozen], ids=lambda each: each.__name__)
@in_place
def test_a_graph_that_changes_tensors_in_place_has_the_plain_gradients(wire: str, change):
    network = graph(FRAMEWORK, IN_PLACE[wire])
    change(network)
    check_steps(FRAMEWORK, network, batch(), STEPS)


@in_place
def test_a_graph_in_place_whose_first_layers_are_frozen_has_the_plain_gradients(wire: str):
    check_with_frozen_first_layers(FRAMEWORK, graph(FRAMEWORK, IN_PLACE[wire]))


@pytest.mark.parametrize("wire", ALL)
def test_a_graph_in_channels_last_has_the_plain_gradients(wire: str):
    network = graph(FRAMEWORK, ALL[wire]).to(memory_format=torch.channels_last)
    check_steps(FRAMEWORK, network, images().contiguous(memory_format=torch.channels_last))


def test_an_output_that_the_user_keeps_does_not_keep_codes_beyond_the_step():
    ours, x = FRAMEWORK.compressed(graph(FRAMEWORK, WIRES["norm, relu, conv"]), 2), images()
    outputs, saved = [], []
    own = {id(tensor) for tensor in (*ours.parameters(), *ours.buffers(), x)}

    def remember(tensor):
        if id(tensor) not in own:
            saved.append(weakref.ref(tensor))
        return tensor

    ours.relu.register_forward_hook(lambda _, __, output: outputs.append(output))
    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        loss = ours(x).square().sum()
    loss.backward()
    ours(x)
    gc.collect()
    kept = {id(output) for output in outputs}
    assert [tuple(each().shape) for each in saved if each() is not None and id(each()) not in kept] == []


def test_a_batch_can_be_saved_and_loaded_as_weights_after_a_step():
    ours, x, memory = FRAMEWORK.compressed(graph(FRAMEWORK, WIRES["norm, relu, conv"])), images(), io.BytesIO()
    ours(x).sum().backward()
    torch.save(x, memory)
    memory.seek(0)
    same_tensors(torch.load(memory, weights_only=True), x)


def test_a_batch_can_be_copied_after_a_step():
    ours, x = FRAMEWORK.compressed(graph(FRAMEWORK, WIRES["norm, relu, conv"])), images()
    ours(x).sum().backward()
    copy = deepcopy(x)
    same_tensors(copy, x)
    assert vars(copy) == {}


def test_a_batch_does_not_keep_the_model_alive():
    ours, x = FRAMEWORK.compressed(graph(FRAMEWORK, WIRES["norm, relu, conv"])), images()
    ours(x).sum().backward()
    session = weakref.ref(ours._session)
    del ours
    gc.collect()
    assert session() is None
