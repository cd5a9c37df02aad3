"""One code per activation: who shares it, when it may be trusted, and that gradients stay unbiased."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from frameworks import Framework, Model, numbers, vector
from steps import check_equal_gradients, close, distance
from z_tests import check_unbiased

CHANNELS = 8

# Paddle's ReLU never works in place
in_place = pytest.mark.parametrize(
    ("framework", "inplace"),
    [("torch", True), ("torch", False), ("paddle", False)],
    indirect=["framework"],
    ids=["torch in place", "torch", "paddle"],
)


def residual(framework: Framework, inplace: bool = True) -> Model:
    """Return a small residual network with in-place operations and some last gammas of zero, as ResNets have."""
    layer = framework.layer
    network = framework.wired(
        join_residual,
        stem=layer("Conv2d", 3, CHANNELS, 3, padding=1, bias=False),
        stem_norm=layer("BatchNorm2d", CHANNELS),
        conv1=layer("Conv2d", CHANNELS, CHANNELS, 3, padding=1, bias=False),
        norm1=layer("BatchNorm2d", CHANNELS),
        conv2=layer("Conv2d", CHANNELS, CHANNELS, 3, padding=1, bias=False),
        norm2=layer("BatchNorm2d", CHANNELS),
        relu=layer("ReLU", inplace=inplace),
        head=layer("Conv2d", CHANNELS, 4, 1),
    )
    framework.initialised(network)
    framework.assign(network.norm2.weight, np.repeat([0.0, 1.0], CHANNELS // 2).astype(np.float32))
    framework.assign(network.norm1.weight, numbers((CHANNELS,), 11))
    framework.assign(network.norm1.bias, numbers((CHANNELS,), 12))
    return network


def join_residual(model: Model, x):
    x = model.relu(model.stem_norm(model.stem(x)))
    out = model.relu(model.norm1(model.conv1(x)))
    out = model.norm2(model.conv2(out))
    out = out.add_(x)
    return model.head(model.relu(out)).mean((2, 3))


def gradient(framework: Framework, model: Model, run) -> np.ndarray:
    """Return all gradients of one run as a vector."""
    framework.clear(model)
    run(model).backward(retain_graph=True)
    return vector(framework.gradients(model))


def check_gradients(
    framework: Framework, model: Model, run, repeats: int = 300, allowance: float = 0.02, **settings: object
) -> None:
    """Raise unless the mean gradient over many keys is the exact one.

    A BatchNorm of more than 1024 values a channel has a bias; ``allowance`` bounds it relative to the largest gradient.
    """
    exact = gradient(framework, deepcopy(model), run)
    noisy = framework.compressed(model, **{"bits": 2, **settings})
    samples = np.stack([gradient(framework, noisy, run) for _ in range(repeats)])
    check_unbiased(samples, exact, allowance=allowance * float(np.abs(exact).max()))


def batch(framework: Framework, samples: int = 6, size: int = 12):
    """Return images, the same in every test."""
    return framework.tensor(numbers((samples, 3, size, size), 7))


def loss_of(framework: Framework, x):
    """Return a run: the model's loss on ``x``."""
    return lambda model: framework.cross_entropy(model(x), np.arange(len(x)) % 4)


def mean_square(x):
    return lambda model: model(x).square().mean()


def rows_of(framework: Framework, model: Model, x=None) -> dict[str, object]:
    """Take a step; return the rows of its report by layer."""
    model(batch(framework) if x is None else x).sum().backward()
    return {row.layer: row for row in model.report().rows}


def row(framework: Framework, *kinds: tuple) -> Model:
    """Return layers in a row, with parameters from a seed."""
    return framework.initialised(framework.sequential(*(framework.layer(*kind) for kind in kinds)))


@in_place
@pytest.mark.parametrize("bits", [1, 2])
def test_a_residual_network_with_shared_codes_is_unbiased(framework: Framework, inplace: bool, bits: int):
    check_gradients(framework, residual(framework, inplace), loss_of(framework, batch(framework)), bits=bits)


def test_forward_is_exact_up_to_rounding_with_shared_codes(framework: Framework):
    model, x = residual(framework), batch(framework)
    found, expected = (framework.array(each(x)) for each in (framework.compressed(model, 2), model))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@in_place
def test_one_code_serves_batch_norm_relu_and_convolution(framework: Framework, inplace: bool):
    relu = framework.layer("ReLU", inplace=inplace)
    layers = framework.layer("Conv2d", 3, 8, 3), framework.layer("BatchNorm2d", 8), relu
    model = framework.compressed(framework.sequential(*layers, framework.layer("Conv2d", 8, 4, 1)), 2)
    rows = rows_of(framework, model)
    assert rows["1"].readers == ("2", "3")
    assert "2" not in rows
    assert "3" not in rows


def fork(model: Model, x):
    x = model.stem(x)
    return model.left(x) + model.right(x)


def test_an_activation_read_by_several_layers_has_one_row(framework: Framework):
    left, right = (framework.layer("Conv2d", 8, 4, 1) for _ in range(2))
    network = framework.wired(fork, stem=framework.layer("Conv2d", 3, 8, 3), left=left, right=right)
    rows = rows_of(framework, framework.compressed(network, 2))
    assert rows["left"].readers == ("right",)
    assert "right" not in rows


def test_the_report_counts_what_is_kept(framework: Framework):
    model, x = framework.compressed(residual(framework), 2), batch(framework)
    model(x).sum().backward()
    kept = framework.saved_bytes(model, lambda: model(x))
    # the mean keeps a shape only
    assert kept == model.report().kept_bytes


def addition(model: Model, x):
    out = model.norm(model.conv(x))
    out = out.add_(3 * model.skip(x))
    return model.head(model.relu(out)).mean((2, 3))


def test_an_addition_in_place_invalidates_the_tag(framework: Framework):
    """It keeps the tensor object: a tag without a version check would give ReLU the mask of before."""
    layer = framework.layer
    network = framework.wired(
        addition,
        conv=layer("Conv2d", 3, 8, 3, padding=1),
        norm=layer("BatchNorm2d", 8),
        relu=layer("ReLU"),
        head=layer("Conv2d", 8, 4, 1),
        skip=layer("Conv2d", 3, 8, 1),
    )
    model, run = framework.initialised(network), loss_of(framework, batch(framework))
    reference = gradient(framework, deepcopy(model), run)
    close(gradient(framework, framework.compressed(model), run), reference, 0.02)


def test_a_tensor_that_outlives_the_step_is_coded_anew(framework: Framework):
    """Frozen noise would make every later step repeat the error of the first."""
    held = framework.layer("Conv2d", 3, 8, 3)(batch(framework))
    head = framework.compressed(row(framework, ("Conv2d", 8, 4, 1)), 2)
    first, second = (gradient(framework, head, mean_square(held)) for _ in range(2))
    assert not np.array_equal(first, second)


def test_the_input_batch_is_coded_anew_in_every_step(framework: Framework):
    model, x = framework.compressed(row(framework, ("Conv2d", 3, 8, 3)), 2), batch(framework)
    first, second = (gradient(framework, model, mean_square(x)) for _ in range(2))
    assert not np.array_equal(first, second)


GAMMAS = {
    "zero": [0.0, 0.0, 0.0, 0.0],
    "negative": [-1.0, -0.5, -2.0, -0.1],
    "tiny": [1e-8, -1e-8, 1e-20, -1e-30],
    "mixed": [1.0, -1.0, 0.0, 1e-6],
}


def set_norm(framework: Framework, norm: Model, gamma: list[float], beta: float) -> None:
    framework.assign(norm.weight, np.array(gamma, np.float32))
    framework.assign(norm.bias, np.array([beta, -beta, beta, 0.0], np.float32))


@in_place
@pytest.mark.parametrize("beta", [0.0, 0.3, -0.3, 50.0, -50.0])
@pytest.mark.parametrize("gamma", GAMMAS.values(), ids=GAMMAS.keys())
def test_the_mask_read_from_a_batch_norms_code_is_exact(framework: Framework, inplace: bool, gamma, beta):
    norm = framework.layer("BatchNorm2d", 4)
    set_norm(framework, norm, gamma, beta)
    model = framework.compressed(framework.sequential(norm, framework.layer("ReLU", inplace=inplace)), 2)
    y = model(framework.tensor(numbers((5, 4, 7, 9)), gradient=True))
    positive = (framework.array(y) > 0).sum((0, 2, 3)).astype(np.float32)
    y.backward(framework.tensor(np.ones(y.shape, np.float32)))
    # the gradient of beta sums the masked gradient, exactly one for each positive output
    np.testing.assert_array_equal(framework.gradients(model)["0.bias"], positive)


@pytest.mark.parametrize("gamma", GAMMAS.values(), ids=GAMMAS.keys())
@pytest.mark.parametrize("beta", [0.2, 5.0, -5.0])
def test_what_follows_a_batch_norm_is_unbiased_for_every_gamma(framework: Framework, gamma, beta):
    relu = framework.layer("ReLU", inplace=True)
    layers = framework.layer("BatchNorm2d", 4), relu, framework.layer("Conv2d", 4, 3, 1), framework.layer("Flatten")
    model = framework.initialised(framework.sequential(*layers))
    set_norm(framework, layers[0], gamma, beta)
    check_gradients(framework, model, mean_square(framework.tensor(numbers((4, 4, 6, 6)))), repeats=200)


def test_batch_norm_without_parameters_shares_its_code(framework: Framework):
    layer = framework.layer
    layers = layer("Conv2d", 3, 4, 1), layer("BatchNorm2d", 4, affine=False), layer("ReLU", inplace=True)
    model = framework.initialised(framework.sequential(*layers, layer("Conv2d", 4, 3, 1)))
    check_gradients(framework, model, mean_square(batch(framework)), repeats=200)


def check_weight(framework: Framework, model: Model, x) -> None:
    """Raise unless the gradient of the first convolution is the exact one; the bias before a BatchNorm has none."""
    weight = slice(0, 8 * 27)
    reference = gradient(framework, deepcopy(model), mean_square(x))[weight]
    found = gradient(framework, framework.compressed(model), mean_square(x))[weight]
    assert distance(found, reference) < 0.02 * np.linalg.norm(reference)


@in_place
def test_a_relu_leaves_batch_norm_what_it_needs(framework: Framework, inplace: bool):
    relu = framework.layer("ReLU", inplace=inplace)
    layers = framework.layer("Conv2d", 3, 8, 3), framework.layer("BatchNorm2d", 8), relu
    check_weight(framework, framework.initialised(framework.sequential(*layers)), batch(framework))


def two_readers(model: Model, x):
    y = model.norm(model.conv(x))
    before = (2.0 * y).tanh()
    return model.relu(y) * 1.5 + before


@in_place
def test_other_readers_of_a_batch_norm_add_to_the_relus_gradient(framework: Framework, inplace: bool):
    relu = framework.layer("ReLU", inplace=inplace)
    parts = {"conv": framework.layer("Conv2d", 3, 8, 3), "norm": framework.layer("BatchNorm2d", 8), "relu": relu}
    check_weight(framework, framework.initialised(framework.wired(two_readers, **parts)), batch(framework))


def test_a_site_that_no_relu_reads_uses_a_plane_less_from_the_second_step_on(framework: Framework):
    network = row(framework, ("Conv2d", 3, 8, 3), ("BatchNorm2d", 8), ("Conv2d", 8, 4, 1))
    model = framework.compressed(network, 2)
    kept = [rows_of(framework, model)["1"].kept_bytes for _ in range(3)]
    assert kept[1] < 0.75 * kept[0]
    assert kept[2] == kept[1]


def switch(model: Model, x):
    x = model.norm(model.conv(x))
    return model.head(model.relu(x) if model.rectify else x)


def test_a_site_that_a_relu_reads_again_learns_that_too(framework: Framework):
    layer = framework.layer
    network = framework.wired(
        switch,
        conv=layer("Conv2d", 3, 8, 3),
        norm=layer("BatchNorm2d", 8),
        relu=layer("ReLU"),
        head=layer("Conv2d", 8, 4, 1),
        rectify=True,
    )
    model, rows = framework.compressed(network, 2), []
    for rectify in (True, False, False, True, True):
        model.rectify = rectify
        rows.append(rows_of(framework, model))
    assert "relu" in rows[0]["norm"].readers
    assert "relu" in rows[3], "with a code that tells no signs the ReLU makes its own"
    assert "relu" in rows[4]["norm"].readers


def test_a_relu_without_readers_keeps_one_bit_from_the_second_step_on(framework: Framework):
    model = framework.compressed(row(framework, ("Conv2d", 3, 8, 3), ("ReLU",), ("AdaptiveAvgPool2d", 1)), 2)
    first, second = (rows_of(framework, model)["1"].kept_bytes for _ in range(2))
    assert second == 6 * 8 * 10 * 10 / 8
    assert first > second


def glue(model: Model, x):
    x = model.relu(model.norm(model.conv(x)))
    return model.flat(x.flatten(1)).sum() + model.joined(model.concatenated([x, x + 1], 1)).sum()


def test_views_and_concatenations_are_coded_by_their_readers(framework: Framework):
    layer = framework.layer
    network = framework.wired(
        glue,
        conv=layer("Conv2d", 3, 8, 3),
        norm=layer("BatchNorm2d", 8),
        relu=layer("ReLU", inplace=True),
        joined=layer("Conv2d", 16, 4, 1),
        flat=layer("Linear", 8 * 100, 3),
        concatenated=framework.concatenated,
    )
    model, x = framework.initialised(network), batch(framework)
    reference = gradient(framework, deepcopy(model), lambda model: model(x))
    close(gradient(framework, framework.compressed(model), lambda model: model(x)), reference, 0.02)


def test_relu_before_batch_norm_shares_its_code(framework: Framework):
    model = row(framework, ("Conv2d", 3, 8, 3), ("ReLU",), ("BatchNorm2d", 8), ("Conv2d", 8, 4, 1), ("Flatten",))
    check_gradients(framework, model, mean_square(batch(framework)), repeats=200)
    assert rows_of(framework, framework.compressed(model, 2))["1"].readers == ("2",)


def test_without_sharing_every_layer_keeps_its_own(framework: Framework):
    network = row(framework, ("Conv2d", 3, 8, 3), ("BatchNorm2d", 8), ("ReLU",), ("Conv2d", 8, 4, 1))
    rows = rows_of(framework, framework.compressed(network, 2, share_codes=False, rounding="stochastic"))
    assert set(rows) == {"0", "1", "2", "3"}
    assert all(row.readers == () for row in rows.values())


def test_without_sharing_a_residual_network_is_unbiased(framework: Framework):
    run = loss_of(framework, batch(framework))
    check_gradients(framework, residual(framework), run, share_codes=False, rounding="stochastic")


def test_a_model_that_is_computed_anew_makes_the_same_kinds_of_code(framework: Framework):
    model, x = residual(framework), framework.tensor(numbers((6, 3, 12, 12), 7), gradient=True)
    reference, noisy = gradient(framework, deepcopy(model), loss_of(framework, x)), framework.compressed(model)
    for _ in range(3):
        framework.clear(noisy)
        framework.cross_entropy(framework.checkpoint(noisy, x), np.arange(6) % 4).backward()
        close(vector(framework.gradients(noisy)), reference, 0.03)


def test_the_bias_that_batch_norm_hands_down_is_small(framework: Framework):
    """Its gradient multiplies x̂ by a mean that contains the same x̂: of the order of 1 / (elements of a channel)."""
    errors = []
    for size in (4, 16):
        x, target = numbers((2, 4, size, size), 11), numbers((2, 4, size, size), 12)
        norm = framework.sequential(framework.layer("BatchNorm2d", 4))
        exact = framework.step(norm, x, target).gradients["input"]
        noisy = framework.compressed(norm, 2, rounding="stochastic")
        mean = np.mean([framework.step(noisy, x, target).gradients["input"] for _ in range(400)], 0)
        errors.append(distance(mean, exact) / np.linalg.norm(exact))
    assert errors[0] < 0.1
    assert errors[1] < 0.5 * errors[0] + 0.02


@pytest.mark.parametrize("slope", [0.1, 0.0, -0.2])
@pytest.mark.parametrize("after_norm", [True, False])
def test_a_leaky_relu_with_readers_is_unbiased(framework: Framework, slope, after_norm):
    layer = framework.layer
    norm = [layer("BatchNorm2d", 8)] if after_norm else []
    layers = layer("Conv2d", 3, 8, 3, bias=False), *norm, layer("LeakyReLU", slope), layer("Conv2d", 8, 4, 1)
    model = framework.initialised(framework.sequential(*layers, layer("Flatten")))
    check_gradients(framework, model, mean_square(batch(framework)), repeats=200)


def test_shared_codes_are_the_same_for_equal_seeds(framework: Framework):
    network, x = residual(framework), numbers((6, 3, 12, 12), 7)
    found = [framework.step(framework.compressed(network, 2, 5), x).gradients for _ in range(2)]
    check_equal_gradients(*found)


def test_a_batch_norm_whose_beta_alone_learns_keeps_no_code(framework: Framework):
    relu = framework.layer("ReLU", inplace=True)
    layers = framework.layer("BatchNorm2d", 3), relu, framework.layer("Conv2d", 3, 4, 1)
    plain, x = framework.initialised(framework.sequential(*layers)), batch(framework)
    framework.freeze(layers[0].weight)
    model = framework.compressed(plain, 7)
    for each in (plain, model):
        mean_square(x)(each).backward()
    found, expected = framework.gradients(model), framework.gradients(plain)
    assert "0.bias" in found
    # plain Paddle forgets the gradient of beta where gamma does not learn
    for name, value in expected.items():
        close(found[name], value, 0.02, name)
    assert framework.saved_bytes(model, lambda: model(x)) == model.report().kept_bytes
