"""Gradients of branches are added up in place, and over no gradient that somebody sees: the same bits either way."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
import torch
from overwriting import both, compressed, images, step
from torch import nn


class Residual(nn.Module):
    """Blocks as those of a ResNet, with gradients of several branches at their beginnings."""

    def __init__(self, relu=True, downsample=True) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=relu))
        self.first = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.side = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)) if downsample else nn.Identity()
        self.relu = nn.ReLU(inplace=relu)

    def forward(self, x):
        x = self.stem(x)
        out = self.first(x)
        out += self.side(x)
        x = self.relu(out)
        out = self.second(x)
        out += x
        return self.relu(out)


@pytest.fixture
def tiny_parts(monkeypatch):
    """Let every convolution work in parts, and every gradient count as large."""
    from actnn.session import session
    from actnn.torch.functions import activation

    monkeypatch.setattr(session, "WORKING_BYTES", 4096)
    monkeypatch.setattr(activation, "LARGE_BYTES", 1)


@pytest.fixture
def added(monkeypatch):
    """Count the gradients that are added to what another branch left."""
    from actnn.torch.functions import maps

    counted, waiting_sum = Counter(), maps.waiting_sum

    def counting(*arguments):
        found = waiting_sum(*arguments)
        counted["all"] += found is not None
        return found

    monkeypatch.setattr(maps, "waiting_sum", counting)
    return counted


@pytest.mark.usefixtures("tiny_parts")
@pytest.mark.parametrize("downsample", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_gradients_of_branches_are_added_in_place(relu, downsample, added):
    both(Residual(relu, downsample), images())
    assert added["all"] == 3 * 2


@pytest.mark.usefixtures("tiny_parts")
def test_a_sum_that_a_hook_sees_is_the_whole_sum(added):
    def run(model, x):
        seen = []
        handle = model.stem.register_forward_hook(lambda layer, given, out: out.register_hook(seen.append) and None)
        results = step(model, x)
        handle.remove()
        return [*results, *seen]

    both(Residual(), images(), run=run)
    assert added["all"]


@pytest.mark.usefixtures("tiny_parts")
def test_nothing_is_added_to_a_gradient_that_a_hook_keeps():
    def run(model, x):
        seen = []

        def watch(layer, given, out):
            out.grad_fn.register_hook(lambda gradients, received: seen.extend(gradients[:1]))

        handles = [layer.register_forward_hook(watch) for layer in (model.side[0], model.first[0], model.relu)]
        results = step(model, x)
        for handle in handles:
            handle.remove()
        return [*results, *(gradient for gradient in seen if gradient is not None)]

    both(Residual(), images(), run=run)


@pytest.mark.usefixtures("tiny_parts")
def test_one_branch_alone_has_its_own_gradient():
    def run(model, x):
        h = model.stem(x)
        first, second = model.first(h).square().mean(), model.side(h).mean()
        return [*torch.autograd.grad(first, [h], retain_graph=True), *torch.autograd.grad(first + second, [h])]

    both(Residual(), images(), run=run)


@pytest.mark.usefixtures("tiny_parts")
def test_a_sum_with_a_factor_is_not_taken_for_a_plain_one():
    class Scaled(Residual):
        def forward(self, x):
            x = self.stem(x)
            out = torch.add(self.first(x), x, alpha=0.5)
            x = self.relu(out)
            out = self.second(x) + x[:, :1]
            return self.relu(out)

    network = Scaled(downsample=False)
    both(network, images())


@pytest.mark.usefixtures("tiny_parts")
def test_nothing_is_added_to_a_gradient_that_another_branch_has_yet_to_receive():
    class Forked(Residual):
        def forward(self, x):
            x = self.stem(x)
            one, other = self.first(x), self.second(x)
            # its convolution runs backward before the other branch does, when both still have the gradient of the sum
            beside = self.side(one)
            return self.relu(one + other) + beside

    both(Forked(), images())


@pytest.mark.usefixtures("tiny_parts")
def test_nothing_of_a_step_stays_behind(added):
    model = compressed(Residual(), overwrite=True)
    for _ in range(2):
        step(model, images())
    assert added["all"]
    model(images())
    gc.collect()
    assert not model._session.waiting_gradients
    assert not model._session.shared_gradients
