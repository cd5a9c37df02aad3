"""Training that goes on from a saved session: the same gradients, bit for bit, as if it had never stopped."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import torch
from planned_networks import NETWORKS, pictures
from torch import nn
from torch.nn import functional as F
from torch_framework import FRAMEWORK

import actnn
from actnn.settings import LEVELS

CLASSES = 4
# what is measured now and then is measured again in between
STEPS_BEFORE, STEPS_AFTER = 7, 6


class Run:
    """A model with its optimizer."""

    def __init__(self, network: str, samples: bool = False, **options) -> None:
        model = NETWORKS[network](FRAMEWORK)
        self.model = actnn.QModule(model, **options)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.samples = samples

    def steps(self, numbers: range) -> None:
        for number in numbers:
            # the batch changes its size now and then
            x = FRAMEWORK.tensor(pictures(seed=number))[: 5 if number % 4 == 3 else None]
            if self.samples:
                self.model.set_samples(torch.arange(len(x)) * 2 + number % 3)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(x), torch.arange(len(x)) % CLASSES).backward()
            self.optimizer.step()

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            self.model(FRAMEWORK.tensor(pictures(seed=99)))
        self.model.train()

    def state(self) -> list:
        """Return what a checkpoint holds, after its way through a file."""
        file = io.BytesIO()
        torch.save([self.model.state_dict(), self.optimizer.state_dict(), self.model.session_state()], file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    def load(self, state: list) -> None:
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])
        self.model.load_session_state(state[2])

    def weights(self) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in self.model.state_dict().values()]


def check_going_on(evaluate: bool = False, **options) -> None:
    """Raise AssertionError unless a run that was saved and loaded ends as one that was not."""
    first, second = Run(**options), Run(**options)
    first.steps(range(STEPS_BEFORE))
    if evaluate:
        first.evaluate()
    second.load(first.state())
    for run in (first, second):
        run.steps(range(STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER))
    for expected, found in zip(first.weights(), second.weights(), strict=True):
        assert torch.equal(expected, found)
    # which steps are counted depends on how many the process took
    reports = [replace(run.model.report(), whole=None) for run in (first, second)]
    assert str(reports[0]) == str(reports[1])


@pytest.mark.parametrize("level", LEVELS)
def test_training_goes_on_bit_for_bit_at_every_level(level):
    check_going_on(network="residual", level=level)


@pytest.mark.parametrize("network", NETWORKS)
def test_training_goes_on_bit_for_bit_with_every_network(network):
    check_going_on(network=network, level="L3", samples=True)


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_a_memory_budget_goes_on_bit_for_bit(level):
    check_going_on(network="residual", level=level, memory="230KB", samples=True)


def test_an_evaluation_in_between_changes_nothing():
    check_going_on(network="residual", level="L3", evaluate=True)


def test_without_the_state_of_its_session_a_run_ends_differently():
    first, second = Run("residual", level="L3"), Run("residual", level="L3")
    first.steps(range(STEPS_BEFORE))
    model, optimizer, _ = first.state()
    second.model.load_state_dict(model)
    second.optimizer.load_state_dict(optimizer)
    for run in (first, second):
        run.steps(range(STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER))
    assert not all(map(torch.equal, first.weights(), second.weights()))


def test_a_model_of_other_layers_is_refused():
    saved = actnn.QModule(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), level="L2")
    other = actnn.QModule(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), level="L2")
    with pytest.raises(actnn.SessionError, match="Convert the same model"):
        other.load_session_state(saved.session_state())
