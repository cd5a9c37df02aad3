"""actnn.save and actnn.load: what they bring back, and what they refuse. Runs that were killed: tests/integrations."""

from __future__ import annotations

import inspect
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch_framework import same_tensors

import actnn
from actnn.errors import ConfigError, SessionError


def model() -> nn.Module:
    torch.manual_seed(0)
    return actnn.QModule(nn.Sequential(nn.Linear(300, 4), nn.ReLU(), nn.Linear(4, 2)), level="L3")


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 300)).square().sum().backward()
        optimizer.step()


def test_training_goes_on_bit_for_bit(tmp_path):
    whole = model()
    optimizer = torch.optim.AdamW(whole.parameters())
    train(whole, optimizer)
    actnn.save(tmp_path / "run.pt", whole, optimizer=optimizer, epoch=3)
    train(whole, optimizer)
    parts = model()
    optimizer = torch.optim.AdamW(parts.parameters())
    assert actnn.load(tmp_path / "run.pt", parts, optimizer=optimizer) == {"epoch": 3}
    train(parts, optimizer)
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        same_tensors(one, other)


def test_generators_of_torch_numpy_and_python_go_on_where_they_were(tmp_path):
    net = model()
    actnn.save(tmp_path / "run.pt", net)
    drawn = torch.rand(1).item(), np.random.rand(), random.random()
    actnn.load(tmp_path / "run.pt", net)
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == drawn


def test_a_failed_save_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    net = model()
    actnn.save(tmp_path / "run.pt", net, epoch=1)
    with pytest.raises(AttributeError):
        actnn.save(tmp_path / "run.pt", net, epoch=lambda: 2)
    assert actnn.load(tmp_path / "run.pt", net) == {"epoch": 1}


def test_a_model_that_was_not_converted_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="pass what QModule returned"):
        actnn.save(tmp_path / "run.pt", nn.Linear(2, 2))


def test_a_part_that_was_not_saved_is_named(tmp_path):
    net = model()
    actnn.save(tmp_path / "run.pt", net)
    with pytest.raises(ConfigError, match="holds no state of 'optimizer'"):
        actnn.load(tmp_path / "run.pt", net, optimizer=torch.optim.SGD(net.parameters(), 0.1))


def test_a_name_that_a_checkpoint_needs_itself_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be named 'rest'"):
        actnn.save(tmp_path / "run.pt", model(), rest=1)


@pytest.mark.parametrize("content", [b"", b"nothing"], ids=["empty", "something else"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content):
    (tmp_path / "run.pt").write_bytes(content)
    with pytest.raises(SessionError, match="cannot be read"):
        actnn.load(tmp_path / "run.pt", model())


def test_another_file_of_torch_is_refused(tmp_path):
    torch.save({"weights": 1}, tmp_path / "run.pt")
    with pytest.raises(SessionError, match="not a checkpoint of actnn"):
        actnn.load(tmp_path / "run.pt", model())


def test_the_class_of_a_converted_model_has_a_forward_that_trainers_can_ask():
    net = model()
    assert "args" in inspect.signature(type(net).forward).parameters
    x = torch.randn(2, 300)
    same_tensors(type(net).forward(net, x), net(x))
