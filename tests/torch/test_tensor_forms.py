"""Memory formats, views and expanded gradients (defect 3), for every kind of layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from frameworks import input_of
from layer_cases import KINDS, MAPS, NORMS, Case
from networks import images, small_network
from steps import check_step, close, same
from torch import Tensor, nn
from torch_framework import FRAMEWORK

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=LAST[x.dim()]) if x.dim() in LAST else channels_last_by_hand(x)


def channels_last_by_hand(x: Tensor) -> Tensor:
    """Return the same values with axis 1 innermost in memory."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def every_other(x: Tensor) -> Tensor:
    """Return the same values with gaps between them."""
    wide = torch.stack([x, torch.full_like(x, float("nan"))], -1).flatten(-2)
    return wide[..., ::2]


def transposed(x: Tensor) -> Tensor:
    """Return the same values, the first axis innermost in memory."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


def offset(x: Tensor) -> Tensor:
    """Return the same values in memory that begins in the middle of something else."""
    memory = torch.full((x.numel() + 3,), float("nan"))
    view = memory[3:].view(x.shape)
    view.copy_(x)
    return view


FORMS = [channels_last, every_other, transposed, offset]


def by_sample(y: Tensor) -> Tensor:
    """Return a gradient that is expanded over all axes but the first."""
    return torch.arange(1.0, len(y) + 1).view(-1, *[1] * (y.dim() - 1)).expand(y.shape)


def random(y: Tensor) -> Tensor:
    return torch.randn(y.shape, generator=torch.Generator().manual_seed(4))


GRADIENTS = {
    "expanded": by_sample,
    "channels last": lambda y: channels_last(random(y)),
    "with gaps": lambda y: every_other(random(y)),
    "transposed": lambda y: transposed(random(y)),
}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("case", KINDS, ids=str)
def test_the_form_of_an_input_changes_nothing(case: Case, form):
    layer, x = FRAMEWORK.plain_layer(case), form(FRAMEWORK.tensor(input_of(case)))
    ours = FRAMEWORK.compressed(layer)
    FRAMEWORK.step(ours, x)
    FRAMEWORK.step(layer, x)
    check_step(FRAMEWORK.step(ours, x), FRAMEWORK.step(layer, x), case)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("case", [case for case in KINDS if len(case.shape) in LAST], ids=str)
def test_the_output_lies_in_memory_as_that_of_the_plain_layer(case: Case, form):
    layer, x = FRAMEWORK.plain_layer(case), form(FRAMEWORK.tensor(input_of(case)))
    found, expected = (model(x.requires_grad_()).stride() for model in (FRAMEWORK.compressed(layer), layer))
    assert found == expected


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("case", KINDS, ids=str)
def test_the_form_of_a_gradient_changes_nothing(case: Case, gradient: str):
    layer, x = FRAMEWORK.plain_layer(case), FRAMEWORK.tensor(input_of(case))
    ours = FRAMEWORK.compressed(layer)
    for model in (ours, layer):
        FRAMEWORK.step(model, x)
    # an equal gradient for all of a sample nearly cancels in BatchNorm: what is left is small against the noise
    relative = 0.05 if case in NORMS else 0.02
    found, expected = (FRAMEWORK.step(model, x, GRADIENTS[gradient]) for model in (ours, layer))
    check_step(found, expected, case, relative)


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_an_input_in_one_form_and_a_gradient_in_another_work_together(case: Case):
    layer, x = FRAMEWORK.plain_layer(case), channels_last(FRAMEWORK.tensor(input_of(case)))
    ours = FRAMEWORK.compressed(layer)
    for model in (ours, layer):
        FRAMEWORK.step(model, x)
    gradient = GRADIENTS["with gaps"]
    check_step(FRAMEWORK.step(ours, x, gradient), FRAMEWORK.step(layer, x, gradient), case)


@pytest.mark.parametrize("reduce", [torch.sum, torch.mean], ids=["sum", "mean"])
@pytest.mark.parametrize("case", KINDS, ids=str)
def test_a_sum_or_mean_of_the_output_has_the_plain_gradient(case: Case, reduce):
    layer, x = FRAMEWORK.plain_layer(case), FRAMEWORK.tensor(input_of(case))
    scale = torch.arange(1.0, 1 + case.shape[0]).view(-1, *[1] * (x.dim() - 1))
    ours = FRAMEWORK.compressed(layer)
    results = []
    for model in (ours, layer):
        leaf = (x * scale).requires_grad_()
        torch.manual_seed(3)
        reduce(model(leaf)).backward()
        results.append(leaf.grad)
    if case in MAPS or case.lossless:
        torch.testing.assert_close(*results)
    else:
        # the exact gradient of a BatchNorm's sum is zero: what is left is one percent of the incoming gradient
        assert float(results[0].norm()) < 0.01 * x.numel() ** 0.5


def test_an_expanded_input_is_coded_as_its_values():
    layer, x = nn.Linear(70, 5), torch.randn(1, 70).expand(9, 70)
    found, expected = FRAMEWORK.step(FRAMEWORK.compressed(layer), x), FRAMEWORK.step(layer, x)
    same(found.output, expected.output)
    np.testing.assert_allclose(found.gradients["weight"], expected.gradients["weight"], rtol=0.05, atol=0.05)


def test_a_network_in_channels_last_equals_the_plain_one():
    network = small_network(FRAMEWORK).to(memory_format=torch.channels_last)
    x = channels_last(FRAMEWORK.tensor(images()))
    found, expected = FRAMEWORK.step(FRAMEWORK.compressed(network), x), FRAMEWORK.step(network, x)
    np.testing.assert_allclose(found.output, expected.output, rtol=1e-4, atol=1e-5)
    for name in ("head.weight", "block.conv2.weight", "block.bn1.weight", "stem.0.weight"):
        close(found.gradients[name], expected.gradients[name], 0.03, name)


def test_channels_last_and_contiguous_inputs_may_alternate():
    network, x = small_network(FRAMEWORK), FRAMEWORK.tensor(images())
    ours = FRAMEWORK.compressed(network)
    for number in range(4):
        form = channels_last(x) if number % 2 else x
        found, expected = FRAMEWORK.step(ours, form), FRAMEWORK.step(network, form)
        close(found.gradients["input"], expected.gradients["input"], 0.03)
