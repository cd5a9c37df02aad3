"""``config.other_bits`` in torch: what stays exact, checkpointing, hooks of others, memory budgets and precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

import actnn

WIDTH, ROWS = 128, 64


class Calling(nn.Module):
    """A function between two maps."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), function

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.function(self.first(x)))


def converted(model: nn.Module, level: str = "L2") -> actnn.QModule:
    actnn.set_optimization_level(level)
    actnn.config.other_bits = 8
    return actnn.QModule(model)


def saved(model: actnn.QModule, x: Tensor) -> set[str]:
    """Return the functions of which what they saved was coded in a step."""
    model(x).square().sum().backward()
    return {row.kind for row in model.report().rows if row.layer.endswith(".saved")}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / (x * x + 1),
        lambda x: (x * x + 1).log(),
        lambda x: (x * x + 1) ** -0.5,
        lambda x: (x * x + 1).rsqrt(),
    ],
)
def test_what_a_gradient_divides_by_stays_exact(function: Callable[[Tensor], Tensor]):
    model = converted(Calling(function))
    assert saved(model, torch.randn(ROWS, WIDTH)) <= {"mul"}
    assert any(
        "div" in part.function or part.function in ("log", "pow", "rsqrt") for part in model.report().whole.parts
    )


def test_a_square_keeps_a_code():
    assert saved(converted(Calling(lambda x: x**2)), torch.randn(ROWS, WIDTH)) == {"pow"}


def test_small_tensors_and_what_the_user_holds_stay():
    x = torch.randn(ROWS, WIDTH)
    assert saved(converted(Calling(lambda h: h[:2].sin())), x) == set()

    class Masked(Calling):
        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) * x

    assert saved(converted(Masked(torch.sin)), x) == set()


class Cube(Function):
    """A function of a user."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * grad


def test_functions_of_users_are_served():
    assert saved(converted(Calling(Cube.apply)), torch.randn(ROWS, WIDTH)) == {"function"}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks_are_computed_anew_as_they_were(reentrant: bool):
    plain, x = Calling(torch.sin), torch.randn(ROWS, WIDTH, requires_grad=True)
    plain(x).square().sum().backward()
    expected = plain.first.weight.grad.clone()

    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = plain

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, x, use_reentrant=reentrant)

    actnn.config.activation_compression_bits = [8]
    ours = actnn.QModule(Cut(), level="L2", bits=8)
    ours.zero_grad()
    ours(x).square().sum().backward()
    assert (plain.first.weight.grad - expected).norm() < 0.02 * expected.norm()


def test_hooks_of_others_stay_in_force():
    model, x = converted(Calling(torch.sin)), torch.randn(ROWS, WIDTH)
    with save_on_cpu():
        model(x).square().sum().backward()
    assert not [row for row in model.report().rows if row.layer.endswith(".saved")]


def test_gradients_may_be_asked_for_twice_and_under_autocast():
    model, x = converted(Calling(torch.sin)), torch.randn(ROWS, WIDTH)
    loss = model(x).square().sum()
    loss.backward(retain_graph=True)
    once = model.first.weight.grad.clone()
    loss.backward()
    torch.testing.assert_close(model.first.weight.grad, 2 * once)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(x).float().square().sum()
    loss.backward()
    assert (model.first.weight.grad - once).norm() < 0.5 * once.norm()


def test_a_memory_budget_counts_them():
    actnn.set_optimization_level("L3")
    actnn.config.other_bits = 8
    model, x = actnn.QModule(Calling(torch.sin), memory="24KB"), torch.randn(ROWS, WIDTH)
    for _ in range(4):
        model(x).square().sum().backward()
    report = model.report()
    assert report.whole.kept_bytes <= 24_000 * 1.024
    assert {row.layer: row.bits for row in report.rows}["model/sin.saved"] == 8


@pytest.mark.parametrize("level", ["L4", "L5"])
def test_their_codes_wait_where_others_do(level: str):
    plain, x = Calling(torch.sin), torch.randn(ROWS, WIDTH)
    plain(x).square().sum().backward()
    expected = plain.first.weight.grad.clone()
    plain.zero_grad()
    ours = converted(plain, level)
    ours(x).square().sum().backward()
    assert (plain.first.weight.grad - expected).norm() < 0.5 * expected.norm()
    assert "model/sin.saved" in {row.layer for row in ours.report().rows}
