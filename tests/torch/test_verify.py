"""verify: the user's model stays as it was, and the figures tell what codes do to its gradient."""

from __future__ import annotations

import random
from collections import namedtuple
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_layers import compressed, images, same, small_network, step

import actnn
from actnn.core.verification import BIAS_ALARM
from actnn.errors import ConfigError, SessionError, ShapeError, UnsupportedError

DRAWS = 12


def check_same_state(found: dict, expected: dict) -> None:
    """Raise unless two states have the same names and values."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        same(found[name], value, name)


def labels(batch: int = 8) -> torch.Tensor:
    return torch.arange(batch) % 5


def verified(model: nn.Module, bits: int = 2, draws: int = DRAWS, batch: int = 8, **settings):
    """Return the verification of a model of images at level L2, with other widths."""
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [bits]
    return actnn.verify(model, (images(batch), labels(batch)), F.cross_entropy, draws, **settings)


def perceptron(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(300, 20), nn.ReLU(), *between, nn.Linear(20, 5))


def vectors(batch: int = 16) -> torch.Tensor:
    return torch.randn(batch, 300, generator=torch.Generator().manual_seed(9))


def of_perceptron(model: nn.Module, draws: int = DRAWS, **settings):
    return actnn.verify(model, (vectors(), labels(16)), F.cross_entropy, draws, level="L2", **settings)


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_the_model_stays_as_it_was(converted, training):
    model = compressed(small_network(), 2) if converted else small_network()
    step(model, images())
    model.train(training)
    before = deepcopy(model)
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    verified(model)
    check_same_state(model.state_dict(), before.state_dict())
    for name, parameter in model.named_parameters():
        same(parameter.grad, gradients[name], name)
    assert [module.training for module in model.modules()] == [training] * len(list(model.modules()))
    assert [type(module) for module in model.modules()] == [type(module) for module in before.modules()]


def test_a_converted_model_draws_the_noise_that_it_would_have_drawn():
    model = compressed(small_network(), 2)
    step(model, images())
    undisturbed = deepcopy(model)
    verified(model)
    found, expected = step(model, images()), step(undisturbed, images())
    for name, gradient in expected.gradients.items():
        same(found.gradients[name], gradient, name)


def test_random_generators_stay_as_they_were():
    model = perceptron(nn.Dropout(0.5))
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    of_perceptron(model)
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    same(torch.get_rng_state(), states[2])


def test_random_generators_stay_as_they_were_after_an_error():
    model = perceptron(nn.Dropout(0.5))
    state = torch.get_rng_state()
    with pytest.raises(ShapeError):
        actnn.verify(model, (vectors(), None), lambda output, _: output)
    same(torch.get_rng_state(), state)


def test_settings_stay_as_they_were():
    actnn.set_optimization_level("L1")
    before = repr(actnn.config)
    actnn.verify(perceptron(), (vectors(), labels(16)), F.cross_entropy, 2, level="L2")
    assert repr(actnn.config) == before


def test_the_batch_stays_as_it_was():
    x = vectors().requires_grad_()
    before = x.detach().clone()
    model = nn.Sequential(nn.Identity(), nn.Linear(300, 5))
    actnn.verify(model, (x, labels(16)), F.cross_entropy, 2, level="L2")
    assert x.grad is None
    same(x.detach(), before)


def test_a_model_that_overwrites_its_input_gets_the_same_input_each_time():
    x = vectors()
    found = actnn.verify(
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(300, 5)), (x, labels(16)), F.cross_entropy, 2, level="L0"
    )
    same(x, vectors())
    assert found.total["measured"] == 0.0


def test_gradients_are_computed_where_the_user_switched_them_off():
    with torch.no_grad():
        assert of_perceptron(perceptron()).total["measured"] > 0


def test_there_is_a_row_for_each_layer_that_gets_a_gradient():
    model = small_network()
    model.block.conv2.requires_grad_(False)
    found = [row["layer"] for row in verified(model, draws=2).rows]
    assert found == ["stem.0", "stem.1", "block.conv1", "block.bn1", "block.bn2", "block.shortcut", "head"]


def test_a_model_that_is_one_layer_has_one_row():
    model = nn.Linear(300, 5)
    (row,) = of_perceptron(model).rows
    assert row["layer"] == "model"


def test_norms_are_those_of_the_exact_gradient():
    model = small_network()
    F.cross_entropy(model(images()), labels()).backward()
    conv = model.stem[0]
    expected = torch.cat([conv.weight.grad.flatten(), conv.bias.grad]).norm()
    found = verified(model, draws=2).rows[0]
    assert found["norm"] == pytest.approx(float(expected), rel=1e-5)


def test_eight_bits_add_far_less_variance_than_two():
    coarse, fine = verified(small_network(), 2), verified(small_network(), 8)
    for two, eight in zip(coarse.rows, fine.rows, strict=True):
        assert 0 < eight["measured"] < two["measured"] / 100


def test_the_measured_variance_is_that_of_many_steps():
    model = perceptron()
    found = of_perceptron(model).rows[0]["measured"]
    ours = actnn.QModule(model, level="L2", seed=5)
    draws = []
    for _ in range(200):
        ours.zero_grad()
        F.cross_entropy(ours(vectors()), labels(16)).backward()
        draws.append(ours[0].weight.grad.clone())
    assert found == pytest.approx(float(torch.stack(draws).var(0).sum()), rel=0.2)


@pytest.mark.parametrize("bits", [1, 4])
def test_codes_are_found_unbiased(bits):
    found = verified(small_network(), bits, draws=32)
    assert found.warning is None
    assert max(abs(row["bias_z"]) for row in (*found.rows, found.total)) < BIAS_ALARM


def test_nearest_rounding_is_found_biased():
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [2]
    actnn.config.stochastic = False
    found = actnn.verify(small_network(), (images(), labels()), F.cross_entropy, DRAWS)
    assert "off at" in found.warning
    assert all(row["bias_z"] > BIAS_ALARM for row in found.rows)


def test_float_rounding_is_no_bias():
    # nothing of the head's codes reaches its bias, but BatchNorm's forward differs by rounding from the plain one
    model = small_network()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == "head.bias")
    (row,) = verified(model).rows
    assert row["bias_z"] == 0.0
    assert row["measured"] == 0.0


def test_dropout_draws_the_same_masks_each_time():
    model = perceptron(nn.Dropout(0.5))
    found = of_perceptron(model, exact=[nn.Linear])
    assert found.total["measured"] == 0.0
    assert found.total["bias_z"] == 0.0


def test_dropout_adds_to_the_sampling_variance():
    without, dropped = of_perceptron(perceptron()), of_perceptron(perceptron(nn.Dropout(0.5)))
    assert dropped.total["sampling"] > 1.2 * without.total["sampling"]


def test_level_zero_shows_zeros():
    found = verified(small_network(), level="L0")
    assert {row[key] for row in found.rows for key in ("bias_z", "measured", "predicted")} == {0.0}
    assert found.conclusion == "Codes add no noise to this gradient: safe."


def test_layers_left_exact_have_no_variance():
    found = of_perceptron(perceptron(), exact=["0"])
    assert found.rows[0]["measured"] == 0.0
    assert found.rows[1]["measured"] > 0.0


def test_equal_seeds_give_equal_figures():
    first, second, other = (of_perceptron(perceptron(), seed=seed).rows for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_a_memory_budget_can_be_verified():
    small, large = (verified(small_network(), memory=memory).total["measured"] for memory in ("30 KiB", "200 KiB"))
    assert large < small


def test_a_converted_model_keeps_its_settings():
    found = {bits: verified(compressed(small_network(), bits), bits=4).total["measured"] for bits in (1, 8)}
    assert found[8] < found[1] / 1000


def test_layers_made_by_hand_are_compared_with_exact_ones():
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [2]
    model = nn.Sequential(actnn.QLinear(300, 5))
    F.cross_entropy(F.linear(vectors(), model[0].weight, model[0].bias), labels(16)).backward()
    expected = torch.cat([model[0].weight.grad.flatten(), model[0].bias.grad]).norm()
    found = actnn.verify(model, (vectors(), labels(16)), F.cross_entropy, DRAWS).rows[0]
    assert found["norm"] == pytest.approx(float(expected), rel=1e-5)
    assert found["measured"] > 0


def test_layers_that_the_user_put_into_evaluation_stay_there():
    model = small_network()
    model.stem[1].eval()
    F.cross_entropy(model(images()), labels()).backward()
    expected = torch.cat([parameter.grad for parameter in model.stem[1].parameters()]).norm()
    assert verified(model, draws=2).rows[1]["norm"] == pytest.approx(float(expected), rel=1e-5)


def test_a_model_in_evaluation_is_verified_in_training():
    assert verified(small_network().eval()).rows == verified(small_network()).rows


class TwoInputs(nn.Module):
    """A model of two inputs and a table that has no samples."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(300, 5), nn.Linear(300, 5)

    def forward(self, left, right, table=None):
        output = self.left(left) + self.right(right)
        return output if table is None else output * table.sum()


Pair = namedtuple("Pair", ["left", "right"])


@pytest.mark.parametrize(
    "inputs",
    [
        (vectors(), vectors()),
        [vectors(), vectors()],
        Pair(vectors(), vectors()),
        {"left": vectors(), "right": vectors()},
        {"left": vectors(), "right": vectors(), "table": torch.ones(3)},
    ],
    ids=["tuple", "list", "namedtuple", "dict", "other length"],
)
def test_inputs_can_be_several(inputs):
    found = actnn.verify(TwoInputs(), (inputs, labels(16)), F.cross_entropy, 2, level="L2")
    assert [row["layer"] for row in found.rows] == ["left", "right"]
    assert found.total["sampling"] > 0


def test_targets_can_be_a_nest():
    def loss(output, targets):
        return targets["weight"] * F.cross_entropy(output, targets["labels"][0])

    targets = {"weight": 2.0, "labels": [labels(16)]}
    found = actnn.verify(perceptron(), (vectors(), targets), loss, 2, level="L2")
    assert found.total["norm"] == pytest.approx(2 * of_perceptron(perceptron()).total["norm"], rel=1e-5)


def test_the_batch_may_be_a_list_as_loaders_give_it():
    actnn.verify(perceptron(), [vectors(), labels(16)], F.cross_entropy, 2, level="L2")


def test_sampling_is_the_variance_of_the_mean_over_the_batch():
    # the loss is linear in the weight: the gradient is the mean of the samples
    x = torch.randn(4000, 300, generator=torch.Generator().manual_seed(10))
    model = nn.Linear(300, 1, bias=False)
    found = actnn.verify(model, (x, None), lambda output, _: output.mean(), 2, level="L0")
    assert found.total["sampling"] == pytest.approx(300 / 4000, rel=0.15)


@pytest.mark.parametrize(("batch", "sampled"), [(3, False), (4, True), (11, True), (20, True)])
def test_sampling_needs_two_parts_of_two_samples(batch, sampled):
    found = actnn.verify(perceptron(), (vectors(batch), labels(batch)), F.cross_entropy, 2, level="L2")
    assert (found.total["sampling"] is not None) is sampled


def test_the_prediction_agrees_with_the_measurement():
    for row in of_perceptron(perceptron(nn.Dropout(0.2)), draws=40).rows:
        assert row["measured"] == pytest.approx(row["predicted"], rel=0.15)


def test_tied_weights_have_the_variance_of_all_layers_that_share_them():
    model = nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 300))
    model[2].weight = model[0].weight
    tied, bias = of_perceptron(model, draws=40).rows
    assert tied["measured"] == pytest.approx(tied["predicted"], rel=0.15)
    assert bias["measured"] == bias["predicted"] == 0.0


def test_half_precision_works():
    model = perceptron().bfloat16()
    found = actnn.verify(model, (vectors().bfloat16(), labels(16)), F.cross_entropy, DRAWS, level="L2")
    assert found.total["measured"] > 0
    assert found.warning is None


def test_sparse_gradients_work():
    model = nn.Sequential(nn.Embedding(50, 300, sparse=True), nn.Linear(300, 5))
    found = actnn.verify(model, (labels(16), labels(16)), F.cross_entropy, 2, level="L2")
    assert [row["layer"] for row in found.rows] == ["0", "1"]


@pytest.mark.parametrize("draws", [1, 0, -3, 2.5, True, "8"])
def test_too_few_draws_are_refused(draws):
    with pytest.raises(ConfigError, match="at least 2"):
        actnn.verify(perceptron(), (vectors(), labels(16)), F.cross_entropy, draws)


def test_what_is_not_a_module_is_refused():
    with pytest.raises(UnsupportedError, match=r"given a function: expected a torch\.nn\.Module"):
        actnn.verify(labels, (vectors(), labels(16)), F.cross_entropy)


@pytest.mark.parametrize("batch", [torch.zeros(2, 3), (torch.zeros(2),), {"inputs": 1, "targets": 2}, None])
def test_a_batch_that_is_not_a_pair_is_refused(batch):
    with pytest.raises(UnsupportedError, match=r"expected a pair, \(inputs, targets\)"):
        actnn.verify(perceptron(), batch, F.cross_entropy)


def test_a_loss_that_is_not_a_tensor_is_refused():
    with pytest.raises(UnsupportedError, match="returned a float"):
        actnn.verify(perceptron(), (vectors(), None), lambda output, _: 1.0, level="L2")


def test_a_loss_that_is_not_a_scalar_is_refused():
    with pytest.raises(ShapeError, match=r"shape \(16, 5\)"):
        actnn.verify(perceptron(), (vectors(), None), lambda output, _: output, level="L2")


@pytest.mark.parametrize("model", [perceptron().requires_grad_(False), nn.ReLU()], ids=["frozen", "no parameters"])
def test_a_model_that_gets_no_gradient_is_refused(model):
    with pytest.raises(UnsupportedError, match="nothing to verify"):
        actnn.verify(model, (vectors(), None), lambda output, _: output.sum(), level="L2")


def test_a_loss_that_reaches_the_input_only_is_refused():
    with pytest.raises(UnsupportedError, match="no parameter"):
        actnn.verify(nn.ReLU(), (vectors().requires_grad_(), None), lambda output, _: output.sum(), level="L2")


def test_a_gradient_that_is_not_finite_is_refused():
    x = vectors()
    x[0, 0] = torch.inf
    with pytest.raises(UnsupportedError, match="exact gradient is not finite"):
        actnn.verify(perceptron(), (x, labels(16)), F.cross_entropy, level="L2")


@pytest.mark.parametrize("setting", [{"level": "L2"}, {"exact": ["head"]}, {"seed": 0}])
def test_settings_beside_a_converted_model_are_refused(setting):
    with pytest.raises(ConfigError, match="settings of its own"):
        verified(compressed(small_network()), **setting)


def test_a_model_that_was_restored_is_refused():
    model = compressed(small_network())
    model.restore()
    with pytest.raises(SessionError, match="closed"):
        verified(model)


def test_a_bad_setting_is_refused_as_by_conversion():
    with pytest.raises(ConfigError, match="matches no layer"):
        of_perceptron(perceptron(), exact=["nothing"])
