"""Activations and dropout write over inputs that nobody reads again, and over no others."""

from __future__ import annotations

import pytest
import torch
from overwriting import both, step
from torch import nn


class Perceptron(nn.Module):
    """Linear layers with an activation and a dropout between."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.activation = nn.Linear(6, 32), activation
        self.drop, self.second = nn.Dropout(0.3), nn.Linear(32, 3)
        self.addresses = []

    def forward(self, x):
        x = self.first(x)
        self.addresses.append(x.data_ptr())
        x = self.activation(x)
        self.addresses.append(x.data_ptr())
        x = self.drop(x)
        self.addresses.append(x.data_ptr())
        return self.second(x)


ACTIVATIONS = (
    *(nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.LeakyReLU(-0.2), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish()),
    *(nn.Hardswish(), nn.Hardsigmoid(), nn.Sigmoid(), nn.Tanh(), nn.ELU(), nn.ELU(inplace=True)),
)


@pytest.mark.parametrize("shape", [(32, 6), (4, 8, 6)], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_activations_and_dropout_write_over_their_input(activation, shape):
    def run(model, x):
        model._model.addresses.clear()
        torch.manual_seed(4)
        results = step(model, x)
        assert (len(set(model.addresses)) == 1) == model._session.policy.overwrite
        return results

    if isinstance(activation, nn.ELU) and activation.inplace:
        both(Perceptron(activation), torch.randn(shape))
    else:
        both(Perceptron(activation), torch.randn(shape), run=run)


class ActivationReadAgain(Perceptron):
    def forward(self, x):
        before = self.first(x)
        after = self.activation(before)
        dropped = self.drop(after)
        return self.second(dropped + after * before)


@pytest.mark.parametrize("activation", ACTIVATIONS[:-1], ids=str)
def test_an_input_of_an_activation_that_is_read_again_is_left_alone(activation):
    def run(model, x):
        torch.manual_seed(4)
        return step(model, x)

    both(ActivationReadAgain(activation), torch.randn(4, 8, 6), run=run)
