"""A step of a converted model begins and ends whichever way the model was called."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from frameworks import Framework, Model, numbers, vector

STEPS = 5
CLASSES = 5


def features(model: Model, x):
    return model.rectify(x_of(model.stem(x), model)).mean((2, 3))


def x_of(x, model: Model):
    return x + model.branch(x)


def whole(model: Model, x):
    return model.head(model.features(x))


def network(framework: Framework) -> Model:
    """Return a model whose forward calls a method of its own, which calls layers and a function."""
    layer = framework.layer
    block = layer("Conv2d", 8, 8, 3, padding=1), layer("BatchNorm2d", 8), layer("ReLU")
    parts = {
        "stem": framework.sequential(layer("Conv2d", 3, 8, 3, padding=1), layer("BatchNorm2d", 8), layer("ReLU")),
        "branch": framework.sequential(*block, layer("Conv2d", 8, 8, 3, padding=1), layer("BatchNorm2d", 8)),
        "head": layer("Linear", 8, CLASSES),
        "rectify": framework.relu,
    }
    model = framework.initialised(framework.wired(whole, **parts), 0)
    model.__class__ = type("WithFeatures", (type(model),), {"features": features})
    return model


def trained(framework: Framework, model: Model, call: Callable[[Any], Any], batch: int = 16) -> np.ndarray:
    """Take some steps, and return the gradient of the last."""
    x, targets = numbers((batch, 3, 12, 12)), np.random.default_rng(0).integers(0, CLASSES, batch)
    for _ in range(STEPS):
        framework.clear(model)
        framework.cross_entropy(call(framework.tensor(x)), targets).backward()
    return vector(framework.gradients(model))


def converted(framework: Framework, **settings: Any) -> tuple[Model, Model]:
    """Return a model and its wrapper."""
    plain = network(framework)
    return plain, framework.actnn.QModule(plain, level="L3", **settings)


WAYS: dict[str, Callable[[Model, Model], Callable[[Any], Any]]] = {
    "the model itself": lambda plain, ours: plain,
    "a method": lambda plain, ours: lambda x: ours.head(ours.features(x)),
    "its forward": lambda plain, ours: ours.forward,
}


@pytest.mark.parametrize("way", WAYS)
def test_widths_are_decided_whichever_way_a_step_came_in(framework: Framework, way: str):
    expected = trained(framework, *twice(converted(framework)[1]))
    plain, ours = converted(framework)
    np.testing.assert_array_equal(trained(framework, ours, WAYS[way](plain, ours)), expected)


def twice(model: Model) -> tuple[Model, Model]:
    return model, model


def test_widths_are_decided_where_nobody_kept_the_wrapper(framework: Framework):
    expected = trained(framework, *twice(converted(framework)[1]))
    plain = network(framework)
    framework.actnn.QModule(plain, level="L3")
    np.testing.assert_array_equal(trained(framework, plain, plain), expected)


def test_parts_that_are_called_one_by_one_make_steps_with_widths_of_their_own(framework: Framework):
    plain, ours = converted(framework)
    trained(framework, ours, lambda x: plain.head(plain.branch(plain.stem(x)).mean((2, 3))))
    widths = {row.bits for row in ours.report().rows if row.elements and row.layer.startswith(("stem", "branch"))}
    assert len(widths) > 2


@pytest.mark.parametrize("way", WAYS)
def test_a_memory_budget_holds_whichever_way_a_step_came_in(framework: Framework, way: str):
    plain, ours = converted(framework, memory="40KB")
    call = WAYS[way](plain, ours)
    trained(framework, ours, call)
    x = framework.tensor(numbers((16, 3, 12, 12)))
    assert framework.saved_bytes(ours, lambda: call(x)) <= 40_000
    report = ours.report()
    assert report.kept_bytes + report.other_bytes <= 40_000


def test_a_method_that_trains_nothing_ends_no_step(framework: Framework):
    expected = trained(framework, *twice(converted(framework)[1]))
    plain, ours = converted(framework)
    type(plain).count = lambda self: len(list(self.parameters()))

    def counted(x):
        ours.count()
        y = ours(x)
        ours.count()
        return y

    np.testing.assert_array_equal(trained(framework, ours, counted), expected)


def test_a_method_keeps_its_name_and_its_signature(framework: Framework):
    _, ours = converted(framework)
    assert ours.features.__name__ == "features"


def test_a_method_that_fails_leaves_the_model_fit_for_use(framework: Framework):
    expected = trained(framework, *twice(converted(framework)[1]))
    _, ours = converted(framework)
    with pytest.raises(Exception, match=r".*"):
        ours.features(framework.tensor(numbers((2, 5, 12, 12))))
    np.testing.assert_array_equal(trained(framework, ours, ours), expected)


def exact_gradient(framework: Framework) -> np.ndarray:
    plain = network(framework)
    return trained(framework, plain, plain)


def test_a_new_conversion_takes_over_from_one_that_was_dropped(framework: Framework):
    plain = network(framework)
    framework.actnn.QModule(plain, level="L3")
    framework.actnn.QModule(plain, level="L2", exact=["*"])
    np.testing.assert_array_equal(trained(framework, plain, plain), exact_gradient(framework))


def test_another_level_takes_over_from_one_that_was_dropped(framework: Framework):
    plain = network(framework)
    framework.actnn.QModule(plain, level="L3")
    ours = framework.actnn.QModule(plain, level="L2")
    twin = framework.actnn.QModule(network(framework), level="L2")
    np.testing.assert_array_equal(trained(framework, plain, ours), trained(framework, twin, twin))
    np.testing.assert_array_equal(trained(framework, ours.restore(), plain), exact_gradient(framework))


def functional(model: Model, x):
    return model.rectify(x @ model.weight)


def test_a_model_without_layers_is_not_converted_twice(framework: Framework):
    model = framework.wired(functional, weight=framework.parameter(numbers((8, 8))), rectify=framework.relu)
    first = framework.actnn.QModule(model)
    with pytest.raises(framework.actnn.ConfigError, match="restore"):
        framework.actnn.QModule(model)
    first.restore()
    framework.actnn.QModule(model)


def test_a_copy_of_a_converted_model_is_as_much_in_use(framework: Framework):
    _, ours = converted(framework)
    twin = deepcopy(ours)
    with pytest.raises(framework.actnn.ConfigError, match="restore"):
        framework.actnn.QModule(twin.branch)
