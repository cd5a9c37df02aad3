"""Widths decided while training, with what torch alone offers: memory formats, half precision, threads."""

from __future__ import annotations

import pytest
import torch
from planned_networks import (
    NETWORKS,
    check_all_finite,
    linear_network,
    pictures,
    plain_network,
    residual_network,
    run,
    train,
    widths_of,
)
from steps import check_equal_gradients
from torch_framework import FRAMEWORK

STEPS = 3
LAST = torch.channels_last
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def test_channels_last_keeps_the_average():
    model = FRAMEWORK.compressed(residual_network(FRAMEWORK), 2, level="L3").to(memory_format=LAST)
    batches = [FRAMEWORK.tensor(pictures(seed=seed)).contiguous(memory_format=LAST) for seed in range(STEPS)]
    found = [train(FRAMEWORK, model, x).average_bits for x in batches]
    assert found == pytest.approx([2] * STEPS, rel=0.01)
    check_all_finite(FRAMEWORK, model)


def test_a_model_of_half_precision_keeps_the_average():
    model = FRAMEWORK.compressed(plain_network(FRAMEWORK), 2, level="L3").bfloat16()
    batches = [FRAMEWORK.tensor(pictures(seed=seed)).bfloat16() for seed in range(STEPS)]
    found = [train(FRAMEWORK, model, x).average_bits for x in batches]
    assert found == pytest.approx([2] * STEPS, rel=0.01)
    check_all_finite(FRAMEWORK, model)


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
        found.append(run(FRAMEWORK, FRAMEWORK.compressed(linear_network(FRAMEWORK), 2, level="L3")))
    check_equal_gradients(*found)


@every_network
def test_widths_do_not_depend_on_the_number_of_threads(network, threads):
    found = []
    for count in (1, 2):
        threads(count)
        model = FRAMEWORK.compressed(network(FRAMEWORK), 1.5, level="L3")
        run(FRAMEWORK, model)
        found.append(widths_of(FRAMEWORK, model, pictures()))
    assert found[0] == found[1]
