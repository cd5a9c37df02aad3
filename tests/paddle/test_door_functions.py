"""What the functional door of Paddle knows beside transformers: norms, pooling, and classes that users register."""

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
from steps import distance, same

import actnn
import actnn.paddle as front_end

CHANNELS = 6
Gradients = dict[str, np.ndarray]


class Calling(nn.Layer):
    """A map, a function that the model's own code calls, and what reads it."""

    def __init__(self, function: Callable[[nn.Layer, Tensor], Tensor], **parts: nn.Layer) -> None:
        super().__init__()
        self.map, self.function = nn.Linear(20, 20), function
        for name, part in parts.items():
            self.add_sublayer(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.map(x))


def batch(axes: int = 2) -> Tensor:
    shape = [8, CHANNELS, *[20] * axes]
    return paddle.to_tensor(np.random.default_rng(axes).standard_normal(shape, np.float32))


def converted(plain: nn.Layer, bits: int = 8) -> actnn.QModule:
    model = FRAMEWORK.compressed(deepcopy(plain), bits)
    assert isinstance(model, actnn.QModule)
    return model


def gradients(model: nn.Layer, x: Tensor) -> Gradients:
    """Return the gradients of parameters and input, by a loss that weighs every output differently."""
    FRAMEWORK.clear(model)
    leaf = x.detach()
    leaf.stop_gradient = False
    y = model(leaf)
    weights = paddle.cos(paddle.arange(y.size, dtype="float32")).reshape(y.shape)
    (y * weights).sum().backward()
    # Paddle's statistics are among the parameters of its layers
    learnt = {name: own.grad.numpy() for name, own in model.named_parameters() if own.grad is not None}
    return learnt | {"input": leaf.grad.numpy()}


def sites(model: actnn.QModule) -> set[str]:
    return {row.layer for row in model.report().rows}


def check_trains(plain: nn.Layer, x: Tensor, site: str, tolerance: float = 0.02) -> actnn.QModule:
    """Raise unless a converted copy computes the same output, and its gradients from a code of the site."""
    model = converted(FRAMEWORK.training(plain))
    expected, found = gradients(plain, x), gradients(model, x)
    assert site in sites(model)
    assert found.keys() == expected.keys()
    # a bias before a norm has no gradient but what rounding leaves of it
    whole = np.linalg.norm(vector(expected)) / len(expected)
    for name, gradient in expected.items():
        assert distance(found[name], gradient) <= tolerance * max(np.linalg.norm(gradient), whole), name
    return model


def test_batch_norm_as_a_function_keeps_a_code_and_averages_its_statistics():
    norm = nn.BatchNorm2D(CHANNELS)
    plain = Calling(
        lambda model, x: F.batch_norm(
            *(x, model.norm._mean, model.norm._variance, model.norm.weight, model.norm.bias), training=model.training
        ),
        norm=norm,
    )
    initial, x = deepcopy(plain), batch()
    model = check_trains(plain, x, "model/batch_norm")
    for name in ("_mean", "_variance"):
        averaged = getattr(plain.norm, name).numpy()
        assert not np.allclose(averaged, getattr(initial.norm, name).numpy())
        np.testing.assert_allclose(getattr(model.norm, name).numpy(), averaged, rtol=1e-5, atol=1e-6)
    for each in (model, plain):
        FRAMEWORK.evaluating(each)
    np.testing.assert_allclose(model(x).numpy(), plain(x).numpy(), rtol=1e-5, atol=1e-5)


def test_batch_norm_as_a_function_takes_channels_that_are_last():
    plain = Calling(
        lambda model, x: F.batch_norm(x, model.norm._mean, model.norm._variance, training=True, data_format="NHWC"),
        norm=nn.BatchNorm2D(20, weight_attr=False, bias_attr=False),
    )
    check_trains(plain, batch(), "model/batch_norm")


def test_batch_norm_by_running_statistics_is_left_to_paddle():
    def fixed(model: nn.Layer, x: Tensor) -> Tensor:
        return F.batch_norm(x, model.norm._mean, model.norm._variance, training=True, use_global_stats=True)

    plain, x = Calling(fixed, norm=nn.BatchNorm2D(CHANNELS, weight_attr=False, bias_attr=False)), batch()
    expected, model = gradients(FRAMEWORK.training(plain), x), converted(plain)
    same(gradients(model, x)["input"], expected["input"])
    assert "model/batch_norm" not in sites(model)


class OwnBatchNorm(nn.BatchNorm2D):
    """A subclass, which conversion leaves what it is."""


class OwnLayerNorm(nn.LayerNorm):
    """Another one."""


@pytest.mark.parametrize(
    ("layer", "site"), [(OwnBatchNorm(CHANNELS), "norm/batch_norm"), (OwnLayerNorm(20), "norm/layer_norm")]
)
def test_what_subclasses_of_norms_call_is_served(layer: nn.Layer, site: str):
    check_trains(Calling(lambda model, x: model.norm(x), norm=layer), batch(), site)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("adaptive", [False, True], ids=["windows", "adaptive"])
def test_max_pooling_keeps_positions_alone_whatever_its_rank(rank: int, adaptive: bool):
    name = f"{'adaptive_' * adaptive}max_pool{rank}d"
    plain, x = Calling(lambda model, x: getattr(F, name)(x, 4)), batch(rank)
    expected, model = gradients(FRAMEWORK.training(plain), x), converted(plain)
    found = gradients(model, x)
    (row,) = (row for row in model.report().rows if row.layer == f"model/max_pool{rank}d")
    # three planes of positions in windows of 4 or 5, an element of the output; more with more axes
    assert 0 < row.kept_bytes < row.exact_bytes / 2
    same(found["input"], expected["input"])


def test_pooling_to_windows_of_different_sizes_is_left_to_paddle():
    plain, x = Calling(lambda model, x: F.adaptive_max_pool2d(x, 7)), batch()
    expected, model = gradients(FRAMEWORK.training(plain), x), converted(plain)
    same(gradients(model, x)["input"], expected["input"])
    assert sites(model) == {"map"}


class HandMadeGELU(nn.Layer):
    """A smooth function in small pieces."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + paddle.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


@pytest.mark.parametrize("register", [actnn.register, front_end.register], ids=["actnn", "actnn.paddle"])
def test_a_registered_class_is_one_operation(register: Callable[..., None]):
    class Registered(HandMadeGELU):
        pass

    plain, x = Calling(lambda model, x: model.act(x), act=Registered()), batch()
    register(Registered, lambda layer, x: F.gelu(x, approximate=True))
    model = check_trains(plain, x, "act/gelu")
    assert sites(model) == {"map", "act/gelu"}
    assert "forward" not in vars(model.restore().act)


def test_a_class_that_nobody_registered_runs_as_it_is_written():
    model = converted(Calling(lambda model, x: model.act(x), act=HandMadeGELU()))
    gradients(model, batch())
    assert "act/tanh" in sites(model)


@pytest.mark.parametrize(
    ("kind", "function", "complaint"),
    [(F.relu, F.relu, "expected a class of paddle layers"), (HandMadeGELU, None, "expected a function of the layer")],
)
def test_registering_what_is_no_layer_or_no_function_is_refused(kind: object, function: object, complaint: str):
    with pytest.raises(actnn.ConfigError, match=complaint):
        front_end.register(kind, function)
