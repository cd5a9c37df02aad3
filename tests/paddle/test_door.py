"""The functional door of Paddle: what a model's own code calls is served like the layers of the library."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import paddle
import pytest
from frameworks import vector
from paddle import Tensor, nn
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional as F
from paddle.vision import models
from paddle_framework import FRAMEWORK
from paddle_transformers import CLASSES, LENGTH, WIDTH, WORDS, TextEncoder, VisionTransformer
from steps import check_equal_gradients, distance
from z_tests import check_unbiased

import actnn.paddle as actnn

# a step of a transformer takes Paddle a tenth of a second
SAMPLES, REPEATS = 8, 70
Gradients = dict[str, np.ndarray]


def images(size: int = 32) -> Tensor:
    return paddle.randn([SAMPLES, 3, size, size])


def sentences() -> Tensor:
    return paddle.randint(0, WORDS, [SAMPLES, LENGTH])


NETWORKS: dict[str, tuple[Callable[[], nn.Layer], Callable[[], Tensor]]] = {
    "vision transformer": (VisionTransformer, images),
    "text encoder": (TextEncoder, sentences),
    "mobilenet_v3_small": (lambda: models.mobilenet_v3_small(num_classes=CLASSES), lambda: images(96)),
}
each = pytest.mark.parametrize("name", NETWORKS)


def made(name: str = "vision transformer") -> tuple[nn.Layer, Tensor]:
    """Return a network in training, and a batch for it."""
    paddle.seed(1)
    build, batch = NETWORKS[name]
    return FRAMEWORK.training(build()), batch()


def gradients(model: nn.Layer, x: Tensor) -> Gradients:
    """Return the gradients of one step, dropout drawn from a fixed seed."""
    paddle.seed(2)
    FRAMEWORK.clear(model)
    F.cross_entropy(model(x), paddle.arange(len(x)) % CLASSES).backward()
    return {name: own.grad.numpy().copy() for name, own in model.named_parameters() if own.grad is not None}


def output(model: nn.Layer, x: Tensor) -> np.ndarray:
    """Return what a forward computes."""
    paddle.seed(2)
    return FRAMEWORK.array(model(x))


def kept_bytes(model: nn.Layer, x: Tensor) -> int:
    """Return what autograd keeps of a forward."""
    return FRAMEWORK.saved_bytes(model, lambda: model(x))


def converted(model: nn.Layer, bits: int, **options: object) -> actnn.QModule:
    """Return a model at a fixed width."""
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [bits]
    return actnn.QModule(model, **options)


def functions() -> list[object]:
    """Return some of what the door replaces while it is open."""
    return [F.gelu, F.softmax, paddle.matmul, paddle.Tensor.__mul__, paddle.Tensor.reshape, paddle.tensor.matmul]


PLAIN = functions()


def check_closed() -> None:
    """Raise unless all functions are Paddle's own."""
    assert all(found is own for found, own in zip(functions(), PLAIN, strict=True))


@each
def test_a_network_trains_right_at_eight_bits(name: str):
    plain, x = made(name)
    expected, forward = gradients(plain, x), output(plain, x)
    ours = converted(deepcopy(plain), 8)
    for _ in range(2):
        found = gradients(ours, x)
    np.testing.assert_allclose(output(ours, x), forward, rtol=1e-5, atol=1e-5 * np.abs(forward).max())
    assert found.keys() == expected.keys()
    assert distance(vector(found), vector(expected)) < 0.02 * np.linalg.norm(vector(expected))


@each
def test_a_network_keeps_an_eighth_of_the_bytes_at_the_default(name: str):
    plain, x = made(name)
    exact = kept_bytes(plain, x)
    ours = actnn.QModule(plain, level="L3")
    for _ in range(2):
        gradients(ours, x)
    assert exact > 8 * kept_bytes(ours, x)
    assert ours.report().ratio > 8


@pytest.mark.parametrize("name", ["vision transformer", "text encoder"])
def test_level_swap_has_the_plain_gradient_though_tensors_are_views(name: str):
    plain, x = made(name)
    expected = gradients(plain, x)
    check_equal_gradients(gradients(actnn.QModule(deepcopy(plain), level="swap"), x), expected)


def test_level_swap_has_the_plain_gradient_of_parts_of_a_tensor():
    class Parts(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.map(x).unbind(0)
            return first * second

    plain, x = Parts(), paddle.randn([2, 50, WIDTH])
    expected = squared(plain, x)
    check_equal_gradients(squared(actnn.QModule(plain, level="swap"), x), expected)


@each
def test_level_zero_and_evaluation_are_plain_paddle_bit_for_bit(name: str):
    plain, x = made(name)
    expected = gradients(plain, x)
    check_equal_gradients(gradients(actnn.QModule(deepcopy(plain), level="L0"), x), expected)
    ours = FRAMEWORK.evaluating(actnn.QModule(deepcopy(plain), level="L3"))
    np.testing.assert_array_equal(output(ours, x), output(FRAMEWORK.evaluating(plain), x))


# noise of the upper block reaches the lower one: a third would show nothing else
@pytest.mark.parametrize("build", [VisionTransformer, TextEncoder])
def test_the_mean_gradient_of_a_transformer_is_exact(build: type[nn.Layer]):
    paddle.seed(1)
    plain, x = FRAMEWORK.training(build(blocks=2)), (images() if build is VisionTransformer else sentences())[:4]
    exact = gradients(plain, x)
    ours = converted(deepcopy(plain), 4)
    draws = [gradients(ours, x) for _ in range(REPEATS)]
    for parameter in ("head.weight", *(own for own in exact if own.endswith(("down.weight", "linear2.weight")))):
        check_unbiased(np.stack([found[parameter] for found in draws]), exact[parameter])


def test_sites_are_named_by_layer_function_and_ordinal():
    ours, x = converted(made()[0], 2), images()
    gradients(ours, x)
    names = {row.layer for row in ours.report().rows}
    assert {"blocks.0/matmul", "blocks.0/matmul#2", "blocks.1/softmax", "blocks.2/gelu"} <= names


def test_an_encoder_layer_is_served_though_it_holds_its_activation():
    plain, x = made("text encoder")
    ours = converted(plain, 2)
    gradients(ours, x)
    names = {row.layer for row in ours.report().rows}
    assert {"encoder.layers.0/gelu", "encoder.layers.0.self_attn/scaled_dot_product_attention.query"} <= names
    ours.restore()
    assert plain.encoder.layers[0].activation is F.gelu


class Checkpointed(nn.Layer):
    """A network whose blocks are computed anew in backward."""

    def __init__(self, network: VisionTransformer, reentrant: bool) -> None:
        super().__init__()
        self.network, self.reentrant = network, reentrant

    def forward(self, x: Tensor) -> Tensor:
        own = self.network
        x = own.patches(x).flatten(2).transpose([0, 2, 1])
        for block in own.blocks:
            x = recompute(block, x, use_reentrant=self.reentrant)
        return own.head(own.norm(x).mean(1))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_block_is_computed_anew_through_the_door(reentrant: bool):
    plain, x = made()
    expected = gradients(Checkpointed(plain, reentrant), x)
    ours = converted(Checkpointed(plain, reentrant), 8)
    found = gradients(ours, x)
    assert distance(vector(found), vector(expected)) < 0.02 * np.linalg.norm(vector(expected))
    assert any(row.layer == "network.blocks.0/gelu" for row in ours.report().rows)
    check_closed()


def test_what_is_named_exact_is_left_to_paddle():
    plain, x = made()
    ours = converted(plain, 2, exact=["blocks.0"])
    gradients(ours, x)
    names = [row.layer for row in ours.report().rows]
    assert any(name.startswith("blocks.1/") for name in names)
    assert not any(name.startswith("blocks.0") for name in names)


def test_restore_gives_the_plain_model_back():
    plain, x = made()
    expected, exact = gradients(plain, x), kept_bytes(plain, x)
    ours = converted(plain, 2)
    gradients(ours, x)
    assert ours.restore() is plain
    assert kept_bytes(plain, x) == exact
    assert not any("forward" in vars(layer) for layer in plain.sublayers(include_self=True))
    check_equal_gradients(gradients(plain, x), expected)


def test_a_copy_has_a_door_of_its_own():
    ours, x = converted(made("text encoder")[0], 2), sentences()
    gradients(ours, x)
    other = deepcopy(ours)
    check_equal_gradients(gradients(other, x), gradients(ours, x))
    other.restore()
    assert kept_bytes(other._model, x) > 3 * kept_bytes(ours, x)


def test_a_function_that_a_layer_holds_can_be_pickled():
    ours = converted(made("text encoder")[0], 2)
    held = ours.encoder.layers[0].activation
    assert pickle.loads(pickle.dumps(held)).function is F.gelu


class Failing(nn.Layer):
    """A layer that fails in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        F.gelu(self.inner(x))
        raise ValueError("on purpose")


def test_a_forward_that_fails_puts_all_functions_back():
    ours = converted(nn.Sequential(nn.Linear(WIDTH, WIDTH), Failing()), 2)
    with pytest.raises(ValueError, match="on purpose"):
        ours(paddle.randn([SAMPLES, WIDTH]))
    check_closed()


def test_functions_are_replaced_only_while_a_layer_runs():
    seen: list[bool] = []
    plain, x = made()
    plain.blocks[0].register_forward_post_hook(lambda *_: seen.append(functions() == PLAIN))
    ours = converted(plain, 2)
    gradients(ours, x)
    assert seen == [False]
    check_closed()


def test_another_thread_computes_as_ever_meanwhile():
    found: list[Tensor] = []

    def outside() -> None:
        h = paddle.randn([SAMPLES, 300])
        h.stop_gradient = False
        # replaced for the process, but not for this thread
        found.append(F.gelu(h) * h)

    class Waiting(nn.Layer):
        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=outside)
            thread.start()
            thread.join()
            return F.gelu(x)

    ours = converted(nn.Sequential(nn.Linear(WIDTH, WIDTH), Waiting()), 2)
    ours(paddle.randn([SAMPLES, WIDTH])).sum().backward()
    assert [row.layer for row in ours.report().rows] == ["0", "1/gelu"]
    found[0].sum().backward()
    check_closed()


def test_models_within_models_have_sites_of_their_own():
    inner = converted(VisionTransformer(1), 2)

    class Outer(nn.Layer):
        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(inner(F.sigmoid(x) * x))

    outer, x = converted(nn.Sequential(nn.Conv2D(3, 3, 1), Outer()), 2), images()
    outer(x).sum().backward()
    assert {"1/sigmoid", "1/gelu"} <= {row.layer for row in outer.report().rows}
    assert not any(row.layer.startswith("blocks") for row in outer.report().rows)
    assert "blocks.0/softmax" in {row.layer for row in inner.report().rows}
    check_closed()


class OwnRMSNorm(nn.Layer):
    """A norm as language models in Paddle write it out."""

    def __init__(self, power: float = -0.5) -> None:
        super().__init__()
        self.weight = self.create_parameter([WIDTH], default_initializer=nn.initializer.Uniform(0.5, 1.5))
        self.variance_epsilon, self.power = 1e-6, power

    def forward(self, hidden_states: Tensor) -> Tensor:
        variance = hidden_states.astype("float32").pow(2).mean(-1, keepdim=True)
        return (variance + self.variance_epsilon).pow(self.power) * hidden_states * self.weight


def test_a_norm_that_is_written_out_is_one_operation():
    paddle.seed(8)
    plain, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), OwnRMSNorm(), nn.Linear(WIDTH, 3)), paddle.randn([20, 30, WIDTH])
    exact = squared(plain, x)
    ours = converted(deepcopy(plain), 8)
    found = squared(ours, x)
    assert "1/rms_norm" in {row.layer for row in ours.report().rows}
    for name, gradient in exact.items():
        assert distance(found[name], gradient) < 0.02 * np.linalg.norm(gradient), name


def test_a_norm_that_is_not_what_its_name_says_is_left_to_paddle():
    ours = converted(nn.Sequential(nn.Linear(WIDTH, WIDTH), OwnRMSNorm(-1.0)), 8)
    squared(ours, paddle.randn([20, WIDTH]))
    assert "1/rms_norm" not in {row.layer for row in ours.report().rows}


class Gated(nn.Layer):
    """A product of two functions of one tensor: their codes are not independent."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.second(F.sigmoid(h) * paddle.tanh(h))


class Product(nn.Layer):
    """A product of independent codes, which the map behind it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * self.other(x))


def squared(model: nn.Layer, x: Tensor) -> Gradients:
    """Return the gradients of a sum."""
    FRAMEWORK.clear(model)
    model(x).sum().backward()
    return {name: own.grad.numpy().copy() for name, own in model.named_parameters()}


@pytest.mark.parametrize("kind", [Gated, Product])
def test_the_gradient_behind_a_product_is_unbiased(kind: type[nn.Layer]):
    paddle.seed(3)
    plain, x = kind(), paddle.randn([SAMPLES, WIDTH])
    exact = squared(plain, x)
    ours = converted(deepcopy(plain), 4)
    draws = [squared(ours, x) for _ in range(300)]
    for name, gradient in exact.items():
        check_unbiased(np.stack([found[name] for found in draws]), gradient)


@pytest.mark.parametrize("transpose_x", [False, True])
@pytest.mark.parametrize("transpose_y", [False, True])
def test_a_product_of_matrices_has_the_plain_gradients(transpose_x: bool, transpose_y: bool):
    class Multiplied(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(40, 40), nn.Linear(40, 40)

        def forward(self, x: Tensor) -> Tensor:
            return paddle.matmul(self.one(x), self.other(x[:1]), transpose_x, transpose_y)

    paddle.seed(4)
    plain, x = Multiplied(), paddle.randn([SAMPLES, 40, 40])
    exact = squared(plain, x)
    found = squared(converted(deepcopy(plain), 8), x)
    for name, gradient in exact.items():
        assert distance(found[name], gradient) < 0.02 * np.linalg.norm(gradient), name


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout_p": 0.3}, {"scale": 0.1}], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_attention_has_the_plain_gradients_at_eight_bits(options: dict[str, object], masked: bool):
    class Attention(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.bias = self.create_parameter([1, 4, 40, 40])

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = self.qkv(x).reshape([SAMPLES, 40, 3, 4, WIDTH // 4]).unbind(2)
            mask = self.bias if masked and "is_causal" not in options else None
            return F.scaled_dot_product_attention(query, key, value, mask, **options).square()

    paddle.seed(5)
    plain, x = Attention(), paddle.randn([SAMPLES, 40, WIDTH])
    ours = converted(deepcopy(plain), 8)
    results = []
    for model in (plain, ours):
        paddle.seed(6)
        FRAMEWORK.clear(model)
        model(x).sum().backward()
        results.append({n: own.grad.numpy() for n, own in model.named_parameters() if own.grad is not None})
    expected, found = results
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert distance(found[name], gradient) < 0.02 * np.linalg.norm(gradient), name


LOSSES = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"ignore_index": 3},
    {"label_smoothing": 0.1},
    {"soft_label": True},
    {"weight": np.linspace(0.5, 2, 300, dtype=np.float32)},
]


@pytest.mark.parametrize("options", LOSSES, ids=lambda options: "-".join(options) or "plain")
def test_cross_entropy_is_that_of_paddle(options: dict[str, object]):
    options = {name: paddle.to_tensor(value) if name == "weight" else value for name, value in options.items()}
    label = paddle.randint(0, 10, [SAMPLES, 5])
    if "soft_label" in options:
        label = F.softmax(paddle.randn([SAMPLES, 5, 300]))
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [8]
    found = []
    for layer in (nn.CrossEntropyLoss(**options), actnn.QCrossEntropyLoss(**options)):
        paddle.seed(7)
        x = paddle.randn([SAMPLES, 5, 300])
        x.stop_gradient = False
        loss = layer(x, label)
        loss.sum().backward()
        found.append((loss.numpy(), x.grad.numpy()))
    (expected, exact), (ours, gradient) = found
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    assert distance(gradient, exact) < 0.02 * np.linalg.norm(exact)


class OtherRMSNorm(nn.Layer):
    """A norm that is named like one over the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = self.create_parameter([WIDTH]), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_a_report_tells_why_a_class_is_not_what_its_name_says():
    model = actnn.QModule(nn.Sequential(nn.Linear(WIDTH, WIDTH), OtherRMSNorm()))
    model(paddle.randn([4, WIDTH])).sum().backward()
    ((layer, kind, reason),) = model.report().left_exact
    assert (layer, kind) == ("1", "OtherRMSNorm")
    assert "computed something else" in reason
