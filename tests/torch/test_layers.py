"""Every compressed layer against its plain counterpart: forward, gradients, geometry, sizes and options."""

from __future__ import annotations

import pytest
import torch
from layer_cases import EMPTY, GEOMETRY, KINDS, LINEAR_GEOMETRY, MAPS, NORM_OPTIONS, NORMS, POOLS, SIZES, Case
from torch import nn
from torch_layers import check_equal, check_step, close, compressed, input_of, plain_layer, same, step

import actnn

ALL = [*KINDS, *GEOMETRY, *NORM_OPTIONS, *SIZES]


def cases(*tables):
    return pytest.mark.parametrize("case", [case for table in tables for case in table], ids=str)


# also defect 2 (AvgPool2d became max pooling, ConvTranspose with a bias crashed) and defect 4 (Linear of rank 3,
# dilation, ceil_mode and kernels of 16 and more in pooling)
@cases(ALL)
def test_a_step_at_eight_bits_is_within_one_percent_of_the_plain_one(case: Case):
    layer, x = plain_layer(case), input_of(case)
    found = step(compressed(layer), x)
    check_step(found, step(layer, x), case)


@cases(KINDS, NORM_OPTIONS)
def test_a_second_step_is_within_one_percent_too(case: Case):
    layer, x = plain_layer(case), input_of(case)
    ours = compressed(layer)
    for model in (ours, layer):
        step(model, x + 1)
    check_step(step(ours, x), step(layer, x), case)


@cases(KINDS, GEOMETRY)
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_forward_does_not_depend_on_the_width(case: Case, bits: int):
    layer, x = plain_layer(case), input_of(case)
    if case.kind.startswith("BatchNorm"):
        close(step(compressed(layer, bits), x).output, step(layer, x).output, 1e-5)
    else:
        same(step(compressed(layer, bits), x).output, step(layer, x).output)


@cases(MAPS, GEOMETRY[: -len(POOLS)])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_gradients_of_input_and_bias_are_exact_at_any_width(case: Case, bits: int):
    layer, x = plain_layer(case), input_of(case)
    found, expected = step(compressed(layer, bits), x), step(layer, x)
    for name in expected.gradients.keys() - {"weight"}:
        close(found.gradients[name], expected.gradients[name], 1e-6, name)


@cases([case for case in ALL if case.lossless])
def test_lossless_layers_have_exact_gradients_at_one_bit(case: Case):
    layer, x = plain_layer(case), input_of(case)
    check_step(step(compressed(layer, bits=1), x), step(layer, x), case)


@cases(KINDS, GEOMETRY, NORM_OPTIONS)
def test_evaluation_equals_the_plain_layer(case: Case):
    layer, x = plain_layer(case), input_of(case)
    step(layer, x)
    ours = compressed(layer).eval()
    with torch.no_grad():
        same(ours(x), layer.eval()(x))


@cases(KINDS, NORM_OPTIONS)
def test_gradients_in_evaluation_are_exact(case: Case):
    layer, x = plain_layer(case), input_of(case)
    step(layer, x)
    ours = compressed(layer).eval()
    found, expected = step(ours, x), step(layer.eval(), x)
    for name, gradient in expected.gradients.items():
        close(found.gradients[name], gradient, 1e-5, name)


@cases(KINDS, NORM_OPTIONS)
def test_running_statistics_do_not_change_in_evaluation(case: Case):
    layer, x = plain_layer(case), input_of(case)
    ours = compressed(layer).eval()
    before = {name: buffer.clone() for name, buffer in ours.named_buffers()}
    step(ours, x)
    for name, buffer in ours.named_buffers():
        same(buffer, before[name], name)


@cases(NORMS, NORM_OPTIONS)
def test_running_statistics_follow_those_of_the_plain_layer_over_steps(case: Case):
    layer, x = plain_layer(case), input_of(case)
    ours = compressed(layer)
    for number in range(4):
        found, expected = (step(model, x * (number + 1) + number) for model in (ours, layer))
    assert found.buffers.keys() == expected.buffers.keys()
    for name, buffer in expected.buffers.items():
        close(found.buffers[name], buffer, 1e-5, name)


@cases(NORMS)
def test_a_batch_norm_without_recorded_gradient_updates_its_statistics(case: Case):
    layer, x = plain_layer(case), input_of(case)
    ours = compressed(layer)
    with torch.no_grad():
        ours(x), layer(x)
    for name, buffer in layer.named_buffers():
        close(ours.get_buffer(name), buffer, 1e-5, name)


@cases(EMPTY)
def test_an_empty_batch_works_as_in_the_plain_layer(case: Case):
    layer, x = plain_layer(case), input_of(case)
    check_equal(step(compressed(layer), x), step(layer, x))


def test_an_empty_batch_of_batch_norm_does_what_the_plain_layer_does():
    layer, x = nn.BatchNorm2d(3), torch.empty(0, 3, 4, 4)
    ours = compressed(layer)
    try:
        expected = layer(x)
    except (RuntimeError, ValueError) as problem:
        with pytest.raises(type(problem)):
            ours(x)
    else:
        same(ours(x), expected)


@cases(LINEAR_GEOMETRY)
def test_the_gradient_of_a_linear_input_has_its_shape(case: Case):
    layer, x = plain_layer(case), input_of(case)
    assert step(compressed(layer, bits=2), x).gradients["input"].shape == x.shape


@cases(KINDS, GEOMETRY, SIZES)
@pytest.mark.parametrize("threshold", [1, 5000])
def test_a_backward_in_pieces_gives_the_gradients_of_one_in_one_piece(case: Case, threshold: int):
    layer, x = plain_layer(case), input_of(case)
    pieces, whole = compressed(layer, 2, pipeline_threshold=threshold), compressed(layer, 2)
    for _ in range(2):
        found, expected = step(pieces, x), step(whole, x)
    for name, gradient in expected.gradients.items():
        close(found.gradients[name], gradient, 1e-5, name)


@pytest.mark.parametrize("size", [(23, 15), (24, 16)])
def test_a_transposed_convolution_takes_an_output_size(size):
    layer, x = nn.ConvTranspose2d(6, 4, 3, stride=2), torch.randn(2, 6, 11, 7)
    ours = compressed(layer)
    same(ours(x, output_size=list(size)), layer(x, output_size=list(size)))


def test_a_transposed_convolution_with_an_output_size_has_the_plain_gradient():
    layer, x = nn.ConvTranspose2d(6, 4, 3, stride=2), torch.randn(2, 6, 11, 7)
    ours = compressed(layer)
    for model in (ours, layer):
        model(x, output_size=[24, 16]).square().sum().backward()
    close(ours.weight.grad, layer.weight.grad, 0.01)


@pytest.mark.parametrize("kind", ["ReLU", "ReLU6", "LeakyReLU"])
def test_gradients_at_the_edges_of_an_activation_are_those_of_the_plain_one(kind):
    edges = torch.tensor([0.0, -0.0, 6.0, 1e-45, -1e-45, 5.9999995, float("inf"), -float("inf")]).repeat(40)
    layer = getattr(nn, kind)()
    check_equal(step(compressed(layer), edges), step(layer, edges))


def test_the_gradient_of_relu_at_nan_is_that_of_the_plain_layer():
    layer, x = nn.ReLU(), torch.full((300,), float("nan"))
    check_equal(step(compressed(layer), x), step(layer, x))


@pytest.mark.parametrize(
    "layer", [nn.ReLU(True), nn.ReLU6(True), nn.LeakyReLU(0.1, True), nn.Dropout(0.3, True)], ids=str
)
def test_a_layer_that_works_in_place_returns_its_input(layer):
    x = torch.randn(4, 300).requires_grad_() * 1
    assert compressed(layer)(x) is x


@pytest.mark.parametrize(
    "layer", [nn.ReLU(True), nn.ReLU6(True), nn.LeakyReLU(0.1, True), nn.Dropout(0.3, True)], ids=str
)
def test_a_layer_that_works_in_place_has_the_plain_gradient(layer):
    x = torch.randn(4, 300)
    check_equal(step(compressed(layer), x), step(layer, x))


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_dropout_draws_what_the_plain_layer_draws(probability):
    layer, x = nn.Dropout(probability), torch.randn(4, 6, 11, 13)
    check_equal(step(compressed(layer), x), step(layer, x))


def test_max_pooling_of_equal_values_sends_the_gradient_where_the_plain_layer_does():
    layer, x = nn.MaxPool2d(3, stride=2, padding=1), torch.zeros(2, 3, 9, 9)
    check_equal(step(compressed(layer), x), step(layer, x))


def test_max_pooling_of_minus_infinity_sends_the_gradient_where_the_plain_layer_does():
    layer, x = nn.MaxPool2d(3, stride=2, padding=1), torch.full((2, 3, 9, 9), -float("inf"))
    check_equal(step(compressed(layer), x), step(layer, x))


def test_max_pooling_of_nan_sends_the_gradient_where_the_plain_layer_does():
    layer, x = nn.MaxPool2d(3, stride=2, padding=1), torch.randn(2, 3, 9, 9)
    x[0, 0, 4, 4] = float("nan")
    check_equal(step(compressed(layer), x), step(layer, x))


def test_a_pool_that_returns_indices_is_left_as_it_is():
    layer, x = nn.MaxPool2d(2, return_indices=True), torch.randn(2, 3, 8, 8)
    (ours, positions), (expected, indices) = compressed(layer)(x), layer(x)
    same(ours, expected)
    same(positions, indices)


@cases(KINDS)
def test_a_layer_made_by_hand_works_as_its_plain_counterpart(case: Case):
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [8]
    plain = plain_layer(case)
    by_hand = getattr(actnn, f"Q{case.kind}")(*case.arguments, **case.options)
    by_hand.load_state_dict(plain.state_dict())
    x = input_of(case)
    check_step(step(by_hand, x), step(plain, x), case)


@pytest.mark.parametrize("case", [case for case in MAPS if case.kind != "Linear"], ids=str)
def test_the_group_of_a_layer_made_by_hand_chooses_its_width(case: Case):
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [1, 8]
    layer, x = plain_layer(case), input_of(case)
    expected = step(layer, x)
    errors = []
    for group in (0, 1):
        by_hand = getattr(actnn, f"Q{case.kind}")(*case.arguments, **case.options, group=group)
        by_hand.load_state_dict(layer.state_dict())
        errors.append((step(by_hand, x).gradients["weight"] - expected.gradients["weight"]).norm())
    assert errors[0] > 20 * errors[1]


def test_a_layer_made_by_hand_with_a_group_that_has_no_width_is_refused():
    actnn.set_optimization_level("L2")
    with pytest.raises(actnn.ConfigError, match="group=1"):
        actnn.QConv2d(3, 4, 3, group=1)


def test_layers_made_by_hand_draw_different_noise():
    actnn.set_optimization_level("L2")
    x, grad = torch.randn(16, 300), torch.randn(16, 5)
    first = actnn.QLinear(300, 5)
    second = actnn.QLinear(300, 5)
    for layer in (first, second):
        layer(x).backward(grad)
    assert not torch.equal(first.weight.grad, second.weight.grad)
