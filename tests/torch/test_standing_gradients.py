"""Gradients of large weights are added a few rows at a time to those that stand, unless somebody would see that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from overwriting import compressed
from torch import Tensor, nn

from actnn.torch.functions import standing

BATCH, INPUTS, OUTPUTS = 4, 6, 10
STEPS = 3


@pytest.fixture(autouse=True)
def every_weight_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pieces have three rows."""
    monkeypatch.setattr(standing, "PIECE_BYTES", 3 * INPUTS * 4)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each gradient of a weight was added to one that stood."""
    seen: list[bool] = []

    def noted(*arguments: object) -> Tensor | None:
        total = original(*arguments)  # type: ignore[arg-type]
        seen.append(total is not None)
        return total

    original = standing.standing
    monkeypatch.setattr(standing, "standing", noted)
    return seen


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, OUTPUTS), nn.ReLU(), nn.Linear(OUTPUTS, 1))


def gradient(overwrite: bool, prepare: Callable[[Tensor], object] = lambda weight: None) -> Tensor:
    """Return the gradient of the large weight after several steps, of which each adds to the one before."""
    model = compressed(network(), overwrite)
    (weight, *_) = model.parameters()
    prepare(weight)
    torch.manual_seed(1)
    for _ in range(STEPS):
        model(torch.randn(BATCH, INPUTS)).square().sum().backward()
    assert weight.grad is not None
    return weight.grad


def test_a_gradient_is_added_to_the_one_that_stands_and_no_bit_changes(found):
    assert torch.equal(gradient(True), gradient(False))
    assert found == [False, True, True, False, False, False]


def test_a_hook_of_the_weight_sees_every_gradient(found):
    seen: list[Tensor] = []
    gradient(True, lambda weight: weight.register_hook(seen.append))
    assert len(seen) == STEPS
    assert found == [False] * STEPS


def test_a_hook_behind_the_accumulation_runs_in_every_step(found):
    seen: list[float] = []
    gradient(True, lambda weight: weight.register_post_accumulate_grad_hook(lambda own: seen.append(own.grad.norm())))
    assert len(seen) == STEPS
    assert found == [False] * STEPS


def test_a_hook_behind_the_leafs_node_finds_the_gradient_there(found):
    norms: list[float] = []
    nodes = []

    def watch(weight: Tensor) -> None:
        # what trainers do that hand gradients on as they come
        nodes.append(weight.view_as(weight).grad_fn.next_functions[0][0])
        nodes[0].register_hook(lambda *_: norms.append(float(weight.grad.norm())))

    total = gradient(True, watch)
    assert len(norms) == STEPS
    assert norms[-1] == float(total.norm())
    assert found == [False, True, True]


def test_autograd_grad_leaves_what_stands_alone(found):
    model = compressed(network(), overwrite=True)
    (weight, *_) = model.parameters()
    x = torch.randn(BATCH, INPUTS)
    model(x).sum().backward()
    before = weight.grad.clone()
    (asked,) = torch.autograd.grad(model(x).sum(), [weight])
    assert asked.shape == weight.shape
    (other,) = torch.autograd.grad(model(x).sum(), [list(model.parameters())[1]])
    assert other.shape == (OUTPUTS,)
    assert torch.equal(weight.grad, before)
    assert not any(found)


def test_a_backward_into_other_leaves_leaves_it_alone():
    model = compressed(network(), overwrite=True)
    weight, bias, *_ = model.parameters()
    x = torch.randn(BATCH, INPUTS)
    model(x).sum().backward()
    before = weight.grad.clone()
    model(x).sum().backward(inputs=[bias])
    assert torch.equal(weight.grad, before)


def test_a_weight_of_two_layers_has_the_gradients_of_both(found):
    gradients = []
    for overwrite in (False, True):
        torch.manual_seed(0)
        first, second = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, INPUTS)
        second.weight = first.weight
        model = compressed(nn.Sequential(first, nn.Tanh(), second), overwrite)
        for _ in range(STEPS):
            model(torch.ones(BATCH, INPUTS)).sum().backward()
        gradients.append(first.weight.grad)
    torch.testing.assert_close(*gradients)
    assert found == [False] * (2 * STEPS + 2) + [True] * 4
