"""What users do with graphs: accumulate, reuse layers, go backward in another order, train in threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from frameworks import Array, Framework, Model, numbers
from networks import images, small_network
from steps import check_equal_gradients, close
from z_tests import check_unbiased


def check_close(found: dict[str, Array], expected: dict[str, Array], relative: float) -> None:
    """Raise unless all gradients are close, those that are nothing but rounding left aside."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        if np.linalg.norm(gradient) > 1e-4:
            close(found[name], gradient, relative, name)


def halves(framework: Framework) -> list:
    return [framework.tensor(part) for part in np.split(images(16), 2)]


def warmed(framework: Framework) -> list[Model]:
    """Return the small network, compressed and plain; sites know their readers, and gradients are cleared."""
    network = small_network(framework)
    models = [framework.compressed(network), network]
    for model in models:
        framework.step(model, images())
        framework.clear(model)
    return models


def check_gradients(framework: Framework, models: list[Model], relative: float = 0.03) -> None:
    check_close(*(framework.gradients(model) for model in models), relative)


def test_gradients_accumulate(framework: Framework):
    models = warmed(framework)
    for model in models:
        for half in halves(framework):
            model(half).square().sum().backward()
    check_gradients(framework, models)


def recurrent(model: Model, x):
    for _ in range(3):
        x = model.relu(model.linear(x))
    return x


@pytest.mark.parametrize("bits", [2, 8])
def test_one_layer_called_several_times_in_a_step_has_the_sum_of_gradients(framework: Framework, bits: int):
    parts = {"linear": framework.layer("Linear", 150, 150), "relu": framework.layer("ReLU")}
    network, x = framework.initialised(framework.wired(recurrent, **parts), 1), numbers((8, 150))
    exact = framework.step(network, x).gradients
    if bits == 8:
        check_close(framework.step(framework.compressed(network, bits), x).gradients, exact, 0.01)
    else:
        found = framework.many_gradients(framework.compressed(network, bits), x, 200)
        check_unbiased(found["linear.weight"], exact["linear.weight"])


def twice(model: Model, x):
    return model.relu(model.norm(x)) + model.norm(x * x)


def test_a_normalisation_called_several_times_in_a_step_has_the_sum_of_gradients(framework: Framework):
    parts = {"norm": framework.layer("BatchNorm2d", 6), "relu": framework.layer("ReLU")}
    network, x = framework.wired(twice, **parts), numbers((8, 6, 13, 11))
    ours = framework.compressed(network)
    for _ in range(2):
        found, expected = framework.step(ours, x), framework.step(network, x)
    check_close(found.gradients, expected.gradients, 0.015)
    for name, buffer in expected.buffers.items():
        close(found.buffers[name], buffer, 1e-5, name)


def test_several_forwards_before_one_backward_keep_apart(framework: Framework):
    models = warmed(framework)
    for model in models:
        first, second = (model(half) for half in halves(framework))
        (first.square().sum() + second.sin().sum()).backward()
    check_gradients(framework, models)


def test_backward_in_another_order_than_forward_gives_the_same_gradients(framework: Framework):
    models = warmed(framework)
    for model in models:
        losses = [model(half).square().sum() for half in halves(framework)]
        for loss in losses:
            loss.backward()
    check_gradients(framework, models)


def test_an_evaluation_between_forward_and_backward_changes_no_gradient(framework: Framework):
    network, x, found = small_network(framework), framework.tensor(images()), []
    for evaluate in (False, True):
        model = framework.compressed(network)
        loss = model(x).square().sum()
        if evaluate:
            framework.evaluating(model)
            with framework.no_grad():
                model(framework.tensor(images(4)))
            framework.training(model)
        loss.backward()
        found.append(framework.gradients(model))
    check_equal_gradients(*found)


def test_hooks_on_activations_see_exact_values(framework: Framework):
    network, seen = small_network(framework), []
    ours = framework.compressed(network)
    for model in (ours, network):
        framework.after_forward(framework.at(model, "block.conv2"), lambda output: seen.append(framework.array(output)))
        model(framework.tensor(images()))
    np.testing.assert_allclose(*seen, rtol=1e-4, atol=1e-5)


def block_anew(model: Model, x):
    network = model.network
    x = model.checkpoint(network.block, network.pool(network.stem(x)))
    return network.head(network.average(x).flatten(1))


def behind_relu(model: Model, x):
    network = model.network
    x = model.checkpoint(network.block, network.stem(x))
    return network.head(network.average(network.pool(x)).flatten(1))


def chain(model: Model, x):
    network = model.network
    for part in (network.stem, network.block, network.pool):
        x = model.checkpoint(part, x)
    return network.head(network.average(x).flatten(1))


WIRINGS = [block_anew, behind_relu, chain]


def checkpointed(framework: Framework, wiring) -> Model:
    return framework.wired(wiring, network=small_network(framework), checkpoint=framework.checkpoint)


@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda wiring: wiring.__name__)
def test_blocks_that_are_computed_anew_have_the_plain_gradient_at_eight_bits(framework: Framework, wiring):
    network, x = checkpointed(framework, wiring), images()
    ours = framework.compressed(network)
    for _ in range(3):
        found, expected = framework.step(ours, x), framework.step(network, x)
        check_close(found.gradients, expected.gradients, 0.03)
    for name, buffer in expected.buffers.items():
        close(found.buffers[name], buffer, 1e-4, name)


def test_checkpointing_is_unbiased(framework: Framework):
    network, x = checkpointed(framework, block_anew), images()
    exact = framework.step(network, x).gradients
    found = framework.many_gradients(framework.compressed(network, 2), x, 150)
    for name in exact.keys() - {"input"}:
        check_unbiased(found[name], exact[name])


def test_models_train_in_several_threads(framework: Framework):
    def train(model: Model) -> dict[str, Array]:
        for _ in range(5):
            model(framework.tensor(images())).square().sum().backward()
        return framework.gradients(model)

    together, alone = ([framework.compressed(small_network(framework), 2, seed) for seed in range(4)] for _ in "ab")
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(train, together))
    for one, model in zip(found, alone, strict=True):
        check_equal_gradients(one, train(model))


def test_two_models_may_share_an_activation(framework: Framework):
    plain_models = [framework.initialised(framework.layer("Linear", 150, 150), seed) for seed in (1, 2, 3)]
    our_models, x = [framework.compressed(layer) for layer in plain_models], framework.tensor(numbers((8, 150)))
    for trunk, left, right in (our_models, plain_models):
        h = trunk(x)
        (left(h).square().sum() + right(h).sum() + h.sum()).backward()
    for ours, plain in zip(our_models, plain_models, strict=True):
        check_close(framework.gradients(ours), framework.gradients(plain), 0.01)


def test_a_model_does_not_read_the_coarser_code_of_another(framework: Framework):
    layer = framework.layer
    trunk = framework.initialised(framework.sequential(layer("Linear", 150, 150), layer("ReLU")), 5)
    head, x = framework.initialised(layer("Linear", 150, 5), 6), framework.tensor(numbers((8, 150)))
    coarse, fine = framework.compressed(trunk, 1), framework.compressed(head, 8)
    fine(coarse(x)).square().sum().backward()
    head(trunk(x)).square().sum().backward()
    check_close(framework.gradients(fine), framework.gradients(head), 0.01)


def test_an_optimised_input_is_coded_anew_in_every_step(framework: Framework):
    ours, x = framework.compressed(framework.layer("Linear", 300, 5), 1), framework.parameter(numbers((4, 300)))
    found = []
    for _ in range(2):
        framework.clear(ours)
        ours(x).sum().backward()
        found.append(framework.gradients(ours)["weight"])
    assert not np.array_equal(*found)


def test_a_generator_and_a_discriminator_train_in_turns(framework: Framework):
    layer = framework.layer
    hidden = layer("Linear", 40, 150), layer("BatchNorm1d", 150), layer("ReLU", inplace=True)
    generator = framework.initialised(framework.sequential(*hidden, layer("Linear", 150, 150)), 6)
    judging = layer("Linear", 150, 100), layer("LeakyReLU", 0.2, inplace=True), layer("Linear", 100, 1)
    discriminator = framework.initialised(framework.sequential(*judging), 7)
    noise, real = (framework.tensor(numbers((32, size), size)) for size in (40, 150))
    found = []
    plainly = generator, discriminator
    for make, judge in ([framework.compressed(each) for each in plainly], plainly):
        for _ in range(2):
            fake = make(noise)
            framework.clear(judge)
            (judge(real).square().mean() + judge(fake.detach()).mean()).backward()
            judged = framework.gradients(judge)
            framework.clear(make)
            judge(fake).sin().mean().backward()
        found.append((judged, framework.gradients(make)))
    for ours, plain in zip(*found, strict=True):
        assert ours.keys() == plain.keys()
        for name, gradient in plain.items():
            # the gradient of a bias before BatchNorm is nothing but rounding
            if np.linalg.norm(gradient) > 1e-5:
                close(ours[name], gradient, 0.03, name)
