"""Bad input gives a typed error that says what to do, and leaves the model as it was."""

from __future__ import annotations

import pytest
import torch
from layer_cases import KINDS, MAPS, NORMS, POOLS, Case
from torch import nn
from torch_layers import compressed, images, input_of, plain_layer, same, small_network, step

import actnn

FLOATING = [case for case in KINDS if case.kind != "AvgPool2d"]


def cases(*tables):
    return pytest.mark.parametrize("case", [case for table in tables for case in table], ids=str)


@cases(FLOATING)
def test_float64_input_is_refused_with_the_way_out(case: Case):
    layer = plain_layer(case).double()
    x = input_of(case).double().requires_grad_()
    with pytest.raises(actnn.UnsupportedError, match=r"float64 tensor at '0'.*exact=\['0'\]"):
        compressed(nn.Sequential(layer))(x)


@cases(MAPS, NORMS)
def test_integer_input_is_refused(case: Case):
    with pytest.raises(actnn.UnsupportedError, match="int64"):
        compressed(plain_layer(case))(input_of(case).long())


@cases(MAPS, NORMS)
def test_complex_input_is_refused(case: Case):
    with pytest.raises(actnn.UnsupportedError, match="complex64"):
        compressed(plain_layer(case))(input_of(case).to(torch.complex64))


@cases(MAPS, NORMS)
def test_an_input_with_other_channels_is_a_shape_error(case: Case):
    axis = -1 if case.kind == "Linear" else 1
    x = torch.cat([input_of(case)] * 2, axis)
    with pytest.raises(actnn.ShapeError, match="expected"):
        compressed(plain_layer(case))(x)


# a linear layer takes any number of axes
@cases([case for case in MAPS if case.kind != "Linear"], NORMS)
def test_an_input_with_too_many_axes_is_refused(case: Case):
    with pytest.raises((actnn.ShapeError, ValueError)):
        compressed(plain_layer(case))(input_of(case)[None, None])


def test_a_shape_error_is_what_torch_would_raise():
    assert issubclass(actnn.ShapeError, RuntimeError)
    assert issubclass(actnn.ShapeError, ValueError)


@cases(POOLS)
def test_a_window_larger_than_its_input_is_refused_as_by_the_plain_layer(case: Case):
    layer, x = plain_layer(case), torch.randn(case.shape)[..., :1, :1].squeeze()
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        layer(x)
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        compressed(layer)(x.requires_grad_())


def test_one_value_a_channel_is_refused_as_by_the_plain_batch_norm():
    layer, x = nn.BatchNorm2d(3), torch.randn(1, 3, 1, 1)
    with pytest.raises(ValueError, match="Expected more than 1 value"):
        layer(x)
    with pytest.raises(ValueError, match=r"one value a channel|more than 1 value"):
        compressed(layer)(x)


@pytest.mark.parametrize(
    "bad",
    [
        torch.randn(4, 3, 16, 16).double(),
        torch.ones(4, 3, 16, 16, dtype=torch.int64),
        torch.randn(4, 5, 16, 16),
        torch.randn(4, 3, 16),
        torch.randn(4, 3, 32, 32),
    ],
    ids=["float64", "int64", "channels", "axes", "size"],
)
def test_a_failed_forward_leaves_a_model_that_trains_as_before(bad):
    ours, twin = (compressed(small_network(), 2) for _ in range(2))
    with pytest.raises((actnn.ActnnError, RuntimeError)):
        ours(bad)
    found, expected = step(ours, images()), step(twin, images())
    torch.testing.assert_close(found.output, expected.output)
    assert all(torch.isfinite(gradient).all() for gradient in found.gradients.values())


@cases(NORMS)
def test_a_refused_input_changes_no_statistics(case: Case):
    ours = compressed(plain_layer(case))
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with pytest.raises(actnn.ActnnError):
        ours(torch.cat([input_of(case)] * 2, 1))
    for name, value in ours.state_dict().items():
        same(value, before[name], name)


def test_float64_is_served_where_nothing_is_kept():
    layer = nn.Linear(70, 5).double()
    x = torch.randn(4, 70).double()
    with torch.no_grad():
        same(compressed(layer)(x), layer(x))


def test_float64_is_served_at_level_zero():
    layer = nn.Linear(70, 5).double()
    x = torch.randn(4, 70).double()
    same(compressed(layer, level="L0")(x).detach(), layer(x).detach())


@cases(MAPS, NORMS)
def test_a_layer_whose_session_was_closed_refuses_to_keep_anything(case: Case):
    ours = compressed(plain_layer(case))
    layer = next(ours.modules())
    layer._session.close()
    with pytest.raises(actnn.SessionError, match="Convert the model again"):
        ours(input_of(case).requires_grad_())


@pytest.mark.parametrize("level", ["L9", "l2", "L6", 2])
def test_a_bad_level_leaves_the_model_as_it_was(level):
    network = small_network()
    before = [type(module) for module in network.modules()]
    with pytest.raises(actnn.ConfigError, match="level"):
        actnn.QModule(network, level=level)
    assert [type(module) for module in network.modules()] == before


@pytest.mark.parametrize("seed", [-1, 1.5, "x", 2**64])
def test_a_bad_seed_leaves_the_model_as_it_was(seed):
    network = small_network()
    before = [type(module) for module in network.modules()]
    with pytest.raises(actnn.ConfigError, match="seed"):
        actnn.QModule(network, level="L2", seed=seed)
    assert [type(module) for module in network.modules()] == before


@pytest.mark.parametrize("exact", ["stem", nn.Linear, ["nowhere"], ["stem.9"], [nn.LSTM], [3], [int]], ids=repr)
def test_a_bad_pattern_leaves_the_model_as_it_was(exact):
    network = small_network()
    before = [type(module) for module in network.modules()]
    with pytest.raises(actnn.ConfigError, match="exact"):
        actnn.QModule(network, level="L2", exact=exact)
    assert [type(module) for module in network.modules()] == before


def test_a_layer_group_without_a_width_leaves_the_model_as_it_was():
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [2, 8]
    network = nn.Sequential(nn.Linear(3, 3), actnn.QLinear(3, 3, group=1))
    actnn.config.activation_compression_bits = [2]
    with pytest.raises(actnn.ConfigError, match="group=1"):
        actnn.QModule(network)
    assert [type(module) for module in network] == [nn.Linear, actnn.QLinear]


def test_a_model_that_was_converted_already_is_refused():
    ours = compressed(small_network())
    with pytest.raises(actnn.ConfigError, match="restore"):
        actnn.QModule(ours, level="L2")


def test_a_model_that_holds_a_converted_one_is_refused():
    outer = nn.Sequential(nn.Linear(3, 3), compressed(nn.Linear(3, 3)))
    with pytest.raises(actnn.ConfigError, match="'1' was converted already"):
        actnn.QModule(outer, level="L2")


@pytest.mark.parametrize("thing", [None, 3, nn.Linear, "model"], ids=repr)
def test_what_is_no_model_is_refused(thing):
    with pytest.raises(actnn.UnsupportedError, match=r"expected a torch\.nn\.Module"):
        actnn.QModule(thing, level="L2")
