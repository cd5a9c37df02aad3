"""Widths that actnn.compile plans: by what noise was measured to cost, within what a forward may keep."""

from __future__ import annotations

import pytest
import torch
from torch import _dynamo as dynamo
from torch import fx, nn
from torch.nn import functional as F

import actnn
from actnn.torch.compiled import GraphReport, backend
from actnn.torch.memory import KeptBytes

DRAWS = 24
# as it is before ``quickly`` takes its place
COMPILE_INNER = backend.compile_inner


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


class NormBesideLinear(nn.Module):
    """A tensor of which a normalisation has one code, and a linear layer another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)
        self.quiet = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(self.norm(x)) + 1e-3 * self.quiet(x)


class TwoWays(nn.Module):
    """A model that computes something else when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, short: bool) -> torch.Tensor:
        x = F.relu(self.first(x))
        return (x if short else F.gelu(self.second(x))).square().mean()


class Broken(nn.Module):
    """Blocks that torch compiles once and calls for each, since the graph breaks in them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Block(nn.Module):
    """A layer behind a break of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.layer(x))
        dynamo.graph_break()
        return x


class Averaging(nn.Module):
    """A model that puts another tensor in the place of its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("average", torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return F.gelu(self.layer(x - self.average))


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


def widths_of(graph: GraphReport) -> dict[str, int]:
    return {code.of: code.form.bits for code in graph.codes}


def test_a_plan_serves_batches_of_other_sizes(batch):
    planned = actnn.compile(Uneven(), level="L3", bits=2)
    planned.calibrate(lambda: loss_of(planned, batch))
    for part in (batch, tuple(each[:8] for each in batch)):
        loss_of(planned, part).backward()
    large, small = (widths_of(graph) for graph in planned.report().graphs)
    assert len(set(large.values())) > 1
    assert small == large


def test_two_codes_of_one_tensor_have_a_width_each():
    model, x = NormBesideLinear(), torch.randn(64, 64)
    planned = actnn.compile(model, memory="5kB")
    planned.calibrate(lambda: planned(x).square().mean())
    planned(x).square().mean().backward()
    (graph,) = planned.report().graphs
    widths = widths_of(graph)
    assert len(widths) == len(graph.codes)
    # one tensor goes to the normalisation, and with hardly any weight to the linear layer
    (tensor,) = {name.partition("#")[0] for name in widths if name.endswith("#1")}
    assert widths[f"{tensor}#0"] != widths[f"{tensor}#1"]
    assert graph.kept_bytes <= 5000


def test_a_step_that_a_calibration_has_not_seen_is_refused_until_it_has():
    model, x = TwoWays(), torch.randn(64, 64)
    planned = actnn.compile(model, level="L3", bits=2)
    planned.calibrate(lambda: planned(x, True))
    planned(x, True).backward()
    with pytest.raises(actnn.SessionError, match="calibrate has not seen"):
        planned(x, False)
    with torch.no_grad():
        planned(x, False)
    planned.calibrate(lambda: planned(x, True) + planned(x, False))
    planned(x, False).backward()


def test_a_code_that_only_a_larger_batch_has_is_refused():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2), nn.Softplus(), nn.Linear(2, 64))
    small, large = torch.randn(8, 64), torch.randn(512, 64)
    planned = actnn.compile(model, level="L3", bits=2)
    planned.calibrate(lambda: planned(small).square().mean())
    with pytest.raises(actnn.SessionError, match="again"):
        planned(large)
    # one step may have batches of both forms, and graphs of one structure then share their widths
    planned.calibrate(lambda: planned(large).square().mean() + planned(small).square().mean())
    for x in (large, small):
        planned(x).square().mean().backward()
    first, second = (widths_of(graph) for graph in planned.report().graphs)
    assert second.items() < first.items()


def test_a_batch_that_would_keep_more_than_the_memory_is_refused(batch):
    planned = actnn.compile(Uneven(), memory="60kB")
    planned.calibrate(lambda: loss_of(planned, batch))
    for _ in range(3):
        loss_of(planned, batch).backward()
    twice = tuple(torch.cat([each, each]) for each in batch)
    seen = planned.norm.num_batches_tracked.clone()
    with pytest.raises(actnn.SessionError, match="memory=60000 would keep"):
        loss_of(planned, twice)
    assert torch.equal(planned.norm.num_batches_tracked, seen)
    with torch.no_grad():
        planned(twice[0])


def test_a_graph_that_a_forward_calls_again_is_counted_again():
    model, x = Broken(), torch.randn(64, 64)
    planned = actnn.compile(model, memory="12kB")
    planned.calibrate(lambda: planned(x).square().mean())
    with KeptBytes(model) as kept:
        output = planned(x)
    output.square().mean().backward()
    # torch compiles the first block, whose input has no gradient, and one other
    assert planned.report().kept_bytes < 7000
    assert 10_000 < kept.total <= 12_000


def test_a_gradient_that_is_not_finite_is_refused(batch):
    model = Uneven()
    planned = actnn.compile(model, level="L3")
    with pytest.raises(actnn.UnsupportedError, match=r"'first\.weight' that is not finite"):
        planned.calibrate(lambda: loss_of(planned, batch) * float("inf"))


def test_a_calibration_brings_back_a_buffer_that_a_forward_replaces():
    model, x = Averaging(), torch.randn(64, 64)
    planned, before = actnn.compile(model, level="L3", bits=2), model.average
    planned.calibrate(lambda: planned(x).square().mean())
    assert model.average is before
    assert torch.equal(before, torch.zeros(64))


def test_calibrating_often_does_not_reach_the_limit_of_compilations():
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), torch.randn(64, 64)
    planned = actnn.compile(model, level="L3", bits=2)
    with dynamo.config.patch(recompile_limit=2):
        for _ in range(2):
            planned.calibrate(lambda: planned(x).square().mean())
            planned(x).square().mean().backward()


def test_a_structure_tells_what_reads_what_and_constants_but_no_sizes():
    def traced(function):
        return backend.structure_of(fx.symbolic_trace(function))

    whole = traced(lambda x, y: (x.sin() * x).view(8, -1))
    assert whole == traced(lambda x, y: (x.sin() * x).view(16, -1))
    assert whole != traced(lambda x, y: (x.sin() * y).view(8, -1))
    assert traced(lambda x: F.dropout(x, 0.1)) != traced(lambda x: F.dropout(x, 0.2))
    assert traced(lambda x: F.relu(x, inplace=True)) != traced(lambda x: F.relu(x, inplace=False))


def test_a_structure_has_no_addresses():
    def structure() -> str:
        def local(x: torch.Tensor) -> torch.Tensor:
            return x

        graph = fx.Graph()
        graph.output(graph.call_function(local, (graph.placeholder("x"),)))
        return backend.structure_of(fx.GraphModule({}, graph))

    assert structure() == structure()


def test_inductor_compiles_planned_widths_to_the_same_step(monkeypatch):
    model, x = NormBesideLinear(), torch.randn(64, 64)
    found = []
    for inner in (backend.interpret_inner, COMPILE_INNER):
        monkeypatch.setattr(backend, "compile_inner", inner)
        planned = actnn.compile(model, memory="5kB")
        planned.calibrate(lambda planned=planned: planned(x).square().mean())
        grads = torch.autograd.grad(planned(x).square().mean(), list(model.parameters()))
        found.append((widths_of(*planned.report().graphs), grads))
    (widths, interpreted), (again, compiled) = found
    assert widths == again
    assert len(set(widths.values())) > 1
    for one, other in zip(interpreted, compiled, strict=True):
        assert (one - other).norm() <= 1e-3 * one.norm()


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
