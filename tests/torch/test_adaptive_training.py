"""Widths decided while training, where torch offers more: hooks, scalers, retained graphs, checkpoints, pickles."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from networks import residual_block
from planned_networks import (
    CLASSES,
    averages,
    check_all_finite,
    classifier,
    loss_of,
    pictures,
    plain_network,
    residual_network,
    train,
    unit,
)
from steps import check_equal_gradients
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_framework import FRAMEWORK, same_tensors

import actnn

BATCH = 8


def statistics(model: actnn.QModule) -> dict[str, object]:
    """Return what a model has learned of gradients, for comparison."""
    found: dict[str, object] = {"norms": model._session.planner.norms.of(np.arange(4 * BATCH)).tolist()}
    for site in model._session.sites:
        weights = None if site.weights is None else site.weights.tolist()
        found[site.name] = (site.gradient, weights, site.share)
    return found


class Explosive(nn.Module):
    """Two halves; the gradient grows by ``factor`` on its way from the upper to the lower one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lower = nn.Sequential(*unit(FRAMEWORK, 3, 8), *unit(FRAMEWORK, 8, 8))
        self.upper = nn.Sequential(*unit(FRAMEWORK, 8, 8), *classifier(FRAMEWORK, 8))
        self.factor = 1.0

    def forward(self, x):
        x = self.lower(x)
        if self.factor != 1.0:
            factor = self.factor
            x.register_hook(lambda gradient: gradient * factor)
        return self.upper(x)


def experienced(network: nn.Module, steps: int = 3, **options: object) -> actnn.QModule:
    """Return a model that has trained on the same samples for some steps, and has begun the next forward."""
    model = FRAMEWORK.compressed(network, 2, level="L3", **options)
    model.set_samples(range(BATCH))
    for number in range(steps):
        train(FRAMEWORK, model, pictures(seed=number))
    model(FRAMEWORK.tensor(pictures()))
    return model


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), 1e38])
def test_gradients_that_overflow_in_some_layers_leave_the_statistics_as_they_were(factor: float):
    model = experienced(Explosive())
    before = statistics(model)
    model.factor = factor
    train(FRAMEWORK, model, pictures(seed=7))
    assert torch.isfinite(model.upper[0].weight.grad).all()
    model.factor = 1.0
    model(FRAMEWORK.tensor(pictures()))
    assert statistics(model) == before


def test_training_goes_on_after_an_overflow():
    model = experienced(Explosive())
    before = statistics(model)
    model.factor = float("inf")
    train(FRAMEWORK, model, pictures(seed=7))
    model.factor = 1.0
    assert train(FRAMEWORK, model, pictures(seed=8)).average_bits == pytest.approx(2, rel=0.01)
    check_all_finite(FRAMEWORK, model)
    model(FRAMEWORK.tensor(pictures()))
    assert statistics(model) != before


def test_a_step_that_a_scaler_skips_leaves_the_statistics_as_they_were():
    model = experienced(Explosive())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # the upper half stays finite; what a hook multiplies in the lower one passes the largest float
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    before, parameters = statistics(model), [parameter.detach().clone() for parameter in model.parameters()]
    model.factor = 1e37
    optimizer.zero_grad()
    scaler.scale(loss_of(FRAMEWORK, model, pictures(seed=7))).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**15
    assert all(torch.equal(*pair) for pair in zip(parameters, model.parameters(), strict=True))
    model.factor = 1.0
    model(FRAMEWORK.tensor(pictures()))
    assert statistics(model) == before


def test_a_scaler_trains_with_planned_widths():
    model = FRAMEWORK.compressed(plain_network(FRAMEWORK), 2, level="L3")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scaler, losses = torch.amp.GradScaler("cpu"), []
    x = torch.randn(BATCH, 3, 16, 16)
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of(FRAMEWORK, model, x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_an_input_without_a_batch_axis_trains():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(0), nn.Linear(8 * 144, CLASSES)
    model = FRAMEWORK.compressed(nn.Sequential(*layers), 2, level="L3")
    model.set_samples([3])
    for number in range(4):
        model.zero_grad()
        model(FRAMEWORK.tensor(pictures(1, number)[0])).square().sum().backward()
        assert model.report().average_bits <= 2.02
    check_all_finite(FRAMEWORK, model)


def test_a_gradient_of_the_input_alone_leaves_the_next_step_the_average():
    model = FRAMEWORK.compressed(plain_network(FRAMEWORK), 2, level="L3")
    x = FRAMEWORK.tensor(pictures(), gradient=True)
    averages(FRAMEWORK, model, [BATCH] * 3)
    torch.autograd.grad(loss_of(FRAMEWORK, model, x), x)
    assert train(FRAMEWORK, model, pictures()).average_bits == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("network", [plain_network, residual_network])
def test_a_pickled_copy_made_while_training_goes_on_like_the_original(network):
    model = FRAMEWORK.compressed(network(FRAMEWORK), 2, level="L3")
    model.set_samples(range(BATCH))
    averages(FRAMEWORK, model, [BATCH] * 3)
    other = pickle.loads(pickle.dumps(model))
    for number in range(3):
        for each in (model, other):
            train(FRAMEWORK, each, pictures(seed=number))
        check_equal_gradients(FRAMEWORK.gradients(other), FRAMEWORK.gradients(model))


class Checkpointed(nn.Module):
    """A residual block that is computed anew in backward, between layers that are not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.block = nn.Sequential(*unit(FRAMEWORK, 3, 8)), residual_block(FRAMEWORK, 8, 12)
        self.last = nn.Sequential(*unit(FRAMEWORK, 12, 8), *classifier(FRAMEWORK, 8))

    def forward(self, x):
        return self.last(checkpoint(self.block, self.stem(x), use_reentrant=True))


@pytest.mark.parametrize("level", ["L2.5", "L3"])
def test_reentrant_checkpointing_works_over_batches_of_all_sizes(level: str):
    model = FRAMEWORK.compressed(Checkpointed(), 1.5, level=level)
    for number, batch in enumerate((8, 8, 3, 3, 8, 5, 1, 8)):
        train(FRAMEWORK, model, pictures(batch, number))
        check_all_finite(FRAMEWORK, model)


def test_reentrant_checkpointing_gives_the_gradient_of_eight_bits():
    network = Checkpointed()
    model = FRAMEWORK.compressed(network, 8, level="L3")
    for number in range(3):
        for each in (model, network):
            each.zero_grad()
            loss_of(FRAMEWORK, each, pictures(seed=number)).backward()
        found, expected = FRAMEWORK.gradients(model), FRAMEWORK.gradients(network)
        for name, exact in expected.items():
            assert np.linalg.norm(found[name] - exact) <= 0.03 * np.linalg.norm(exact) + 1e-4, name


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_several_forwards_before_a_backward_may_be_checkpointed(reentrant: bool):
    class Whole(nn.Module):
        """A network that is computed anew from end to end."""

        def __init__(self) -> None:
            super().__init__()
            self.network = residual_network(FRAMEWORK)

        def forward(self, x):
            return checkpoint(self.network, x.requires_grad_(), use_reentrant=reentrant)

    model = FRAMEWORK.compressed(Whole(), 1.5, level="L3")
    for number in range(3):
        model.zero_grad()
        sum(loss_of(FRAMEWORK, model, pictures(batch, number)) for batch in (8, 3, 5)).backward()
        check_all_finite(FRAMEWORK, model)


def test_a_retained_graph_gives_the_same_gradient_again():
    model = experienced(plain_network(FRAMEWORK))
    loss, wanted = loss_of(FRAMEWORK, model, pictures(seed=5)), list(model.parameters())
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    for again, before in zip(torch.autograd.grad(loss, wanted), first, strict=True):
        same_tensors(again, before)


def test_two_backwards_through_one_graph_keep_the_average():
    model, found = FRAMEWORK.compressed(plain_network(FRAMEWORK), 2, level="L3"), []
    for number in range(4):
        model.zero_grad()
        loss = loss_of(FRAMEWORK, model, pictures(seed=number))
        loss.backward(retain_graph=True)
        loss.backward()
        found.append(model.report().average_bits)
    assert found == pytest.approx([2] * 4, rel=0.01)


def size_of(state: object) -> int:
    return len(pickle.dumps(state))


def test_parts_of_a_model_that_train_alone_do_not_remember_every_step():
    model, sizes = FRAMEWORK.compressed(plain_network(FRAMEWORK), 2, level="L3"), []
    for count in (100, 300):
        for _ in range(count):
            model[:2](FRAMEWORK.tensor(pictures(2))).sum().backward()
        sizes.append(size_of(model._session))
    assert sizes[1] <= 1.1 * sizes[0]


def test_one_model_may_train_from_several_threads():
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 3))
    model, x = FRAMEWORK.compressed(network, 7, level="L3"), torch.randn(32, 300)

    def gradient(model: nn.Module) -> list[torch.Tensor]:
        return list(torch.autograd.grad(model(x).square().sum(), list(model.parameters())))

    exact = gradient(network)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(gradient, [model] * 64):
            for ours, theirs in zip(found, exact, strict=True):
                assert (ours - theirs).norm() < 0.1 * theirs.norm()
