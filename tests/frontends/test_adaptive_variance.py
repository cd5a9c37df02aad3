"""Widths decided while training leave gradients unbiased, and are predicted to make them less noisy."""

from __future__ import annotations

import numpy as np
import pytest
from frameworks import Framework, Model
from networks import small_network
from planned_networks import (
    NETWORKS,
    pictures,
    plain_network,
    residual_network,
    train,
    widths_of,
)
from z_tests import check_unbiased

REPEATS = 150


def check_mean(framework: Framework, model: Model, exact) -> None:
    """Raise unless the mean gradient of every parameter is exact."""
    found = framework.many_gradients(model, pictures(), REPEATS)
    for name in exact.keys() - {"input"}:
        check_unbiased(found[name], exact[name])


@pytest.mark.parametrize(("bits", "rounding"), [(1.5, "dither"), (2, "dither"), (1.5, "stochastic")])
def test_gradients_are_unbiased(framework: Framework, bits: float, rounding: str):
    network, x = small_network(framework), pictures()
    model = framework.compressed(network, bits, level="L3", rounding=rounding)
    model.set_samples(range(len(x)))
    framework.step(model, x)
    assert any(max(widths) - min(widths) > 1 for widths in widths_of(framework, model, x).values())
    check_mean(framework, model, framework.step(network, x).gradients)


def test_gradients_are_unbiased_without_shared_codes(framework: Framework):
    network, x = small_network(framework), pictures()
    model = framework.compressed(network, 1.5, level="L3", share_codes=False)
    framework.step(model, x)
    check_mean(framework, model, framework.step(network, x).gradients)


def predicted(framework: Framework, model: Model) -> dict[str, float]:
    """Return the variance that is predicted for one step."""
    model._session.predictions = {}
    train(framework, model, pictures())
    found = model._session.predictions
    model._session.predictions = None
    return found


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("bits", [2, 3])
def test_the_predicted_variance_is_below_that_of_equal_widths(framework: Framework, network, bits: int):
    totals = []
    for level in ("L2", "L3"):
        model = framework.compressed(network(framework), bits, level=level)
        for _ in range(4):
            train(framework, model, pictures())
        totals.append(sum(predicted(framework, model).values()))
        assert model.report().average_bits == pytest.approx(bits, rel=0.01)
    assert totals[1] < totals[0]


@pytest.mark.parametrize("network", [plain_network, residual_network])
@pytest.mark.parametrize("level", ["L2", "L3"])
def test_predictions_are_there_for_every_layer_whose_gradient_a_code_gave(framework: Framework, network, level: str):
    model = framework.compressed(network(framework), 2, level=level)
    train(framework, model, pictures())
    found = predicted(framework, model)
    kinds = {f"Q{framework.type_name(kind)}" for kind in ("Conv2d", "BatchNorm2d")}
    readers = {name for name, layer in framework.layers(model) if type(layer).__name__ in kinds}
    assert readers
    assert readers <= found.keys()
    assert all(np.isfinite(value) and value >= 0 for value in found.values())


def test_predictions_are_collected_only_where_they_are_asked_for(framework: Framework):
    model = framework.compressed(plain_network(framework), 2, level="L3")
    predicted(framework, model)
    train(framework, model, pictures())
    assert model._session.predictions is None
