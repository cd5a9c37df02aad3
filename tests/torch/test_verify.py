"""verify of torch's models: nests, tied weights, sparse and half precision gradients, and what is refused."""

from __future__ import annotations

import pytest
import torch
from networks import images, small_network
from torch import nn
from torch.nn import functional as F
from torch_framework import FRAMEWORK

import actnn
from actnn.errors import ConfigError, SessionError, UnsupportedError

DRAWS = 12


def labels(batch: int = 8) -> torch.Tensor:
    return torch.arange(batch) % 5


def verified(model: nn.Module, bits: int = 2, draws: int = DRAWS, batch: int = 8, **settings):
    """Return the verification of a model of images at level L2, with other widths."""
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [bits]
    return actnn.verify(model, (FRAMEWORK.tensor(images(batch)), labels(batch)), F.cross_entropy, draws, **settings)


def perceptron(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(300, 20), nn.ReLU(), *between, nn.Linear(20, 5))


def vectors(batch: int = 16) -> torch.Tensor:
    return torch.randn(batch, 300, generator=torch.Generator().manual_seed(9))


def of_perceptron(model: nn.Module, draws: int = DRAWS, **settings):
    return actnn.verify(model, (vectors(), labels(16)), F.cross_entropy, draws, level="L2", **settings)


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
    model = small_network(FRAMEWORK)
    model.stem[1].eval()
    F.cross_entropy(model(FRAMEWORK.tensor(images())), labels()).backward()
    expected = torch.cat([parameter.grad for parameter in model.stem[1].parameters()]).norm()
    assert verified(model, draws=2).rows[1]["norm"] == pytest.approx(float(expected), rel=1e-5)


def test_targets_can_be_a_nest():
    def loss(output, targets):
        return targets["weight"] * F.cross_entropy(output, targets["labels"][0])

    targets = {"weight": 2.0, "labels": [labels(16)]}
    found = actnn.verify(perceptron(), (vectors(), targets), loss, 2, level="L2")
    assert found.total["norm"] == pytest.approx(2 * of_perceptron(perceptron()).total["norm"], rel=1e-5)


def test_the_batch_may_be_a_list_as_loaders_give_it():
    found = actnn.verify(perceptron(), [vectors(), labels(16)], F.cross_entropy, DRAWS, level="L2")
    assert found.rows == of_perceptron(perceptron()).rows


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


def test_a_loss_that_reaches_the_input_only_is_refused():
    with pytest.raises(UnsupportedError, match="no parameter"):
        actnn.verify(nn.ReLU(), (vectors().requires_grad_(), None), lambda output, _: output.sum(), level="L2")


@pytest.mark.parametrize("setting", [{"level": "L2"}, {"exact": ["head"]}, {"seed": 0}])
def test_settings_beside_a_converted_model_are_refused(setting):
    with pytest.raises(ConfigError, match="settings of its own"):
        verified(FRAMEWORK.compressed(small_network(FRAMEWORK)), **setting)


def test_a_model_that_was_restored_is_refused():
    model = FRAMEWORK.compressed(small_network(FRAMEWORK))
    model.restore()
    with pytest.raises(SessionError, match="closed"):
        verified(model)


def test_a_bad_setting_is_refused_as_by_conversion():
    with pytest.raises(ConfigError, match="matches no layer"):
        of_perceptron(perceptron(), exact=["nothing"])
