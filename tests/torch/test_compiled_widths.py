"""Widths that actnn.compile plans: by what noise was measured to cost, within what a forward may keep."""

from __future__ import annotations

import pytest
import torch
from torch import _dynamo as dynamo
from torch import nn
from torch.nn import functional as F

import actnn
from actnn.torch.compiled import backend

DRAWS = 24


class Uneven(nn.Module):
    """Layers whose gradients differ much, and so does what noise in their inputs does to them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.loud, self.quiet = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.drop, self.last = nn.Dropout(0.1), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(x)))
        loud, quiet = self.loud(x).mean((2, 3)), self.quiet(F.avg_pool2d(x, 2)).mean((2, 3))
        return self.last(self.drop(loud + 0.01 * quiet))


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """Let graphs run as they are traced: the compiler behind them is for other tests."""
    dynamo.reset()
    monkeypatch.setattr(backend, "compile_inner", backend.interpret_inner)
    torch.manual_seed(0)


@pytest.fixture
def batch():
    return torch.randn(16, 3, 16, 16), torch.randint(5, (16,))


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def noise(compiled: nn.Module, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> list[float]:
    """Return the variance of the gradient of each weight relative to its square; dropout has no part in it."""
    weights, draws = [each for each in model.parameters() if each.dim() > 1], []
    for _ in range(DRAWS):
        torch.manual_seed(1)
        draws.append(torch.autograd.grad(loss_of(compiled, batch), weights))
    found = [torch.stack(each) for each in zip(*draws, strict=True)]
    return [float(each.var(0).sum() / each.mean(0).square().sum()) for each in found]


def test_planned_widths_differ_have_less_noise_and_keep_no_more(batch):
    model = Uneven()
    fixed, planned = actnn.compile(model, bits=2), actnn.compile(model, level="L3", bits=2)
    measured = planned.calibrate(lambda: loss_of(planned, batch))
    assert max(noise(planned, model, batch)) < 0.5 * max(noise(fixed, model, batch))
    before, after = fixed.report(), planned.report()
    assert measured.kept_bytes == before.kept_bytes
    assert 0.9 * before.kept_bytes <= after.kept_bytes <= before.kept_bytes
    assert len({code.form.bits for code in after.graphs[0].codes}) > 1


def test_a_calibration_leaves_the_model_and_the_generator_as_they_were(batch):
    model = Uneven()
    planned = actnn.compile(model, level="L3", bits=2)
    loss_of(model, batch).backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    before = torch.get_rng_state()
    planned.calibrate(lambda: loss_of(planned, batch))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(parameter.grad, grad) for parameter, grad in zip(model.parameters(), grads, strict=True))


def test_a_memory_budget_is_spent_and_not_exceeded(batch):
    model = Uneven()
    planned = actnn.compile(model, memory="60kB")
    planned.calibrate(lambda: loss_of(planned, batch))
    loss_of(planned, batch).backward()
    assert 55_000 < planned.report().kept_bytes <= 60_000


def test_a_budget_that_holds_no_code_is_refused_and_tells_the_least(batch):
    planned = actnn.compile(Uneven(), memory="1kB")
    with pytest.raises(actnn.BudgetError, match="expected at least") as refused:
        planned.calibrate(lambda: loss_of(planned, batch))
    assert refused.value.budget == 1000
    enough = actnn.compile(Uneven(), memory=refused.value.smallest)
    enough.calibrate(lambda: loss_of(enough, batch))


def test_a_plan_serves_batches_of_other_sizes(batch):
    planned = actnn.compile(Uneven(), level="L3", bits=2)
    planned.calibrate(lambda: loss_of(planned, batch))
    for part in (batch, tuple(each[:8] for each in batch)):
        loss_of(planned, part).backward()
    large, small = planned.report().graphs
    widths = [{code.of: code.form.bits for code in graph.codes} for graph in (large, small)]
    assert widths[1].items() <= widths[0].items()


def test_training_before_a_calibration_is_refused_and_evaluation_is_not(batch):
    planned = actnn.compile(Uneven(), level="L3")
    with pytest.raises(actnn.SessionError, match="calibrate"):
        planned(batch[0])
    with torch.no_grad():
        planned.eval()(batch[0])


def test_what_cannot_be_planned_is_refused(batch):
    with pytest.raises(actnn.ConfigError, match="only 'L3'"):
        actnn.compile(Uneven(), level="L2", memory="1GB")
    with pytest.raises(actnn.ConfigError, match="level='L3'"):
        actnn.compile(Uneven()).calibrate(lambda: torch.zeros(()))
    with pytest.raises(actnn.UnsupportedError, match="expected the loss"):
        actnn.compile(Uneven(), level="L3").calibrate(lambda: torch.zeros(()))
