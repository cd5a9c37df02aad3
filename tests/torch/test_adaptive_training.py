"""Widths decided while training, in trainings that are not plain: overflows, odd batches, copies, checkpoints."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from adaptive_networks import (
    CLASSES,
    Widths,
    averages,
    check_equal_gradients,
    check_finite,
    classifier,
    gradients,
    loss_of,
    pictures,
    plain_network,
    residual_network,
    train,
    unit,
    widths_of,
)
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_layers import ResidualBlock, compressed

import actnn
from actnn.core.planner import RENEWED

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
        self.lower = nn.Sequential(*unit(3, 8), *unit(8, 8))
        self.upper = nn.Sequential(*unit(8, 8), *classifier(8))
        self.factor = 1.0

    def forward(self, x):
        x = self.lower(x)
        if self.factor != 1.0:
            factor = self.factor
            x.register_hook(lambda gradient: gradient * factor)
        return self.upper(x)


def experienced(network: nn.Module, steps: int = 3, **options: object) -> actnn.QModule:
    """Return a model that has trained on the same samples for some steps, and has begun the next forward."""
    model = compressed(network, 2, level="L3", **options)
    model.set_samples(range(BATCH))
    for number in range(steps):
        train(model, pictures(seed=number))
    model(pictures())
    return model


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), 1e38])
def test_gradients_that_overflow_in_some_layers_leave_the_statistics_as_they_were(factor: float):
    model = experienced(Explosive())
    before = statistics(model)
    model.factor = factor
    train(model, pictures(seed=7))
    assert torch.isfinite(model.upper[0].weight.grad).all()
    model.factor = 1.0
    model(pictures())
    assert statistics(model) == before


@pytest.mark.parametrize("factor", [float("inf"), float("nan")])
def test_a_loss_that_is_not_finite_leaves_the_statistics_as_they_were(factor: float):
    model = experienced(plain_network())
    before = statistics(model)
    (loss_of(model, pictures(seed=7)) * factor).backward()
    model(pictures())
    assert statistics(model) == before


def test_training_goes_on_after_an_overflow():
    model = experienced(Explosive())
    before = statistics(model)
    model.factor = float("inf")
    train(model, pictures(seed=7))
    model.factor = 1.0
    assert train(model, pictures(seed=8)).average_bits == pytest.approx(2, rel=0.01)
    check_finite(model)
    model(pictures())
    assert statistics(model) != before


def test_a_step_that_a_scaler_skips_leaves_the_statistics_as_they_were():
    model = experienced(Explosive())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # the upper half stays finite; what a hook multiplies in the lower one passes the largest float
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    before, parameters = statistics(model), [parameter.detach().clone() for parameter in model.parameters()]
    model.factor = 1e37
    optimizer.zero_grad()
    scaler.scale(loss_of(model, pictures(seed=7))).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**15
    assert all(torch.equal(*pair) for pair in zip(parameters, model.parameters(), strict=True))
    model.factor = 1.0
    model(pictures())
    assert statistics(model) == before


def test_a_scaler_trains_with_planned_widths():
    model = compressed(plain_network(), 2, level="L3")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scaler, losses = torch.amp.GradScaler("cpu"), []
    x = torch.randn(BATCH, 3, 16, 16)
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_a_batch_that_is_not_finite_does_not_stop_planning():
    model = compressed(plain_network(), 2, level="L3")
    x = pictures()
    x[3] = float("nan")
    train(model, x)
    for number in range(3):
        assert train(model, pictures(seed=number)).average_bits == pytest.approx(2, rel=0.01)
    check_finite(model)
    assert any(len(set(widths)) > 1 for widths in widths_of(model, pictures()).values())


class Regions(nn.Module):
    """A body that sees the batch, and a head that sees several crops of each sample."""

    def __init__(self, crops: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.crops = nn.Sequential(*unit(3, 8), *unit(8, 8)), crops
        self.head = nn.Sequential(*unit(8, 8), *classifier(8))

    def forward(self, x):
        features = self.body(x)
        crops = torch.cat([features[:, :, place : place + 8, place : place + 8] for place in range(self.crops)])
        return self.head(crops).view(self.crops, len(x), CLASSES).mean(0)


@pytest.mark.parametrize("samples", [None, range(BATCH)])
def test_a_head_that_sees_a_multiple_of_the_batch_keeps_the_average(samples):
    model = compressed(Regions(), 2, level="L3")
    model.set_samples(samples)
    assert averages(model, [BATCH] * 4) == pytest.approx([2] * 4, rel=0.01)


def test_a_head_may_see_another_number_of_regions_in_every_step():
    model, found = compressed(Regions(), 2, level="L3"), []
    for number, crops in enumerate((5, 1, 8, 3, 3)):
        model.crops = crops
        found.append(train(model, pictures(seed=number)).average_bits)
    assert found == pytest.approx([2] * 5, rel=0.25)
    check_finite(model)


class Optional(nn.Module):
    """A layer that is used, once or more often, or not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle = nn.Sequential(*unit(3, 8)), nn.Sequential(*unit(8, 8))
        self.last, self.times = nn.Sequential(*unit(8, 8), *classifier(8)), 1

    def forward(self, x):
        x = self.first(x)
        for _ in range(self.times):
            x = self.middle(x)
        return self.last(x)


def test_a_layer_that_comes_back_does_not_take_more_than_its_part():
    model, found = compressed(Optional(), 2, level="L3"), []
    for number, times in enumerate((1, 1, 0, 1, 0, 0, 1, 1)):
        model.times = times
        average = train(model, pictures(seed=number)).average_bits
        if times:
            found.append(average)
    assert found == pytest.approx([2] * len(found), rel=0.01)


@pytest.mark.parametrize("bits", [1.5, 2])
def test_a_layer_that_is_used_several_times_keeps_the_average(bits: float):
    model = compressed(Optional(), bits, level="L3")
    model.times = 3
    assert averages(model, [BATCH] * 4) == pytest.approx([bits] * 4, rel=0.01)
    check_finite(model)


@pytest.mark.parametrize("level", ["L2.5", "L3"])
def test_a_batch_of_one_trains(level: str):
    model = compressed(plain_network(), 2, level=level)
    assert averages(model, [1] * 4) == pytest.approx([2] * 4, rel=0.01)
    check_finite(model)


def test_an_input_without_a_batch_axis_trains():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(0), nn.Linear(8 * 144, CLASSES)
    model = compressed(nn.Sequential(*layers), 2, level="L3")
    model.set_samples([3])
    for number in range(4):
        model.zero_grad()
        model(pictures(1, number)[0]).square().sum().backward()
        assert model.report().average_bits <= 2.02
    check_finite(model)


def test_layers_may_be_frozen_half_way():
    model = compressed(plain_network(), 2, level="L3")
    averages(model, [BATCH] * 3)
    for parameter in model[:6].parameters():
        parameter.requires_grad_(False)
    train(model, pictures())
    # shares of the step before hold once more: frozen layers had a part of them
    assert averages(model, [BATCH] * 2) == pytest.approx([2] * 2, rel=0.01)


def test_frozen_layers_may_learn_again():
    model = compressed(plain_network(), 2, level="L3")
    model[:6].requires_grad_(False)
    averages(model, [BATCH] * 3)
    model[:6].requires_grad_(True)
    # one code now serves what two did: shares of the step before hold once more
    train(model, pictures())
    assert averages(model, [BATCH] * 2) == pytest.approx([2] * 2, rel=0.01)
    check_finite(model)


def test_a_gradient_of_the_input_alone_leaves_the_next_step_the_average():
    model, x = compressed(plain_network(), 2, level="L3"), pictures().requires_grad_()
    averages(model, [BATCH] * 3)
    torch.autograd.grad(loss_of(model, x), x)
    assert train(model, pictures()).average_bits == pytest.approx(2, rel=0.01)


def test_a_second_model_changes_nothing():
    alone, first = (compressed(plain_network(), 2, level="L3") for _ in range(2))
    second = compressed(residual_network(), 1.5, level="L3")
    for number in range(4):
        train(alone, pictures(seed=number))
        loss = loss_of(first, pictures(seed=number))
        train(second, pictures(5, number))
        first.zero_grad()
        loss.backward()
    check_equal_gradients(gradients(first), gradients(alone))


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("network", [plain_network, residual_network])
def test_a_copy_made_while_training_goes_on_like_the_original(copied, network):
    model = compressed(network(), 2, level="L3")
    model.set_samples(range(BATCH))
    averages(model, [BATCH] * 3)
    other = copied(model)
    for number in range(3):
        for each in (model, other):
            train(each, pictures(seed=number))
        check_equal_gradients(gradients(other), gradients(model))


def test_a_copy_does_not_teach_the_original():
    model = experienced(plain_network())
    before = statistics(model)
    averages(copy.deepcopy(model), [BATCH] * 3)
    assert statistics(model) == before


class Checkpointed(nn.Module):
    """A residual block that is computed anew in backward, between layers that are not."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.block, self.reentrant = nn.Sequential(*unit(3, 8)), ResidualBlock(8, 12), reentrant
        self.last = nn.Sequential(*unit(12, 8), *classifier(8))

    def forward(self, x):
        return self.last(checkpoint(self.block, self.stem(x), use_reentrant=self.reentrant))


reentrant = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])


@reentrant
@pytest.mark.parametrize("level", ["L2.5", "L3"])
def test_checkpointing_works_over_batches_of_all_sizes(reentrant: bool, level: str):
    model = compressed(Checkpointed(reentrant), 1.5, level=level)
    for number, batch in enumerate((8, 8, 3, 3, 8, 5, 1, 8)):
        train(model, pictures(batch, number))
        check_finite(model)


@reentrant
def test_checkpointing_gives_the_gradient_of_eight_bits(reentrant: bool):
    network = Checkpointed(reentrant)
    model = compressed(network, 8, level="L3")
    for number in range(3):
        for each in (model, network):
            each.zero_grad()
            loss_of(each, pictures(seed=number)).backward()
        for found, exact in zip(gradients(model), gradients(network), strict=True):
            assert (found - exact).norm() <= 0.03 * exact.norm() + 1e-4


def test_a_block_that_is_computed_anew_has_the_same_widths():
    model = compressed(Checkpointed(False), 2, level="L3")
    averages(model, [BATCH] * 3)
    with Widths(model) as widths:
        train(model, pictures())
    repeated = {name: codes for name, codes in widths.of.items() if name.startswith("block.") and len(codes) > 1}
    assert repeated
    assert all(codes[0] == codes[1] for codes in repeated.values())


@reentrant
def test_several_forwards_before_a_backward_may_be_checkpointed(reentrant: bool):
    class Whole(nn.Module):
        """A network that is computed anew from end to end."""

        def __init__(self) -> None:
            super().__init__()
            self.network = residual_network()

        def forward(self, x):
            return checkpoint(self.network, x.requires_grad_(), use_reentrant=reentrant)

    model = compressed(Whole(), 1.5, level="L3")
    for number in range(3):
        model.zero_grad()
        sum(loss_of(model, pictures(batch, number)) for batch in (8, 3, 5)).backward()
        check_finite(model)


def test_a_retained_graph_gives_the_same_gradient_again():
    model = experienced(plain_network())
    loss, wanted = loss_of(model, pictures(seed=5)), list(model.parameters())
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    check_equal_gradients(list(torch.autograd.grad(loss, wanted)), list(first))


def test_two_backwards_through_one_graph_keep_the_average():
    model, found = compressed(plain_network(), 2, level="L3"), []
    for number in range(4):
        model.zero_grad()
        loss = loss_of(model, pictures(seed=number))
        loss.backward(retain_graph=True)
        loss.backward()
        found.append(model.report().average_bits)
    assert found == pytest.approx([2] * 4, rel=0.01)


def test_accumulated_gradients_keep_the_average():
    model = compressed(plain_network(), 2, level="L3")
    for _ in range(3):
        model.zero_grad()
        for number in range(3):
            loss_of(model, pictures(seed=number)).backward()
            assert model.report().average_bits == pytest.approx(2, rel=0.01)


def size_of(state: object) -> int:
    return len(pickle.dumps(state))


def test_forwards_without_backward_do_not_grow_a_model():
    model = experienced(plain_network())
    for number in range(RENEWED):
        model(pictures(seed=number % 3))
    # maps were measured anew by now, and a BatchNorm remembers the measurement before until a backward
    before = size_of(model._session)
    for number in range(200):
        model(pictures(seed=number % 3))
    # counters of codes grow by a byte now and then
    assert size_of(model._session) <= before + 100


def test_steps_do_not_grow_a_model():
    model = experienced(plain_network(), steps=10)
    before = size_of(model._session)
    averages(model, [BATCH] * 50)
    model(pictures())
    assert size_of(model._session) <= 1.1 * before


def test_evaluation_between_steps_changes_no_gradient():
    def run(evaluate: bool) -> list[torch.Tensor]:
        model = compressed(plain_network(), 2, level="L3")
        for number in range(4):
            train(model, pictures(seed=number))
            if evaluate:
                model.eval()
                with torch.no_grad():
                    model(pictures(5, 9))
                model.train()
        return gradients(model)

    check_equal_gradients(run(evaluate=True), run(evaluate=False))


def test_a_layer_made_by_hand_does_not_remember_every_step():
    actnn.set_optimization_level("L3")
    layer, sizes = actnn.QLinear(300, 10), []
    for count in (100, 400):
        for _ in range(count):
            layer(torch.randn(4, 300)).sum().backward()
        sizes.append(size_of(layer.site.session))
    assert sizes[1] <= 1.1 * sizes[0]


def test_parts_of_a_model_that_train_alone_do_not_remember_every_step():
    model, sizes = compressed(plain_network(), 2, level="L3"), []
    for count in (100, 300):
        for _ in range(count):
            model[:2](pictures(2)).sum().backward()
        sizes.append(size_of(model._session))
    assert sizes[1] <= 1.1 * sizes[0]


def test_one_model_may_train_from_several_threads():
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 3))
    model, x = compressed(network, 2, level="L3"), torch.randn(32, 300)

    def gradient(_: int) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(model(x).square().sum(), list(model.parameters()))

    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(gradient, range(64)):
            assert all(torch.isfinite(each).all() for each in found)
