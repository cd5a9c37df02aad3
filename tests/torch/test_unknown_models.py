"""Models of users, each unlike the others: they train right at 8 bits and keep far less at the default."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import actnn
from actnn.torch.memory import KeptBytes


class Experts(nn.Module):
    """A mixture of experts: tokens are sorted out by index, mapped, and put back weighted."""

    def __init__(self, width: int = 64, experts: int = 4, most: int = 2) -> None:
        super().__init__()
        self.router, self.most = nn.Linear(width, experts, bias=False), most
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) / math.sqrt(4 * width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(x).flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(self.most, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(rows)
        for expert in range(len(self.up)):
            row, slot = (chosen == expert).nonzero(as_tuple=True)
            own = rows.index_select(0, row)
            y = F.gelu(own @ self.up[expert]) @ self.down[expert]
            mixed.index_add_(0, row, y * weights[row, slot].unsqueeze(-1))
        return self.head(x + mixed.view_as(x)).mean(1)


class Gates(nn.Module):
    """A recurrent cell by hand: gates in a loop over time, and a state that is stacked."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width, bias=False)
        self.first, self.head = nn.Parameter(torch.zeros(width)), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        state, states = self.first.expand(len(x), -1), []
        for given in self.inner(x).unbind(1):
            reset, update, new = given.chunk(3, -1)
            of_reset, of_update, of_new = self.outer(state).chunk(3, -1)
            reset, update = torch.sigmoid(reset + of_reset), torch.sigmoid(update + of_update)
            state = update * state + (1 - update) * torch.tanh(new + reset * of_new)
            states.append(state)
        return self.head(torch.stack(states, 1).mean(1))


class UNet(nn.Module):
    """Convolutions down and up in functional calls, with padding, pooling, interpolation and concatenation."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inside, self.down = nn.Conv2d(3, width, 3), nn.Conv2d(width, 2 * width, 3, padding=1)
        self.below, self.up = nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.Conv2d(3 * width, width, 3, padding=1)
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(F.instance_norm(self.inside(F.pad(x, (1, 1, 1, 1), mode="reflect"))), 0.1)
        small = F.relu(self.down(F.max_pool2d(x, 2)))
        small = F.relu(self.below(F.avg_pool2d(small, 2)), inplace=True)
        large = F.interpolate(small, scale_factor=4, mode="bilinear", align_corners=False)
        return self.head(F.silu(self.up(torch.cat([x, large], 1)))).mean((2, 3))


class Diffusing(nn.Module):
    """A block of a diffusion model: GroupNorm, SiLU, a shift and a scale by time, and attention over pixels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.inside, self.time = nn.Conv2d(3, width, 3, padding=1), nn.Linear(16, 2 * width)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.qkv, self.out, self.head = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inside(x)
        steps = torch.arange(len(x), device=x.device)[:, None] / torch.arange(1, 17)
        shift, scale = self.time(steps.sin())[:, :, None, None].chunk(2, 1)
        h = self.convs[0](F.silu(self.norms[0](x)))
        x = x + self.convs[1](F.silu(self.norms[1](h) * (1 + scale) + shift))
        query, key, value = self.qkv(self.norms[2](x)).flatten(2).transpose(1, 2).chunk(3, -1)
        attended = F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None])
        x = x + self.out(attended.squeeze(1).transpose(1, 2).reshape(x.shape))
        return self.head(x.mean((2, 3)))


class Graph(nn.Module):
    """Messages along the edges of a graph, gathered by index, and a spectral norm."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.message, self.gate = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.update = nn.utils.parametrizations.spectral_norm(nn.Linear(2 * width, width))
        self.norm, self.head = nn.BatchNorm1d(width), nn.Linear(width, 10)
        edges = torch.Generator().manual_seed(0)
        self.register_buffer("edges", torch.randint(60, (2, 240), generator=edges))

    def forward(self, x: Tensor) -> Tensor:
        batch, nodes, width = x.shape
        source, target = self.edges
        for _ in range(2):
            pairs = torch.cat([x[:, source], x[:, target]], -1)
            messages = torch.sigmoid(self.gate(pairs)) * F.softplus(self.message(pairs))
            gathered = torch.zeros_like(x).index_add(1, target, messages)
            x = x + F.elu(self.update(torch.cat([x, gathered], -1)))
            x = self.norm(x.reshape(-1, width)).view(batch, nodes, width)
        return self.head(x.amax(1))


class Mixed(nn.Module):
    """Tokens mixed by a Fourier transform, and a weight that is normalised in each forward."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.up = nn.utils.parametrizations.weight_norm(nn.Linear(width, 4 * width))
        self.down, self.head = nn.Linear(4 * width, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x + torch.fft.fft2(x).real)
        return self.head(self.norms[1](x + self.down(F.gelu(self.up(x)))).mean(1))


def tokens(width: int, count: int = 60) -> Callable[[], Tensor]:
    return lambda: torch.randn(8, count, width)


def images() -> Tensor:
    return torch.randn(8, 3, 32, 32)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "experts": (Experts, tokens(64)),
    "gates": (Gates, tokens(96, 24)),
    "unet": (UNet, images),
    "diffusion": (Diffusing, images),
    "graph": (Graph, tokens(64)),
    "fourier": (Mixed, tokens(64)),
}
each = pytest.mark.parametrize("name", MODELS)


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, batch = MODELS[name]
    return build(), batch()


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the gradients of one step."""
    model.zero_grad(set_to_none=True)
    y = model(x)
    F.cross_entropy(y, torch.arange(len(y)) % y.shape[1]).backward()
    return {name: own.grad.clone() for name, own in model.named_parameters()}


def whole(found: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in found.values()])


@each
def test_an_unknown_model_trains_right_at_eight_bits(name: str):
    plain, x = made(name)
    ours = actnn.QModule(deepcopy(plain), level="L2", bits=8)
    torch.testing.assert_close(ours(x), plain(x), rtol=1e-4, atol=1e-5)
    for _ in range(3):
        expected, found = gradients(plain, x), gradients(ours, x)
        assert (whole(found) - whole(expected)).norm() < 0.01 * whole(expected).norm()


@each
def test_an_unknown_model_keeps_at_least_five_times_less_at_the_default(name: str):
    plain, x = made(name)
    with KeptBytes(plain) as exact:
        plain(x)
    ours = actnn.QModule(plain)
    for _ in range(3):
        gradients(ours, x)
    with KeptBytes(ours) as kept:
        ours(x)
    assert exact.total > 5 * kept.total, str(ours.report())
