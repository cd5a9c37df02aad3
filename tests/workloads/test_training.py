"""The training loop that all commands share: learning rates, order of images, random numbers, and going on."""

from __future__ import annotations

import pytest
import torch
from small_classifiers import with_dropout

from actnn.errors import ConfigError
from actnn.workloads.datasets import DataSet, Part
from actnn.workloads.tasks.classification import check_scores
from actnn.workloads.training import Recipe, Training, compressed


def images(count: int, seed: int = 0) -> Part:
    generator = torch.Generator().manual_seed(seed)
    return Part(torch.randn(count, 1, 16, 16, generator=generator), torch.arange(count) % 3)


def training(level: str | None = None, **options) -> Training:
    torch.manual_seed(0)
    model = with_dropout(3, 1)
    if level is not None:
        model = compressed(model, level)
    return Training(model, DataSet(images(20), images(9, 1), 3), batch=8, steps=9, **options)


def weights(training: Training) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in training.model.state_dict().values()]


@pytest.mark.parametrize(("warm_up", "steps"), [(0.1, 20), (0.1, 100), (0.3, 7), (0.3, 20), (0.5, 7), (0.5, 100)])
def test_rates_are_those_of_torchs_one_cycle(warm_up, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=steps, pct_start=warm_up, cycle_momentum=False
    )
    expected = []
    for _ in range(steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(expected) < steps:
            cycle.step()
    recipe = Recipe(rate=0.1, warm_up=warm_up)
    assert [recipe.rate_of(step, steps) for step in range(steps)] == pytest.approx(expected)


@pytest.mark.parametrize("steps", [1, 2, 10])
def test_without_warm_up_rates_fall_from_the_first_step(steps):
    rates = [Recipe(rate=0.1, warm_up=0.0).rate_of(step, steps) for step in range(steps)]
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] <= rates[0] <= 0.1


def test_an_epoch_shows_every_image_once_in_an_order_of_its_own():
    seen = []
    run = training(before_step=seen.append)
    for _ in range(2):
        run.epoch()
    orders = [torch.cat(seen[:3]).tolist(), torch.cat(seen[3:]).tolist()]
    assert orders[0] != orders[1]
    for order in orders:
        assert sorted(order) == list(range(20))


@pytest.mark.parametrize("level", [None, "L0", "L3"])
def test_trainings_in_turns_do_not_change_each_other(level):
    alone, first, second = (training(level) for _ in range(3))
    alone.epoch()
    while not first.epoch_is_over:
        first.advance()
        second.advance()
    for one, other, another in zip(weights(alone), weights(first), weights(second), strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, another)


def test_an_evaluation_leaves_the_mode_as_it_was():
    run = training()
    accuracy = run.score()
    assert 0 <= accuracy <= 1
    assert run.model.training
    run.model.eval()
    run.score()
    assert not run.model.training


@pytest.mark.parametrize("level", [None, "L3"])
def test_a_training_goes_on_from_its_state_in_the_middle_of_an_epoch(level):
    whole, first, second = (training(level) for _ in range(3))
    for _ in range(2):
        whole.epoch()
    first.epoch()
    first.advance()
    second.load_state_dict(first.state_dict())
    assert (second.epoch_number, second.done, second.taken) == (1, 1, 4)
    second.epoch()
    assert all(map(torch.equal, weights(second), weights(whole)))


@pytest.mark.parametrize(
    "scores", [torch.zeros(4, 3, 2), torch.zeros(3, 3), torch.zeros(4, 2), torch.zeros(4), (torch.zeros(4, 3),)]
)
def test_a_model_that_is_no_classifier_is_refused(scores):
    with pytest.raises(ConfigError, match="expected a classifier"):
        check_scores(scores, 4, 3)
