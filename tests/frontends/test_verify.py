"""verify: the user's model stays as it was, and the figures tell what codes do to its gradient."""

from __future__ import annotations

import random
from collections import namedtuple
from copy import deepcopy

import numpy as np
import pytest
from frameworks import Framework, Model, numbers, vector
from networks import images, small_network
from steps import check_equal_gradients, same

import actnn
from actnn.errors import ConfigError, SessionError, ShapeError, UnsupportedError
from actnn.model.verification import BIAS_ALARM

DRAWS = 12


def labels(framework: Framework, batch: int = 8):
    return framework.tensor(np.arange(batch) % 5)


def loss(framework: Framework):
    """Return the usual loss of an output and its targets, both tensors."""
    return lambda output, targets: framework.cross_entropy(output, framework.array(targets))


def verify(framework: Framework, model: Model, inputs, targets, draws: int = DRAWS, **settings: object):
    return framework.actnn.verify(model, (inputs, targets), loss(framework), draws, **settings)


def verified(framework: Framework, model: Model, bits: int = 2, draws: int = DRAWS, batch: int = 8, **settings: object):
    """Return the verification of a model of images at level L2, with other widths."""
    framework.prepare(bits)
    return verify(framework, model, framework.tensor(images(batch)), labels(framework, batch), draws, **settings)


def perceptron(framework: Framework, *between: Model) -> Model:
    # verify draws how it rounds differently from the framework's generator
    framework.seed(8)
    layer = framework.layer
    layers = layer("Linear", 300, 20), layer("ReLU"), *between, layer("Linear", 20, 5)
    return framework.initialised(framework.sequential(*layers), 8)


def vectors(framework: Framework, batch: int = 16):
    return framework.tensor(numbers((batch, 300), 9))


def of_perceptron(framework: Framework, model: Model, draws: int = DRAWS, **settings: object):
    settings = {"level": "L2", **settings}
    return verify(framework, model, vectors(framework), labels(framework, 16), draws, **settings)


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_the_model_stays_as_it_was(framework: Framework, converted, training):
    model = framework.compressed(small_network(framework), 2) if converted else small_network(framework)
    framework.step(model, images())
    framework.training(model, training)
    state, gradients = framework.state(model), framework.gradients(model)
    types = [type(layer) for _, layer in framework.layers(model)]
    verified(framework, model)
    for name, value in framework.state(model).items():
        same(value, state[name], name)
    check_equal_gradients(framework.gradients(model), gradients)
    assert {layer.training for _, layer in framework.layers(model)} == {training}
    assert [type(layer) for _, layer in framework.layers(model)] == types


def test_a_converted_model_draws_the_noise_that_it_would_have_drawn(framework: Framework):
    model = framework.compressed(small_network(framework), 2)
    framework.step(model, images())
    undisturbed = deepcopy(model)
    verified(framework, model)
    check_equal_gradients(*(framework.step(each, images()).gradients for each in (model, undisturbed)))


def test_random_generators_stay_as_they_were(framework: Framework):
    model, drawn = perceptron(framework, framework.layer("Dropout", 0.5)), []
    for call in (lambda: None, lambda: of_perceptron(framework, model)):
        random.seed(1), np.random.seed(1), framework.seed(1)
        call()
        drawn.append([random.random(), np.random.rand(), *framework.random_numbers(3)])
    assert drawn[0] == drawn[1]


def test_random_generators_stay_as_they_were_after_an_error(framework: Framework):
    model, drawn = perceptron(framework, framework.layer("Dropout", 0.5)), []
    for fails in (False, True):
        framework.seed(1)
        if fails:
            with pytest.raises(ShapeError):
                framework.actnn.verify(model, (vectors(framework), None), lambda output, _: output)
        drawn.append(framework.random_numbers(3))
    same(*drawn)


def test_settings_stay_as_they_were(framework: Framework):
    actnn.set_optimization_level("L1")
    before = repr(actnn.config)
    of_perceptron(framework, perceptron(framework), 2)
    assert repr(actnn.config) == before


def test_the_batch_stays_as_it_was(framework: Framework):
    x = framework.tensor(numbers((16, 300), 9), gradient=True)
    model = framework.sequential(framework.layer("Tanh"), framework.layer("Linear", 300, 5))
    verify(framework, model, x, labels(framework, 16), 2, level="L2")
    assert x.grad is None
    same(framework.array(x), numbers((16, 300), 9))


def test_a_model_that_may_overwrite_its_input_gets_the_same_input_each_time(framework: Framework):
    x = vectors(framework)
    model = framework.sequential(framework.layer("ReLU", inplace=True), framework.layer("Linear", 300, 5))
    found = verify(framework, model, x, labels(framework, 16), 2, level="L0")
    same(framework.array(x), numbers((16, 300), 9))
    assert found.total["measured"] == 0.0


def test_gradients_are_computed_where_the_user_switched_them_off(framework: Framework):
    with framework.no_grad():
        assert of_perceptron(framework, perceptron(framework)).total["measured"] > 0


def test_there_is_a_row_for_each_layer_that_gets_a_gradient(framework: Framework):
    model = small_network(framework)
    framework.freeze(model.block.conv2)
    found = [row["layer"] for row in verified(framework, model, draws=2).rows]
    assert found == ["stem.0", "stem.1", "block.conv1", "block.bn1", "block.bn2", "block.shortcut", "head"]


def test_a_model_that_is_one_layer_has_one_row(framework: Framework):
    (row,) = of_perceptron(framework, framework.layer("Linear", 300, 5)).rows
    assert row["layer"] == "model"


def test_norms_are_those_of_the_exact_gradient(framework: Framework):
    model = small_network(framework)
    framework.cross_entropy(model(framework.tensor(images())), np.arange(8) % 5).backward()
    exact = framework.gradients(model)
    expected = np.sqrt(sum(np.square(exact[f"stem.0.{name}"]).sum() for name in ("weight", "bias")))
    found = verified(framework, model, draws=2).rows[0]
    assert found["norm"] == pytest.approx(float(expected), rel=1e-5)


def test_eight_bits_add_far_less_variance_than_two(framework: Framework):
    coarse, fine = (verified(framework, small_network(framework), bits) for bits in (2, 8))
    for two, eight in zip(coarse.rows, fine.rows, strict=True):
        assert 0 < eight["measured"] < two["measured"] / 100


def test_the_measured_variance_is_that_of_many_steps(framework: Framework):
    model = perceptron(framework)
    found = of_perceptron(framework, model).rows[0]["measured"]
    ours, draws = framework.actnn.QModule(model, level="L2", seed=5), []
    for _ in range(200):
        framework.clear(ours)
        framework.cross_entropy(ours(vectors(framework)), np.arange(16) % 5).backward()
        draws.append(framework.gradients(ours)["0.weight"])
    assert found == pytest.approx(float(np.stack(draws).var(0, ddof=1).sum()), rel=0.2)


@pytest.mark.parametrize("bits", [1, 4])
def test_codes_are_found_unbiased(framework: Framework, bits):
    found = verified(framework, small_network(framework), bits, draws=32)
    assert found.warning is None
    assert max(abs(row["bias_z"]) for row in (*found.rows, found.total)) < BIAS_ALARM


def test_nearest_rounding_is_found_biased(framework: Framework):
    framework.prepare(2, stochastic=False)
    found = verify(framework, small_network(framework), framework.tensor(images()), labels(framework))
    assert "off at" in found.warning
    assert all(row["bias_z"] > BIAS_ALARM for row in found.rows)


def test_float_rounding_is_no_bias(framework: Framework):
    # nothing of the head's codes reaches its bias, but BatchNorm's forward differs by rounding from the plain one
    model = framework.freeze(small_network(framework))
    framework.freeze(model.head.bias, False)
    (row,) = verified(framework, model).rows
    assert row["bias_z"] == 0.0
    assert row["measured"] == 0.0


def test_dropout_draws_the_same_masks_each_time(framework: Framework):
    model = perceptron(framework, framework.layer("Dropout", 0.5))
    found = of_perceptron(framework, model, exact=[type(framework.layer("Linear", 3, 3))])
    assert found.total["measured"] == 0.0
    assert found.total["bias_z"] == 0.0


def test_dropout_adds_to_the_sampling_variance(framework: Framework):
    without = of_perceptron(framework, perceptron(framework))
    dropped = of_perceptron(framework, perceptron(framework, framework.layer("Dropout", 0.5)))
    assert dropped.total["sampling"] > 1.2 * without.total["sampling"]


def test_level_zero_shows_zeros(framework: Framework):
    found = verified(framework, small_network(framework), level="L0")
    assert {row[key] for row in found.rows for key in ("bias_z", "measured", "predicted")} == {0.0}
    assert found.conclusion == "Codes add no noise to this gradient: safe."


def test_layers_left_exact_have_no_variance(framework: Framework):
    found = of_perceptron(framework, perceptron(framework), exact=["0"])
    assert found.rows[0]["measured"] == 0.0
    assert found.rows[1]["measured"] > 0.0


def test_equal_seeds_give_equal_figures(framework: Framework):
    first, second, other = (of_perceptron(framework, perceptron(framework), seed=seed).rows for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_a_memory_budget_can_be_verified(framework: Framework):
    models = [verified(framework, small_network(framework), memory=memory) for memory in ("35 KiB", "200 KiB")]
    assert models[1].total["measured"] < models[0].total["measured"]


def test_a_converted_model_keeps_its_settings(framework: Framework):
    models = {bits: framework.compressed(small_network(framework), bits) for bits in (1, 8)}
    found = {bits: verified(framework, model, bits=4).total["measured"] for bits, model in models.items()}
    assert found[8] < found[1] / 1000


def test_a_model_in_evaluation_is_verified_in_training(framework: Framework):
    rows = []
    for training in (False, True):
        framework.seed(8)
        rows.append(verified(framework, framework.training(small_network(framework), training)).rows)
    assert rows[0] == rows[1]


def test_layers_made_by_hand_are_compared_with_exact_ones(framework: Framework):
    framework.prepare(2)
    plain, made = framework.layer("Linear", 300, 5), framework.made_by_hand("Linear", 300, 5)
    for name, parameter in framework.own_parameters(framework.initialised(plain, 8)).items():
        framework.assign(framework.own_parameters(made)[name], framework.array(parameter))
    loss(framework)(plain(vectors(framework)), labels(framework, 16)).backward()
    expected = float(np.linalg.norm(vector(framework.gradients(plain))))
    (found,) = verify(framework, framework.sequential(made), vectors(framework), labels(framework, 16)).rows
    assert found["norm"] == pytest.approx(expected, rel=1e-5)
    assert found["measured"] > 0


def test_layers_that_the_user_put_into_evaluation_stay_there(framework: Framework):
    model = small_network(framework)
    framework.evaluating(model.stem[1])
    loss(framework)(model(framework.tensor(images())), labels(framework)).backward()
    expected = float(np.linalg.norm(vector(framework.gradients(model.stem[1]))))
    assert verified(framework, model, draws=2).rows[1]["norm"] == pytest.approx(expected, rel=1e-5)


def test_targets_can_be_a_nest(framework: Framework):
    def weighted(output, targets):
        return targets["weight"] * loss(framework)(output, targets["labels"][0])

    model, batch = perceptron(framework), (vectors(framework), {"weight": 2.0, "labels": [labels(framework, 16)]})
    found = framework.actnn.verify(model, batch, weighted, 2, level="L2")
    expected = 2 * of_perceptron(framework, perceptron(framework), 2).total["norm"]
    assert found.total["norm"] == pytest.approx(expected, rel=1e-5)


def test_the_batch_may_be_a_list_as_loaders_give_it(framework: Framework):
    model, batch = perceptron(framework), [vectors(framework), labels(framework, 16)]
    found = framework.actnn.verify(model, batch, loss(framework), DRAWS, level="L2")
    assert found.rows == of_perceptron(framework, perceptron(framework)).rows


def test_tied_weights_have_the_variance_of_all_layers_that_share_them(framework: Framework):
    layer = framework.layer
    model = framework.sequential(layer("Linear", 300, 300), layer("ReLU"), layer("Linear", 300, 300))
    framework.initialised(model, 8)[2].weight = model[0].weight
    tied, bias = of_perceptron(framework, model, draws=40).rows
    assert tied["measured"] == pytest.approx(tied["predicted"], rel=0.15)
    assert bias["measured"] == bias["predicted"] == 0.0


def two_inputs(model: Model, left, right, table=None):
    output = model.left(left) + model.right(right)
    return output if table is None else output * table.sum()


Pair = namedtuple("Pair", ["left", "right"])
INPUTS = {
    "tuple": lambda x, _: (x, x),
    "list": lambda x, _: [x, x],
    "namedtuple": lambda x, _: Pair(x, x),
    "dict": lambda x, _: {"left": x, "right": x},
    "other length": lambda x, table: {"left": x, "right": x, "table": table},
}


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
def test_inputs_can_be_several(framework: Framework, inputs):
    left, right = (framework.layer("Linear", 300, 5) for _ in range(2))
    model = framework.wired(two_inputs, left=left, right=right)
    given = inputs(vectors(framework), framework.tensor(np.ones(3, np.float32)))
    found = verify(framework, model, given, labels(framework, 16), 2, level="L2")
    assert [row["layer"] for row in found.rows] == ["left", "right"]
    assert found.total["sampling"] > 0


def test_sampling_is_the_variance_of_the_mean_over_the_batch(framework: Framework):
    # the loss is linear in the weight: the gradient is the mean of the samples
    x = framework.tensor(numbers((4000, 300), 10))
    model = framework.layer("Linear", 300, 1, bias=False)
    found = framework.actnn.verify(model, (x, None), lambda output, _: output.mean(), 2, level="L0")
    assert found.total["sampling"] == pytest.approx(300 / 4000, rel=0.15)


@pytest.mark.parametrize(("batch", "sampled"), [(3, False), (4, True), (11, True), (20, True)])
def test_sampling_needs_two_parts_of_two_samples(framework: Framework, batch, sampled):
    model = perceptron(framework)
    found = verify(framework, model, vectors(framework, batch), labels(framework, batch), 2, level="L2")
    assert (found.total["sampling"] is not None) is sampled


def test_the_prediction_agrees_with_the_measurement(framework: Framework):
    model = perceptron(framework, framework.layer("Dropout", 0.2))
    for row in of_perceptron(framework, model, draws=40).rows:
        assert row["measured"] == pytest.approx(row["predicted"], rel=0.15)


@pytest.mark.parametrize("draws", [1, 0, -3, 2.5, True, "8"])
def test_too_few_draws_are_refused(framework: Framework, draws):
    with pytest.raises(ConfigError, match="at least 2"):
        of_perceptron(framework, perceptron(framework), draws)


def test_what_is_not_a_model_is_refused(framework: Framework):
    name = f"{framework.name}.nn.{framework.module_type.__name__}"
    with pytest.raises(UnsupportedError, match=f"given a function: expected a .*{name}"):
        of_perceptron(framework, labels)


@pytest.mark.parametrize("batch", [np.zeros((2, 3)), (np.zeros(2),), {"inputs": 1, "targets": 2}, None], ids=type)
def test_a_batch_that_is_not_a_pair_is_refused(framework: Framework, batch):
    with pytest.raises(UnsupportedError, match=r"expected a pair, \(inputs, targets\)"):
        framework.actnn.verify(perceptron(framework), batch, loss(framework))


def test_a_loss_that_is_not_a_tensor_is_refused(framework: Framework):
    with pytest.raises(UnsupportedError, match="returned a float"):
        framework.actnn.verify(perceptron(framework), (vectors(framework), None), lambda *_: 1.0, level="L2")


def test_a_loss_that_is_not_a_scalar_is_refused(framework: Framework):
    with pytest.raises(ShapeError, match=r"shape \(16, 5\)"):
        framework.actnn.verify(perceptron(framework), (vectors(framework), None), lambda y, _: y, level="L2")


def test_a_model_that_gets_no_gradient_is_refused(framework: Framework):
    for model in (framework.freeze(perceptron(framework)), framework.layer("ReLU")):
        with pytest.raises(UnsupportedError, match="nothing to verify"):
            framework.actnn.verify(model, (vectors(framework), None), lambda y, _: y.sum(), level="L2")


def test_a_gradient_that_is_not_finite_is_refused(framework: Framework):
    x = numbers((16, 300), 9)
    x[0, 0] = np.inf
    with pytest.raises(UnsupportedError, match="exact gradient is not finite"):
        verify(framework, perceptron(framework), framework.tensor(x), labels(framework, 16), level="L2")


def test_a_loss_that_reaches_the_input_only_is_refused(framework: Framework):
    x = framework.tensor(numbers((16, 300), 9), gradient=True)
    with pytest.raises(UnsupportedError, match="no parameter"):
        framework.actnn.verify(framework.layer("ReLU"), (x, None), lambda y, _: y.sum(), level="L2")


@pytest.mark.parametrize("setting", [{"level": "L2"}, {"exact": ["head"]}, {"seed": 0}], ids=str)
def test_settings_beside_a_converted_model_are_refused(framework: Framework, setting):
    with pytest.raises(ConfigError, match="settings of its own"):
        verified(framework, framework.compressed(small_network(framework)), **setting)


def test_a_model_that_was_restored_is_refused(framework: Framework):
    model = framework.compressed(small_network(framework))
    model.restore()
    with pytest.raises(SessionError, match="closed"):
        verified(framework, model)


def test_a_bad_setting_is_refused_as_by_conversion(framework: Framework):
    with pytest.raises(ConfigError, match="matches no layer"):
        of_perceptron(framework, perceptron(framework), exact=["nothing"])
