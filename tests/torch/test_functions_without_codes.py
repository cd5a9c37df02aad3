"""Functions that need no values in backward, or have no rule: what they keep, and that the report names the rest."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import actnn
from actnn.torch.memory import KeptBytes

Function = Callable[[Tensor], Tensor]
INDEX = torch.tensor([0, 2, 2, 1, 0, 1])

# linear functions of images: their gradients need shapes and positions
SHAPED: dict[str, Function] = {
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x.flatten(2), 5),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (5, 3)),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x.unsqueeze(1), (3, 5, 4)),
    "avg_pool1d": lambda x: F.avg_pool1d(x.flatten(2), 3, 2, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool3d": lambda x: F.avg_pool3d(x.unsqueeze(1), 2),
    "pad reflect": lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"),
    "pad replicate": lambda x: F.pad(x, (1, 2, 3, 0), mode="replicate"),
    "pad circular": lambda x: F.pad(x, (1, 2, 3, 0), mode="circular"),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0)),
    "interpolate area": lambda x: F.interpolate(x, (5, 5), mode="area"),
    "interpolate bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "interpolate nearest": lambda x: F.interpolate(x, scale_factor=2),
    "cat": lambda x: torch.cat([x, x], 1),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.repeat(1, 2, 1, 1)[:, :8], 2),
}
# they keep indices, or positions within windows
INDEXED: dict[str, Function] = {
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
    "global maximum": lambda x: F.adaptive_max_pool2d(x, 1),
    "index_add": lambda x: torch.zeros(4, 3, 12, 12).index_add(1, INDEX, x, alpha=2),
    "index_add_": lambda x: torch.zeros(4, 3, 12, 12).index_add_(1, INDEX, x),
    "scatter_add": lambda x: torch.zeros(4, 6, 12, 12).scatter_add(1, INDEX[None, :, None, None].expand_as(x), x),
    "index_select": lambda x: x.index_select(1, INDEX),
}


class Calling(nn.Module):
    """A function behind something that learns."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.shift, self.function = nn.Parameter(torch.randn(6, 1, 1)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x + self.shift)


def gradient(model: nn.Module, x: Tensor) -> Tensor:
    """Return the gradient of an input."""
    x = x.clone().requires_grad_()
    y = model(x)
    (y * torch.arange(y.numel()).view(y.shape).sin()).sum().backward()
    return x.grad


@pytest.mark.parametrize("name", [*SHAPED, *INDEXED])
def test_the_gradient_is_exact(name: str):
    plain, x = Calling((SHAPED | INDEXED)[name]), torch.randn(4, 6, 12, 12)
    ours = actnn.QModule(deepcopy(plain))
    torch.testing.assert_close(ours(x), plain(x))
    torch.testing.assert_close(gradient(ours, x), gradient(plain, x))


@pytest.mark.parametrize("name", [*SHAPED, *INDEXED])
def test_nothing_but_indices_is_kept(name: str):
    model, x = actnn.QModule(Calling((SHAPED | INDEXED)[name])), torch.randn(4, 6, 12, 12)
    with KeptBytes(model) as kept:
        model(x)
    assert kept.total <= (0 if name in SHAPED else x.numel())


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("cumprod", lambda x: x.cumprod(1)),
        ("grid_sample", lambda x: F.grid_sample(x, torch.rand(4, 5, 5, 2), align_corners=False)),
        ("fft_fft2", lambda x: torch.fft.fft2(x).abs()),
        ("logsumexp", lambda x: x.logsumexp(1)),
    ],
)
def test_what_has_no_rule_is_named(name: str, function: Function):
    model = actnn.QModule(Calling(function))
    model(torch.randn(4, 6, 12, 12)).sum().backward()
    parts = model.report().whole.parts
    assert all("no rule" in part.reason for part in parts)
    assert name in {part.function for part in parts} or {part.function for part in parts} == {"abs"}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_stays_exact_and_is_counted(kind: type[nn.RNNBase]):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = kind(16, 16, 2, batch_first=True), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])

    plain, x = Recurrent(), torch.randn(4, 20, 16)
    with KeptBytes(plain) as exact:
        plain(x)
    ours = actnn.QModule(plain)
    ours(x).sum().backward()
    whole = ours.report().whole
    assert {part.layer for part in whole.parts} == {"rnn"}
    assert whole.exact_bytes == exact.total


EINSUMS = {
    "bij,bjk->bik": ((4, 30, 20), (4, 20, 25)),
    "bij,bjk": ((4, 30, 20), (4, 20, 25)),
    "...ij,...jk->...ik": ((2, 3, 30, 20), (3, 20, 25)),
    "b...d,de->b...e": ((4, 5, 6, 20), (20, 25)),
    "bij,bjk->bk": ((4, 30, 20), (4, 20, 25)),
    "bij,bkl->b": ((4, 30, 20), (4, 20, 25)),
    "bi,bj->bij": ((4, 30), (4, 25)),
    "bi,bi->b": ((40, 30), (40, 30)),
    "bij,bjk,bkl->bil": ((4, 30, 20), (4, 20, 25), (4, 25, 10)),
    "b i, b i, j -> j b": ((4, 30), (4, 30), (25,)),
}


class Summed(nn.Module):
    """An einsum of tensors that depend on parameters."""

    def __init__(self, equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        self.equation = equation
        self.own = nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum(self.equation, *(own * x for own in self.own))


@pytest.mark.parametrize("equation", EINSUMS)
def test_an_einsum_of_any_form_keeps_codes(equation: str):
    plain, x = Summed(equation, EINSUMS[equation]), torch.ones(())
    ours = actnn.QModule(deepcopy(plain), level="L2", bits=8)
    torch.testing.assert_close(ours(x), plain(x), rtol=1e-4, atol=1e-4)
    for model in (plain, ours):
        y = model(x)
        (y * torch.arange(y.numel()).view(y.shape).sin()).sum().backward()
    for found, expected in zip(ours.parameters(), plain.parameters(), strict=True):
        assert (found.grad - expected.grad).norm() < 0.02 * expected.grad.norm()
    assert not [part for part in ours.report().whole.parts if part.function == "einsum"]


def test_a_diagonal_is_left_to_torch():
    ours = actnn.QModule(Summed("ii,ij->j", ((20, 20), (20, 30))))
    ours(torch.ones(())).sum().backward()
    assert "einsum" in {part.function for part in ours.report().whole.parts}


def test_a_gated_linear_unit_keeps_codes_of_both_halves():
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map, self.unit = nn.Linear(64, 128), nn.GLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.unit(self.map(x))

    plain, x = Gated(), torch.randn(20, 64, requires_grad=True)
    ours = actnn.QModule(deepcopy(plain), level="L2", bits=8)
    for model in (plain, ours):
        model(x).square().sum().backward()
    assert (ours.map.weight.grad - plain.map.weight.grad).norm() < 0.02 * plain.map.weight.grad.norm()
    assert {"unit/mul", "unit/sigmoid"} <= {row.layer for row in ours.report().rows}


def test_googlenet_keeps_no_input_of_its_poolings():
    models = pytest.importorskip("torchvision.models")
    model = actnn.QModule(models.googlenet(init_weights=False, num_classes=10))
    output = model(torch.randn(2, 3, 64, 64))
    (output.logits.sum() + output.aux_logits1.sum()).backward()
    assert not [part for part in model.report().whole.parts if "pool" in part.function]
