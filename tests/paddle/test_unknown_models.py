"""Models of Paddle's users, each unlike the others: they train right at 8 bits and keep far less at the default."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import paddle
import pytest
from frameworks import vector
from paddle import Tensor, nn
from paddle.nn import functional as F
from paddle_framework import FRAMEWORK
from steps import distance

import actnn.paddle as actnn

WIDTH = 64


class Gates(nn.Layer):
    """A recurrent cell by hand: gates in a loop over time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        state, states = paddle.zeros([x.shape[0], WIDTH]), []
        for given in self.inner(x).unbind(1):
            reset, update, new = given.chunk(3, -1)
            of_reset, of_update, of_new = self.outer(state).chunk(3, -1)
            update = F.sigmoid(update + of_update)
            state = update * state + (1 - update) * paddle.tanh(new + F.sigmoid(reset + of_reset) * of_new)
            states.append(state)
        return self.head(paddle.stack(states, 1).mean(1))


class Diffusing(nn.Layer):
    """A block of a diffusion model: GroupNorm, SiLU, a shift by time, InstanceNorm and attention over pixels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.inside, self.time = nn.Conv2D(3, width, 3, padding=1), nn.Linear(16, width)
        self.first, self.second = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.conv, self.qkv = nn.Conv2D(width, width, 3, padding=1), nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.instance_norm(self.inside(x))
        steps = paddle.arange(x.shape[0], dtype="float32").unsqueeze(1) / paddle.arange(1, 17, dtype="float32")
        h = F.silu(self.first(x)) + self.time(paddle.sin(steps)).unsqueeze(-1).unsqueeze(-1)
        x = x + self.conv(F.silu(self.second(h)))
        rows = x.flatten(2).transpose([0, 2, 1])
        query, key, value = self.qkv(rows).chunk(3, -1)
        attended = F.scaled_dot_product_attention(*(part.unsqueeze(2) for part in (query, key, value)))
        return self.head((rows + attended.squeeze(2)).mean(1))


class Bilinear(nn.Layer):
    """Einsums, a gated unit and a parameter that a module multiplies by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = self.create_parameter([WIDTH, 2 * WIDTH])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        mixed = F.glu(paddle.einsum("btc,cd->btd", self.norm(x), self.mix))
        weights = F.softmax(paddle.einsum("btc,bsc->bts", mixed, self.norm(mixed)) / 8)
        return self.head(x + paddle.einsum("bts,bsc->btc", weights, mixed)).mean(1)


def tokens() -> Tensor:
    return paddle.randn([8, 40, WIDTH])


def images() -> Tensor:
    return paddle.randn([8, 3, 16, 16])


MODELS: dict[str, tuple[Callable[[], nn.Layer], Callable[[], Tensor]]] = {
    "gates": (Gates, tokens),
    "diffusion": (Diffusing, images),
    "einsums": (Bilinear, tokens),
}
each = pytest.mark.parametrize("name", MODELS)


def made(name: str) -> tuple[nn.Layer, Tensor]:
    paddle.seed(0)
    build, batch = MODELS[name]
    return FRAMEWORK.training(build()), batch()


def gradients(model: nn.Layer, x: Tensor) -> dict[str, np.ndarray]:
    """Return the gradients of one step."""
    FRAMEWORK.clear(model)
    F.cross_entropy(model(x), paddle.arange(len(x)) % 10).backward()
    return {name: own.grad.numpy().copy() for name, own in model.named_parameters()}


@each
def test_an_unknown_model_trains_right_at_eight_bits(name: str):
    plain, x = made(name)
    ours = actnn.QModule(deepcopy(plain), level="L2", bits=8)
    np.testing.assert_allclose(FRAMEWORK.array(ours(x)), FRAMEWORK.array(plain(x)), rtol=1e-4, atol=1e-5)
    for _ in range(2):
        expected, found = vector(gradients(plain, x)), vector(gradients(ours, x))
        assert distance(found, expected) < 0.01 * np.linalg.norm(expected)


@each
def test_an_unknown_model_keeps_at_least_five_times_less_at_the_default(name: str):
    plain, x = made(name)
    exact = FRAMEWORK.saved_bytes(plain, lambda: plain(x))
    ours = actnn.QModule(plain)
    for _ in range(2):
        gradients(ours, x)
    assert exact > 5 * FRAMEWORK.saved_bytes(ours, lambda: ours(x)), str(ours.report())
