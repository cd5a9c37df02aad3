"""Levels in training: L0 is plain training bit for bit, L1 and L2 train, and models do not disturb each other."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from frameworks import Framework, Model
from networks import everything, images, small_network
from steps import check_equal_gradients, close, distance, same

import actnn

TARGETS = np.arange(16) % 5


def train(framework: Framework, model: Model, steps: int = 6) -> list[float]:
    """Train on fixed data; return the losses."""
    return list(losses(framework, model, steps))


def losses(framework: Framework, model: Model, steps: int = 6):
    framework.seed(5)
    advance = framework.optimizer(model, 0.05, momentum=0.9, decay=1e-3)
    x = framework.tensor(images(16))
    for _ in range(steps):
        framework.clear(model)
        loss = framework.cross_entropy(model(x), TARGETS)
        loss.backward()
        advance()
        yield loss.item()


def check_same_state(framework: Framework, found: Model, expected: Model) -> None:
    """Raise unless two models have the same state bit for bit."""
    ours, theirs = framework.state(found), framework.state(expected)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        same(ours[name], value, name)


def test_level_zero_equals_plain_training_bit_for_bit(framework: Framework):
    plain = everything(framework)
    ours = framework.compressed(plain, level="L0")
    assert train(framework, ours) == train(framework, plain)
    check_same_state(framework, ours, plain)


def test_level_zero_keeps_what_plain_training_keeps(framework: Framework):
    network, x = small_network(framework), framework.tensor(images())
    ours = framework.compressed(network, level="L0")
    found, expected = (framework.saved_bytes(model, lambda model=model: model(x)) for model in (ours, network))
    assert found == expected


@pytest.mark.parametrize("level", ["L1", "L2"])
def test_compressed_training_lowers_the_loss_as_plain_training_does(framework: Framework, level: str):
    plain = everything(framework)
    ours = framework.compressed(plain, bits=4, level=level)
    found, expected = train(framework, ours, 25), train(framework, plain, 25)
    assert found[0] == pytest.approx(expected[0], rel=1e-4)
    assert found[-1] < 0.6 * expected[0]


def test_eight_bits_follow_plain_training_closely(framework: Framework):
    plain = small_network(framework)
    ours = framework.compressed(plain)
    assert train(framework, ours) == pytest.approx(train(framework, plain), rel=0.02)


def test_level_one_keeps_batch_norm_exact_and_codes_convolutions(framework: Framework):
    network, x = small_network(framework), images()
    ours = framework.compressed(network, bits=1, level="L1")
    kinds = {type(layer).__name__ for _, layer in framework.layers(ours)}
    assert framework.type_name("BatchNorm2d") in kinds
    assert f"Q{framework.type_name('Conv2d')}" in kinds
    found, expected = framework.step(ours, x).gradients, framework.step(network, x).gradients
    same(found["block.bn2.weight"], expected["block.bn2.weight"])


def test_a_level_given_to_one_conversion_counts_for_that_one(framework: Framework):
    framework.actnn.set_optimization_level("L2")
    first = framework.actnn.QModule(small_network(framework), level="L0")
    second = framework.actnn.QModule(small_network(framework))
    for model in (first, second):
        framework.step(model, images())
    assert first.report().kept_bytes == 0
    assert second.report().kept_bytes > 0


# defect 9: train() and eval() of one model switch compression in all models, and levels do not reset each other
def test_models_of_different_levels_live_side_by_side(framework: Framework):
    plain, x = small_network(framework), images()
    models = [framework.compressed(plain, bits, level=level) for bits, level in ((8, "L0"), (1, "L2"), (8, "L2"))]
    expected = framework.step(plain, x).gradients["head.weight"]
    exact, coarse, fine = (distance(framework.step(model, x).gradients["head.weight"], expected) for model in models)
    assert exact == 0
    assert coarse > 20 * fine


def test_evaluating_one_model_leaves_another_in_training(framework: Framework):
    first, second = (framework.compressed(small_network(framework), 2) for _ in range(2))
    framework.evaluating(first)
    assert second.training
    framework.step(second, images())
    assert second.report().kept_bytes > 0


def test_settings_after_a_conversion_do_not_reach_it(framework: Framework):
    ours, x = framework.compressed(small_network(framework), 2), images()
    framework.step(ours, x)
    before = ours.report().kept_bytes
    actnn.set_optimization_level("L0")
    framework.step(ours, x)
    framework.step(ours, x)
    assert 0 < ours.report().kept_bytes <= before


# defect 8: global registries break with a second model, an unused layer or another batch size
def test_models_trained_in_turn_do_not_disturb_each_other(framework: Framework):
    expected = train(framework, framework.compressed(small_network(framework), 2))
    first, other = framework.compressed(small_network(framework), 2), framework.compressed(everything(framework), 3)
    for loss, wanted in zip(losses(framework, first), expected, strict=True):
        assert loss == wanted
        framework.step(other, images(16))


def test_the_batch_size_may_change_from_step_to_step(framework: Framework):
    network = small_network(framework)
    ours = framework.compressed(network)
    for batch in (8, 3, 16, 2):
        found, expected = (framework.step(model, images(batch)).gradients["head.weight"] for model in (ours, network))
        close(found, expected, 0.01)


def test_equal_seeds_give_equal_gradients(framework: Framework):
    models = [framework.compressed(small_network(framework), 2, seed=3) for _ in range(2)]
    check_equal_gradients(*(framework.step(model, images()).gradients for model in models))


def test_other_seeds_give_other_gradients(framework: Framework):
    models = [framework.compressed(small_network(framework), 2, seed) for seed in (3, 4)]
    first, second = (framework.step(model, images()).gradients["head.weight"] for model in models)
    assert not np.array_equal(first, second)


def test_every_step_draws_new_noise(framework: Framework):
    ours = framework.compressed(small_network(framework), 2)
    framework.step(ours, images())
    first, second = (framework.step(ours, images()).gradients["head.weight"] for _ in range(2))
    assert not np.array_equal(first, second)


def test_codes_leave_the_random_numbers_of_the_framework_alone(framework: Framework):
    network, x = small_network(framework), framework.tensor(images())
    drawn = []
    for model in (network, framework.compressed(network, 2)):
        framework.seed(9)
        model(x).sum().backward()
        drawn.append(framework.random_numbers(3))
    same(*drawn)


def test_without_stochastic_rounding_every_step_has_the_same_gradient(framework: Framework):
    ours = framework.compressed(small_network(framework), 2, stochastic=False)
    framework.step(ours, images())
    check_equal_gradients(*(framework.step(ours, images()).gradients for _ in range(2)))


def test_the_original_is_not_needed_to_train_a_copy(framework: Framework):
    ours, other = (framework.compressed(small_network(framework), 2) for _ in range(2))
    copy = deepcopy(ours)
    del ours
    assert train(framework, copy, 3) == train(framework, other, 3)
