"""Half precision, automatic choice of types, and values that are not finite."""

from __future__ import annotations

import numpy as np
import pytest
from frameworks import Framework, cases, input_of, numbers
from layer_cases import FUNCTIONAL, KINDS, MAPS, NORMS, ROW_NORMS, Case
from networks import images, small_network
from steps import check_finite, close, same

from actnn.operations.normalization import MEAN, joined

halves = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
# what a norm of gradients may be off: coding at 8 bits, and the rounding of the type itself
TOLERANCE = {"bfloat16": 0.02, "float16": 0.012}


@cases(KINDS, FUNCTIONAL)
@halves
def test_autocast_gives_the_forward_of_the_plain_layer(framework: Framework, case: Case, dtype: str):
    layer, x = framework.plain_layer(case), input_of(case)
    ours = framework.compressed(layer)
    found, expected = (framework.step(model, x, autocast=dtype) for model in (ours, layer))
    assert found.dtypes == expected.dtypes
    if case in (*NORMS, *ROW_NORMS):
        close(found.output, expected.output, 1e-5)
    else:
        same(found.output, expected.output)


@cases(KINDS, FUNCTIONAL)
@halves
def test_autocast_gives_gradients_near_the_plain_ones(framework: Framework, case: Case, dtype: str):
    layer, x = framework.plain_layer(case), input_of(case)
    ours = framework.compressed(layer)
    for model in (ours, layer):
        framework.step(model, x)
    found, expected = (framework.step(model, x, autocast=dtype) for model in (ours, layer))
    assert found.dtypes == expected.dtypes
    for name, gradient in expected.gradients.items():
        close(found.gradients[name], gradient, TOLERANCE[dtype], name)


@halves
def test_a_network_trains_under_autocast_near_the_plain_one(framework: Framework, dtype: str):
    network, x = small_network(framework), images()
    ours = framework.compressed(network)
    for model in (ours, network):
        framework.step(model, x)
    found, expected = (framework.step(model, x, autocast=dtype) for model in (ours, network))
    close(found.output, expected.output, 0.02)
    for name in ("stem.0.weight", "stem.1.weight", "block.conv1.weight", "block.conv2.weight", "head.weight"):
        close(found.gradients[name], expected.gradients[name], 0.06, name)


def test_autocast_keeps_codes_and_not_activations(framework: Framework):
    ours, x = framework.compressed(small_network(framework), 2), images(16)
    for _ in range(2):
        framework.step(ours, x, autocast="bfloat16")
    assert ours.report().ratio > 5


@cases([*MAPS, *NORMS])
@pytest.mark.parametrize("trouble", [np.nan, np.inf, -np.inf])
def test_an_input_that_is_not_finite_shows_wherever_it_does_in_the_plain_gradient(
    framework: Framework, case: Case, trouble: float
):
    layer, x = framework.plain_layer(case), input_of(case)
    x.reshape(-1)[7] = trouble
    steps = (framework.step(model, x) for model in (framework.compressed(layer, 2), layer))
    found, expected = (np.isfinite(step.gradients["weight"]) for step in steps)
    assert not expected.all()
    assert not found[~expected].any()


@cases(MAPS)
def test_an_overflow_in_one_sample_leaves_the_gradient_of_the_bias_exact(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), input_of(case)
    expected = framework.step(layer, x).gradients["bias"]
    x.reshape(-1)[7] = np.inf
    close(framework.step(framework.compressed(layer, 2), x).gradients["bias"], expected, 1e-5)


def test_an_overflow_is_gone_in_the_next_step(framework: Framework):
    ours, broken = framework.compressed(small_network(framework), 2), images()
    broken[0, 0, 0, 0] = np.inf
    framework.step(framework.evaluating(ours), broken)
    framework.training(ours)
    check_finite(framework.step(ours, images()).gradients)


def test_large_activations_do_not_overflow_their_scales(framework: Framework):
    # a range beyond that of float16
    x = np.full((8, 300), 40000.0, np.float32)
    x[:, ::2] = -40000
    layer, grad = framework.layer("Linear", 300, 4), numbers((8, 4)) * 1e-4
    found, expected = (framework.step(model, x, grad) for model in (framework.compressed(layer), layer))
    close(found.gradients["weight"], expected.gradients["weight"], 0.05)


class Alone:
    """A process group of one."""

    def gathered(self, values):
        """Return the values of every process."""
        return values[None]


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_an_overflow_in_a_joined_batch_stays_visible(framework: Framework, value: float):
    def channel(*values: float):
        return framework.tensor(np.array(values, np.float32))

    tensors = framework.made_by_hand("BatchNorm2d", 2).tensors
    local = [channel(value, 1.0), channel(value, 2.0), channel(0.0, 0.0), channel(value, 3.0)]
    statistics, count, _ = joined(tensors, tensors.stack(local, 0), 8, Alone())
    assert count == 8
    assert not np.isfinite(framework.array(statistics[MEAN])[0])
    assert framework.array(statistics[MEAN])[1] == 1.0
