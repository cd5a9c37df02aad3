"""QModule as a torch module: files that torch writes, prefixes, and what torch's methods return."""

from __future__ import annotations

import io
import pickle

import pytest
import torch
from torch import nn
from torch_layers import compressed, images, same, small_network, step


def saved_and_loaded(thing):
    """Return what comes back of a file."""
    memory = io.BytesIO()
    torch.save(thing, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=False)


def test_a_state_with_a_wrong_name_is_refused_by_name():
    with pytest.raises(RuntimeError, match="nonsense"):
        compressed(small_network()).load_state_dict({"nonsense": torch.zeros(1)})


def test_a_state_takes_a_prefix():
    names = compressed(small_network()).state_dict(prefix="model.")
    assert all(name.startswith("model.") for name in names)


@pytest.mark.parametrize(
    "way", [lambda model: pickle.loads(pickle.dumps(model)), saved_and_loaded], ids=["pickle", "torch.save"]
)
def test_a_network_from_a_file_trains_like_the_original(way):
    ours = compressed(small_network(), 2)
    step(ours, images())
    twin = way(ours)
    found, expected = step(twin, images()), step(ours, images())
    for name, gradient in expected.gradients.items():
        same(found.gradients[name], gradient, name)


def test_a_model_that_torch_saved_can_be_restored():
    network = saved_and_loaded(compressed(small_network())).restore()
    assert type(network.head) is nn.Linear


def test_a_state_from_a_file_of_weights_only_can_be_loaded():
    ours, memory = compressed(small_network()), io.BytesIO()
    torch.save(ours.state_dict(), memory)
    memory.seek(0)
    ours.load_state_dict(torch.load(memory, weights_only=True))


def test_modules_are_named_as_in_the_plain_model():
    network = small_network()
    assert [name for name, _ in compressed(network).named_modules()] == [name for name, _ in network.named_modules()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_parameters_can_be_cast(dtype):
    assert {parameter.dtype for parameter in compressed(small_network()).to(dtype).parameters()} == {dtype}


def test_train_and_eval_return_the_wrapper():
    ours = compressed(small_network())
    assert ours.eval() is ours
    assert ours.train() is ours
