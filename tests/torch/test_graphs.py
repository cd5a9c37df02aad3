"""Graphs as users write them: branches, changing control flow, work in place, tensors that are kept or saved."""

from __future__ import annotations

import gc
import io
import weakref
from copy import deepcopy

import numpy as np
import pytest
import torch
from steps import close
from torch import nn
from torch.nn import functional as F
from torch_framework import FRAMEWORK, close_tensors, same_tensors

FEATURES = 6
STEPS = 4


def check_steps(network: nn.Module, x: torch.Tensor, relative: float = 0.03, steps: int = STEPS) -> None:
    """Raise unless output, gradients and statistics of several steps are near those of the plain network."""
    ours = FRAMEWORK.compressed(network)
    for number in range(steps):
        found, expected = FRAMEWORK.step(ours, x + 0.1 * number), FRAMEWORK.step(network, x + 0.1 * number)
        close(found.output, expected.output, 1e-4, f"output of step {number}")
        assert found.gradients.keys() == expected.gradients.keys()
        for name, gradient in expected.gradients.items():
            # the gradient of a bias before BatchNorm is nothing but rounding
            if np.linalg.norm(gradient) > 1e-3:
                close(found.gradients[name], gradient, relative, f"{name} in step {number}")
        for name, buffer in expected.buffers.items():
            close(found.buffers[name], buffer, 1e-4, f"{name} in step {number}")


class Graph(nn.Module):
    """A few layers to be wired by a function."""

    def __init__(self, wire) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Conv2d(3, FEATURES, 3, padding=1)
        self.norm = nn.BatchNorm2d(FEATURES)
        self.relu, self.relu_ = nn.ReLU(), nn.ReLU(inplace=True)
        self.clip, self.clip_ = nn.ReLU6(), nn.ReLU6(inplace=True)
        self.leaky, self.leaky_ = nn.LeakyReLU(0.1), nn.LeakyReLU(0.1, inplace=True)
        self.drop, self.drop_ = nn.Dropout(0.3), nn.Dropout(0.3, inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.second = nn.Conv2d(FEATURES, FEATURES, 3, padding=1)
        self.third = nn.Conv2d(FEATURES, 4, 1)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)
        self.wire, self.calls = wire, 0

    def forward(self, x):
        self.calls += 1
        return self.wire(self, x)


def norm(net, x):
    return net.norm(net.first(x))


WIRES = {
    "norm alone": norm,
    "norm, relu": lambda net, x: net.relu(norm(net, x)),
    "norm, relu in place": lambda net, x: net.relu_(norm(net, x)),
    "norm, relu, conv": lambda net, x: net.second(net.relu(norm(net, x))),
    "norm, relu in place, conv": lambda net, x: net.second(net.relu_(norm(net, x))),
    "norm, conv": lambda net, x: net.second(norm(net, x)),
    "norm, relu twice": lambda net, x: net.second(net.relu(net.relu(norm(net, x)))),
    "norm, relu6": lambda net, x: net.second(net.clip(norm(net, x))),
    "norm, relu6 in place": lambda net, x: net.second(net.clip_(norm(net, x))),
    "norm, leaky relu": lambda net, x: net.second(net.leaky(norm(net, x))),
    "norm, leaky relu in place": lambda net, x: net.second(net.leaky_(norm(net, x))),
    "norm, functional relu": lambda net, x: net.second(F.relu(norm(net, x))),
    "norm, functional relu in place": lambda net, x: net.second(F.relu_(norm(net, x))),
    "norm, dropout in place": lambda net, x: net.second(net.drop_(norm(net, x))),
    "norm, relu, pool, conv": lambda net, x: net.second(net.pool(net.relu(norm(net, x)))),
    "norm, relu in place, pool": lambda net, x: net.pool(net.relu_(norm(net, x))),
    "relu, norm": lambda net, x: net.norm(net.relu(net.first(x))),
    "relu in place, norm": lambda net, x: net.norm(net.relu_(net.first(x))),
    "relu, two convs": lambda net, x: (lambda h: net.third(h) + net.third(net.second(h)))(net.relu(net.first(x))),
    "norm, norm": lambda net, x: net.norm(norm(net, x)),
    "norm, relu, norm, relu": lambda net, x: net.relu(net.norm(net.relu(norm(net, x)))),
    "norm, relu in place, norm, relu in place": lambda net, x: net.relu_(net.norm(net.relu_(norm(net, x)))),
}


def conv_reads_before_relu_overwrites(net, x):
    h = norm(net, x)
    before = net.third(h)
    return before + net.third(net.relu(h))


def addition_before_relu(net, x):
    h = norm(net, x)
    h += net.first(x)
    return net.second(net.relu_(h))


def addition_after_relu(net, x):
    h = net.relu_(norm(net, x))
    h = h + net.first(x)
    return net.second(h) + net.second(net.relu(h))


def scaled_in_place_before_relu(net, x):
    h = norm(net, x)
    h.mul_(-1)
    return net.second(net.relu(h))


def scaled_in_place_after_relu(net, x):
    h = net.relu(norm(net, x)) * 1
    h.sub_(0.5)
    return net.second(net.relu(h))


def part_of_a_norm(net, x):
    h = norm(net, x)
    return net.second(net.relu(h[:, :, 1:, :-1]))


def halves_of_a_norm(net, x):
    first, second = norm(net, x).chunk(2)
    return net.second(torch.cat([net.relu(first), second]))


def part_overwritten(net, x):
    h = norm(net, x)
    h[:, 0] = 1.5
    return net.second(net.relu(h))


def relu_and_norm_both_read(net, x):
    h = norm(net, x)
    return net.second(net.relu(h)) + net.second(h) + h


def detached_branch(net, x):
    h = net.relu(norm(net, x))
    return net.second(h) + net.second(h.detach())


def one_tensor_in_two_norms(net, x):
    h = net.first(x)
    return net.relu(net.norm(h)) + net.norm(h)


def unused_branch(net, x):
    h = net.relu(norm(net, x))
    net.third(h)
    return net.second(h)


WIRES |= {
    wire.__name__.replace("_", " "): wire
    for wire in (
        conv_reads_before_relu_overwrites,
        addition_before_relu,
        addition_after_relu,
        scaled_in_place_before_relu,
        scaled_in_place_after_relu,
        part_of_a_norm,
        halves_of_a_norm,
        part_overwritten,
        relu_and_norm_both_read,
        detached_branch,
        one_tensor_in_two_norms,
        unused_branch,
    )
}


def batch() -> torch.Tensor:
    return torch.randn(8, 3, 12, 10, generator=torch.Generator().manual_seed(2))


wires = pytest.mark.parametrize("wire", WIRES)


@wires
def test_a_graph_has_the_plain_gradients(wire: str):
    check_steps(Graph(WIRES[wire]), batch())


@wires
def test_a_graph_in_channels_last_has_the_plain_gradients(wire: str):
    network = Graph(WIRES[wire]).to(memory_format=torch.channels_last)
    check_steps(network, batch().contiguous(memory_format=torch.channels_last), steps=2)


@wires
def test_a_graph_with_a_frozen_norm_has_the_plain_gradients(wire: str):
    network = Graph(WIRES[wire])
    network.norm.requires_grad_(False)
    check_steps(network, batch(), steps=2)


@wires
def test_a_graph_with_a_norm_in_evaluation_has_the_plain_gradients(wire: str):
    network = Graph(WIRES[wire])
    network.norm.eval()
    check_steps(network, batch(), steps=2)


@wires
def test_a_graph_whose_first_layers_are_frozen_has_the_plain_gradients(wire: str):
    network = Graph(WIRES[wire])
    network.first.requires_grad_(False)
    ours = FRAMEWORK.compressed(network)
    # the batch itself wants no gradient either
    for model in (ours, network, ours, network):
        model.zero_grad()
        torch.manual_seed(3)
        model(batch()).square().sum().backward()
    for name, parameter in network.named_parameters():
        if parameter.grad is not None:
            close_tensors(ours.get_parameter(name).grad, parameter.grad, 0.02, name)


@wires
def test_a_frozen_graph_passes_the_plain_gradient(wire: str):
    check_steps(Graph(WIRES[wire]).requires_grad_(False), batch(), steps=2)


@pytest.mark.parametrize(
    "turns",
    [
        ["norm, relu", "norm, conv"],
        ["norm, relu in place, conv", "norm, conv"],
        ["norm, relu, conv", "norm, relu in place, conv", "norm alone"],
        ["norm, leaky relu", "norm, relu", "norm, dropout in place"],
    ],
    ids=" | ".join,
)
def test_a_graph_that_changes_from_step_to_step_has_the_plain_gradients(turns: list[str]):
    check_steps(Graph(lambda net, x: WIRES[turns[net.calls % len(turns)]](net, x)), batch(), steps=6)


def test_an_output_that_the_user_keeps_does_not_keep_codes_beyond_the_step():
    ours, x = FRAMEWORK.compressed(Graph(WIRES["norm, relu, conv"]), 2), batch()
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
    ours, x, memory = FRAMEWORK.compressed(Graph(WIRES["norm, relu, conv"])), batch(), io.BytesIO()
    ours(x).sum().backward()
    torch.save(x, memory)
    memory.seek(0)
    same_tensors(torch.load(memory, weights_only=True), x)


def test_a_batch_can_be_copied_after_a_step():
    ours, x = FRAMEWORK.compressed(Graph(WIRES["norm, relu, conv"])), batch()
    ours(x).sum().backward()
    copy = deepcopy(x)
    same_tensors(copy, x)
    assert vars(copy) == {}


def test_a_batch_does_not_keep_the_model_alive():
    ours, x = FRAMEWORK.compressed(Graph(WIRES["norm, relu, conv"])), batch()
    ours(x).sum().backward()
    session = weakref.ref(ours._session)
    del ours
    gc.collect()
    assert session() is None


def test_an_optimised_input_is_coded_anew_in_every_step():
    torch.manual_seed(4)
    layer = nn.Linear(300, 5)
    ours, x = FRAMEWORK.compressed(layer, 1), nn.Parameter(torch.randn(4, 300))
    found = []
    for _ in range(2):
        ours.zero_grad()
        ours(x).sum().backward()
        found.append(ours.weight.grad.clone())
    assert not torch.equal(*found)


def test_a_model_does_not_read_the_coarser_code_of_another():
    torch.manual_seed(5)
    trunk, head = nn.Sequential(nn.Linear(150, 150), nn.ReLU()), nn.Linear(150, 5)
    x, coarse, fine = torch.randn(8, 150), FRAMEWORK.compressed(trunk, 1), FRAMEWORK.compressed(head, 8)
    fine(coarse(x)).square().sum().backward()
    head(trunk(x)).square().sum().backward()
    close_tensors(fine.weight.grad, head.weight.grad, 0.01)


def test_a_generator_and_a_discriminator_train_in_turns():
    torch.manual_seed(6)
    generator = nn.Sequential(nn.Linear(40, 150), nn.BatchNorm1d(150), nn.ReLU(True), nn.Linear(150, 150))
    discriminator = nn.Sequential(nn.Linear(150, 100), nn.LeakyReLU(0.2, True), nn.Linear(100, 1))
    noise, real = torch.randn(32, 40), torch.randn(32, 150)
    gradients = []
    for models in ((FRAMEWORK.compressed(generator), FRAMEWORK.compressed(discriminator)), (generator, discriminator)):
        make, judge = models
        for _ in range(2):
            fake = make(noise)
            judge.zero_grad()
            (judge(real).square().mean() + judge(fake.detach()).mean()).backward()
            judged = [parameter.grad.clone() for parameter in judge.parameters()]
            make.zero_grad()
            judge(fake).sin().mean().backward()
        gradients.append([*judged, *(parameter.grad for parameter in make.parameters())])
    for mine, plain in zip(*gradients, strict=True):
        if float(plain.norm()) > 1e-5:
            close_tensors(mine, plain, 0.03)
