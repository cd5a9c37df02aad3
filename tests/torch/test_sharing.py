"""Shared codes where torch has more to offer: hooks on activations, reentrant checkpointing, memory formats."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_framework import FRAMEWORK, close_tensors

CHANNELS = 8


class Residual(nn.Module):
    """A small residual network with in-place operations and zero-initialised last gammas, as ResNets have."""

    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(CHANNELS)
        self.conv1 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(CHANNELS)
        self.conv2 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(CHANNELS)
        self.relu = nn.ReLU(inplace=inplace)
        self.head = nn.Conv2d(CHANNELS, 4, 1)
        nn.init.zeros_(self.norm2.weight[: CHANNELS // 2])
        nn.init.normal_(self.norm1.weight)
        nn.init.normal_(self.norm1.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.stem_norm(self.stem(x)))
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += x
        return self.head(self.relu(out)).mean((2, 3))


def gradient(model: nn.Module, run) -> torch.Tensor:
    """Return all gradients of one run as a vector."""
    model.zero_grad()
    run(model).backward(retain_graph=True)
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def batch(samples: int = 6, size: int = 12) -> torch.Tensor:
    """Return images, the same in every test."""
    return torch.randn(samples, 3, size, size, generator=torch.Generator().manual_seed(7))


def loss_of(x: torch.Tensor):
    """Return a run: the model's loss on ``x``."""
    return lambda model: F.cross_entropy(model(x), torch.arange(len(x)) % 4)


class Watched(nn.Module):
    """A BatchNorm whose output a ReLU overwrites, after somebody asked to see its gradient."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.way, self.seen = way, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x))
        if self.way == "hook":
            y.register_hook(self.seen.append)
        else:
            y.retain_grad()
            self.seen.append(y)
        return self.relu(y)


@pytest.mark.parametrize("way", ["hook", "retain_grad"])
def test_a_watched_batch_norm_output_gets_the_plain_gradient(way):
    torch.manual_seed(11)
    network = Watched(way)
    ours, found = FRAMEWORK.compressed(network, 2), []
    for model in (ours, network):
        model(batch()).square().sum().backward()
        (seen,) = model.seen
        found.append(seen if way == "hook" else seen.grad)
    close_tensors(*found, 1e-5)


def test_reentrant_checkpointing_recomputes_the_same_kinds_of_code():
    torch.manual_seed(10)
    model, x = Residual(), batch().requires_grad_()
    reference = gradient(copy.deepcopy(model), loss_of(x))
    noisy = FRAMEWORK.compressed(model)
    for _ in range(3):
        found = gradient(noisy, lambda model: loss_of(x)(lambda x: checkpoint(model, x, use_reentrant=True)))
        assert (found - reference).norm() < 0.03 * reference.norm()


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_a_backward_in_pieces_gives_the_same_gradient(form):
    torch.manual_seed(13)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3), nn.Flatten(1, 2),
        nn.Linear(10, 3),
    )  # fmt: skip
    x = batch().contiguous(memory_format=form).requires_grad_()
    found = []
    for threshold in (None, 4000):
        x.grad = None
        noisy = FRAMEWORK.compressed(model, 2, pipeline_threshold=threshold)
        found.append((gradient(noisy, lambda model: model(x).square().sum()), x.grad))
    for whole, pieces in zip(*found, strict=True):
        torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-4 * whole.abs().max().item())


# Paddle's has the slope of what is not below zero, which the sides of a code do not tell
def test_a_leaky_relu_shares_the_code_of_its_output():
    model = FRAMEWORK.compressed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.LeakyReLU(0.1), nn.Conv2d(8, 4, 1)), 2)
    model(batch()).sum().backward()
    assert {row.layer: row for row in model.report().rows}["1"].readers == ("2",)


def nodes(y: torch.Tensor) -> set[str]:
    """Return the names of all functions through which a gradient of ``y`` goes."""
    found, waiting = set(), [y.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    return {type(node).__name__ for node in found}


def test_one_function_serves_a_batch_norm_and_the_relu_that_overwrites_its_output():
    model = FRAMEWORK.compressed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)), 2)
    # the first step learns that the output is overwritten
    model(batch()).sum().backward()
    found = nodes(model(batch()))
    assert "RectifiedBatchNormFunctionBackward" in found
    assert "BatchNormFunctionBackward" not in found


class Changed(nn.Module):
    """A BatchNorm whose input is changed, in place or not, before a ReLU overwrites its output."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.inplace = inplace
        self.conv, self.norm, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv(x)
        y = self.norm(h)
        h = h.mul_(3.0) if self.inplace else h * 3.0
        return self.relu(y).mean((2, 3)) + h.mean((2, 3))


def test_a_batch_norms_input_may_be_changed_before_a_relu_overwrites_the_output():
    model, x = Changed(inplace=False), batch()
    exact = gradient(model, loss_of(x))
    # torch's own BatchNorm keeps its input and would refuse
    model.inplace = True
    ours = FRAMEWORK.compressed(model, 8)
    for _ in range(2):
        found = gradient(ours, loss_of(x))
    assert (exact - found).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("inplace", [False, True])
def test_a_batch_norms_input_is_gone_when_a_relu_comes_that_overwrites_nothing(inplace: bool):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=inplace), nn.Conv2d(8, 4, 3))
    inputs, alive = [], []
    model[0].register_forward_hook(lambda layer, given, y: inputs.append(weakref.ref(y.untyped_storage())))
    model[2].register_forward_pre_hook(lambda layer, given: alive.append(inputs[-1]() is not None))
    # otherwise the output has the memory of the input
    model = FRAMEWORK.compressed(model, 2, overwrite=False)
    for _ in range(3):
        gradient(model, lambda model: model(batch()).square().mean())
    assert alive == [False, inplace, inplace]
