"""Widths decided while training, with what torch alone offers: memory formats, half precision, threads."""

from __future__ import annotations

import pytest
import torch
from adaptive_networks import (
    NETWORKS,
    check_equal_gradients,
    check_finite,
    gradients,
    linear_network,
    pictures,
    plain_network,
    residual_network,
    train,
    widths_of,
)
from torch import nn
from torch_layers import compressed

STEPS = 3
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def run(model: nn.Module, steps: int = STEPS) -> list[torch.Tensor]:
    """Train for some steps; return the gradients of the last one."""
    for number in range(steps):
        train(model, pictures(seed=number))
    return gradients(model)


def test_channels_last_keeps_the_average():
    model = compressed(residual_network(), 2, level="L3").to(memory_format=torch.channels_last)
    found = [
        train(model, pictures(seed=seed).contiguous(memory_format=torch.channels_last)).average_bits
        for seed in range(STEPS)
    ]
    assert found == pytest.approx([2] * STEPS, rel=0.01)
    check_finite(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_a_model_of_half_precision_keeps_the_average(dtype: torch.dtype):
    model = compressed(plain_network(), 2, level="L3").to(dtype)
    found = [train(model, pictures(seed=seed).to(dtype)).average_bits for seed in range(3)]
    assert found == pytest.approx([2] * 3, rel=0.01)
    check_finite(model)


@pytest.fixture
def threads():
    """Let a test change the number of threads."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_gradients_do_not_depend_on_the_number_of_threads(threads):
    found = []
    for count in (1, 2):
        threads(count)
        # linear layers: torch's own convolutions sum in another order with other threads
        found.append(run(compressed(linear_network(), 2, level="L3")))
    check_equal_gradients(*found)


@every_network
def test_widths_do_not_depend_on_the_number_of_threads(network, threads):
    found = []
    for count in (1, 2):
        threads(count)
        model = compressed(network(), 1.5, level="L3")
        run(model)
        found.append(widths_of(model, pictures()))
    assert found[0] == found[1]
