"""Every compressed layer against its plain counterpart: forward, gradients, geometry, sizes and options."""

from __future__ import annotations

from inspect import signature

import numpy as np
import pytest
from frameworks import Framework, cases, input_of, numbers
from layer_cases import (
    EMPTY,
    FUNCTIONAL,
    FUNCTIONAL_OPTIONS,
    GEOMETRY,
    KINDS,
    LINEAR_GEOMETRY,
    MAPS,
    NORM_OPTIONS,
    NORMS,
    POOL_GEOMETRY,
    SIZES,
    Case,
)
from steps import check_equal, check_step, close, distance, same

import actnn

ALL = [*KINDS, *GEOMETRY, *NORM_OPTIONS, *SIZES, *FUNCTIONAL, *FUNCTIONAL_OPTIONS]
WITHOUT_POOLS = [case for case in GEOMETRY if case not in POOL_GEOMETRY]


# also defect 2 (AvgPool2d became max pooling, ConvTranspose with a bias crashed) and defect 4 (Linear of rank 3,
# dilation, ceil_mode and kernels of 16 and more in pooling)
@cases(ALL)
def test_a_step_at_eight_bits_is_within_one_percent_of_the_plain_one(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), input_of(case)
    found = framework.step(framework.compressed(layer), x)
    check_step(found, framework.step(layer, x), case)


@cases(KINDS, NORM_OPTIONS, FUNCTIONAL)
def test_a_second_step_is_within_one_percent_too(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), input_of(case)
    ours = framework.compressed(layer)
    for model in (ours, layer):
        framework.step(model, x + 1)
    check_step(framework.step(ours, x), framework.step(layer, x), case)


@cases(KINDS, GEOMETRY, FUNCTIONAL)
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_forward_does_not_depend_on_the_width(framework: Framework, case: Case, bits: int):
    layer, x = framework.plain_layer(case), input_of(case)
    found, expected = framework.step(framework.compressed(layer, bits), x), framework.step(layer, x)
    if "Norm" in case.kind:
        close(found.output, expected.output, 1e-5)
    else:
        same(found.output, expected.output)


@cases(MAPS, WITHOUT_POOLS)
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_gradients_of_input_and_bias_are_exact_at_any_width(framework: Framework, case: Case, bits: int):
    layer, x = framework.plain_layer(case), input_of(case)
    found, expected = framework.step(framework.compressed(layer, bits), x), framework.step(layer, x)
    for name in expected.gradients.keys() - {"weight"}:
        close(found.gradients[name], expected.gradients[name], framework.rounding, name)


@cases([case for case in ALL if case.lossless])
def test_lossless_layers_have_exact_gradients_at_one_bit(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), input_of(case)
    check_step(framework.step(framework.compressed(layer, bits=1), x), framework.step(layer, x), case)


@cases(KINDS, GEOMETRY, NORM_OPTIONS, FUNCTIONAL)
def test_evaluation_equals_the_plain_layer(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), input_of(case)
    framework.step(layer, x)
    ours = framework.evaluating(framework.compressed(layer))
    plain, x = framework.evaluating(layer), framework.tensor(x)
    with framework.no_grad():
        same(framework.array(ours(x)), framework.array(plain(x)))


@cases(KINDS, NORM_OPTIONS, FUNCTIONAL)
def test_gradients_in_evaluation_are_exact(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), input_of(case)
    framework.step(layer, x)
    ours = framework.evaluating(framework.compressed(layer))
    found, expected = framework.step(ours, x), framework.step(framework.evaluating(layer), x)
    for name, gradient in expected.gradients.items():
        close(found.gradients[name], gradient, 1e-5, name)


@cases([case for case in [*NORMS, *NORM_OPTIONS] if case.options.get("track_running_stats", True)])
def test_running_statistics_do_not_change_in_evaluation(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), input_of(case)
    ours = framework.evaluating(framework.compressed(layer))
    before = framework.buffers(ours)
    assert before
    framework.step(ours, x)
    for name, buffer in framework.buffers(ours).items():
        same(buffer, before[name], name)


@cases(NORMS, NORM_OPTIONS)
def test_running_statistics_follow_those_of_the_plain_layer_over_steps(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), input_of(case)
    ours = framework.compressed(layer)
    for number in range(4):
        found, expected = (framework.step(model, x * (number + 1) + number) for model in (ours, layer))
    assert found.buffers.keys() == expected.buffers.keys()
    for name, buffer in expected.buffers.items():
        close(found.buffers[name], buffer, 1e-5, name)


@cases(NORMS)
def test_a_batch_norm_without_recorded_gradient_updates_its_statistics(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), framework.tensor(input_of(case))
    ours = framework.compressed(layer)
    with framework.no_grad():
        ours(x), layer(x)
    found, expected = framework.buffers(ours), framework.buffers(layer)
    assert expected
    for name, buffer in expected.items():
        close(found[name], buffer, 1e-5, name)


@cases(EMPTY)
def test_an_empty_batch_works_as_in_the_plain_layer(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), input_of(case)
    check_equal(framework.step(framework.compressed(layer), x), framework.step(layer, x))


def test_an_empty_batch_of_batch_norm_does_what_the_plain_layer_does(framework: Framework):
    layer, x = framework.layer("BatchNorm2d", 3), framework.tensor(numbers((0, 3, 4, 4)))
    ours = framework.compressed(layer)
    try:
        expected = layer(x)
    except (RuntimeError, ValueError) as problem:
        with pytest.raises(type(problem)):
            ours(x)
    else:
        same(framework.array(ours(x)), framework.array(expected))


@cases(LINEAR_GEOMETRY)
def test_the_gradient_of_a_linear_input_has_its_shape(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), input_of(case)
    assert framework.step(framework.compressed(layer, bits=2), x).gradients["input"].shape == x.shape


@cases(KINDS, GEOMETRY, SIZES, FUNCTIONAL)
@pytest.mark.parametrize("threshold", [1, 5000])
def test_a_backward_in_pieces_gives_the_gradients_of_one_in_one_piece(framework: Framework, case: Case, threshold: int):
    layer, x = framework.plain_layer(case), input_of(case)
    pieces, whole = framework.compressed(layer, 2, pipeline_threshold=threshold), framework.compressed(layer, 2)
    for _ in range(2):
        found, expected = framework.step(pieces, x), framework.step(whole, x)
    for name, gradient in expected.gradients.items():
        close(found.gradients[name], gradient, 1e-5, name)


@pytest.mark.parametrize("size", [(23, 15), (24, 16)])
def test_a_transposed_convolution_takes_an_output_size(framework: Framework, size):
    layer, x = framework.layer("ConvTranspose2d", 6, 4, 3, stride=2), framework.tensor(numbers((2, 6, 11, 7)))
    ours = framework.compressed(layer)
    found, expected = (model(x, output_size=list(size)) for model in (ours, layer))
    same(framework.array(found), framework.array(expected))


def test_a_transposed_convolution_with_an_output_size_has_the_plain_gradient(framework: Framework):
    layer, x = framework.layer("ConvTranspose2d", 6, 4, 3, stride=2), framework.tensor(numbers((2, 6, 11, 7)))
    ours = framework.compressed(layer)
    for model in (ours, layer):
        model(x, output_size=[24, 16]).square().sum().backward()
    close(framework.gradients(ours)["weight"], framework.gradients(layer)["weight"], 0.01)


@pytest.mark.parametrize("kind", ["ReLU", "ReLU6", "LeakyReLU"])
def test_gradients_at_the_edges_of_an_activation_are_those_of_the_plain_one(framework: Framework, kind):
    edges = np.tile(np.array([0.0, -0.0, 6.0, 1e-45, -1e-45, 5.9999995, np.inf, -np.inf], np.float32), 40)
    layer = framework.layer(kind)
    check_equal(framework.step(framework.compressed(layer), edges), framework.step(layer, edges))


def test_the_gradient_of_relu_at_nan_is_that_of_the_plain_layer(framework: Framework):
    layer, x = framework.layer("ReLU"), np.full(300, np.nan, np.float32)
    check_equal(framework.step(framework.compressed(layer), x), framework.step(layer, x))


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_dropout_draws_what_the_plain_layer_draws(framework: Framework, probability):
    layer, x = framework.layer("Dropout", probability), numbers((4, 6, 11, 13))
    check_equal(framework.step(framework.compressed(layer), x), framework.step(layer, x))


def test_max_pooling_of_equal_values_sends_the_gradient_where_the_plain_layer_does(framework: Framework):
    layer, x = framework.layer("MaxPool2d", 3, stride=2, padding=1), np.zeros((2, 3, 9, 9), np.float32)
    check_equal(framework.step(framework.compressed(layer), x), framework.step(layer, x))


@cases(KINDS, FUNCTIONAL)
def test_a_layer_made_by_hand_works_as_its_plain_counterpart(framework: Framework, case: Case):
    framework.prepare(8)
    plain = framework.plain_layer(case)
    by_hand = framework.made_by_hand(case.kind, *case.arguments, **case.options)
    framework.load(by_hand, plain.state_dict())
    x = input_of(case)
    check_step(framework.step(by_hand, x), framework.step(plain, x), case)


@cases([case for case in MAPS if case.kind != "Linear"])
def test_the_group_of_a_layer_made_by_hand_chooses_its_width(framework: Framework, case: Case):
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [1, 8]
    layer, x = framework.plain_layer(case), input_of(case)
    expected = framework.step(layer, x)
    errors = []
    for group in (0, 1):
        by_hand = framework.made_by_hand(case.kind, *case.arguments, **case.options, group=group)
        framework.load(by_hand, layer.state_dict())
        errors.append(distance(framework.step(by_hand, x).gradients["weight"], expected.gradients["weight"]))
    assert errors[0] > 20 * errors[1]


def test_a_layer_made_by_hand_with_a_group_that_has_no_width_is_refused(framework: Framework):
    actnn.set_optimization_level("L2")
    with pytest.raises(actnn.ConfigError, match="group=1"):
        framework.made_by_hand("Conv2d", 3, 4, 3, group=1)


def test_layers_made_by_hand_draw_different_noise(framework: Framework):
    actnn.set_optimization_level("L2")
    x, grad = framework.tensor(numbers((16, 300))), framework.tensor(numbers((16, 5), 3))
    layers = [framework.made_by_hand("Linear", 300, 5) for _ in range(2)]
    for layer in layers:
        layer(x).backward(grad)
    first, second = (framework.gradients(layer)["weight"] for layer in layers)
    assert not np.array_equal(first, second)


@cases(KINDS, FUNCTIONAL)
@pytest.mark.parametrize("level", ["L0", "L3"])
def test_an_input_may_be_given_by_the_name_that_the_plain_layer_has_for_it(
    framework: Framework, case: Case, level: str
):
    layer, x = framework.plain_layer(case), framework.tensor(input_of(case))
    name = list(signature(type(layer).forward).parameters)[1]
    ours = actnn.QModule(layer, level=level)
    assert ours(**{name: x}).shape == ours(x).shape
