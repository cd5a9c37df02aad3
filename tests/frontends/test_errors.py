"""Bad input gives a typed error that says what to do, and leaves the model as it was."""

from __future__ import annotations

import numpy as np
import pytest
from frameworks import Framework, Model, cases, input_of, numbers
from layer_cases import KINDS, MAPS, NORMS, POOLS, Case
from networks import images, small_network
from steps import check_finite, same

import actnn

FLOATING = [case for case in KINDS if case.kind != "AvgPool2d"]


@cases(FLOATING)
def test_float64_input_is_refused_with_the_way_out(framework: Framework, case: Case):
    layer = framework.cast(framework.plain_layer(case), "float64")
    x = framework.tensor(input_of(case).astype(np.float64), gradient=True)
    with pytest.raises(actnn.UnsupportedError, match=r"float64.*exact=\['0'\]"):
        framework.compressed(framework.sequential(layer))(x)


@cases(MAPS, NORMS)
@pytest.mark.parametrize("dtype", ["int64", "complex64"])
def test_input_that_is_no_real_number_is_refused(framework: Framework, case: Case, dtype: str):
    with pytest.raises(actnn.UnsupportedError, match=dtype):
        framework.compressed(framework.plain_layer(case))(framework.tensor(input_of(case).astype(dtype)))


@cases(MAPS, NORMS)
def test_an_input_with_other_channels_is_a_shape_error(framework: Framework, case: Case):
    axis = -1 if case.kind == "Linear" else 1
    x = framework.tensor(np.concatenate([input_of(case)] * 2, axis))
    with pytest.raises(actnn.ShapeError, match="expected"):
        framework.compressed(framework.plain_layer(case))(x)


# a linear layer takes any number of axes
@cases([case for case in MAPS if case.kind != "Linear"], NORMS)
def test_an_input_with_too_many_axes_is_refused(framework: Framework, case: Case):
    with pytest.raises((actnn.ShapeError, ValueError)):
        framework.compressed(framework.plain_layer(case))(framework.tensor(input_of(case)[None, None]))


def test_a_shape_error_is_what_frameworks_would_raise():
    assert issubclass(actnn.ShapeError, RuntimeError)
    assert issubclass(actnn.ShapeError, ValueError)


@cases(POOLS)
def test_a_window_larger_than_its_input_is_refused_as_by_the_plain_layer(framework: Framework, case: Case):
    layer, x = framework.plain_layer(case), np.squeeze(input_of(case)[..., :1, :1])
    problems = (RuntimeError, ValueError, IndexError)
    with pytest.raises(problems):
        layer(framework.tensor(x))
    with pytest.raises(problems):
        framework.compressed(layer)(framework.tensor(x, gradient=True))


BAD_INPUTS = {
    "float64": numbers((4, 3, 16, 16)).astype(np.float64),
    "int64": np.ones((4, 3, 16, 16), np.int64),
    "channels": numbers((4, 5, 16, 16)),
    "axes": numbers((4, 3, 16)),
    "size": numbers((4, 3, 32, 32)),
}


@pytest.mark.parametrize("bad", BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_a_failed_forward_leaves_a_model_that_trains_as_before(framework: Framework, bad):
    ours, twin = (framework.compressed(small_network(framework), 2) for _ in range(2))
    with pytest.raises((actnn.ActnnError, RuntimeError, ValueError)):
        ours(framework.tensor(bad))
    found, expected = framework.step(ours, images()), framework.step(twin, images())
    np.testing.assert_allclose(found.output, expected.output, rtol=1.3e-6, atol=1e-5)
    check_finite(found.gradients)


@cases(NORMS)
def test_a_refused_input_changes_no_statistics(framework: Framework, case: Case):
    ours = framework.compressed(framework.plain_layer(case))
    before = framework.state(ours)
    with pytest.raises(actnn.ActnnError):
        ours(framework.tensor(np.concatenate([input_of(case)] * 2, 1)))
    for name, value in framework.state(ours).items():
        same(value, before[name], name)


def doubles(framework: Framework):
    """Return a layer and an input of float64."""
    layer = framework.cast(framework.layer("Linear", 70, 5), "float64")
    return layer, framework.tensor(numbers((4, 70)).astype(np.float64))


def test_float64_is_served_where_nothing_is_kept(framework: Framework):
    layer, x = doubles(framework)
    # what learns is refused at conversion already
    ours = framework.compressed(framework.freeze(layer))
    with framework.no_grad():
        same(framework.array(ours(x)), framework.array(layer(x)))


def test_float64_is_served_at_level_zero(framework: Framework):
    layer, x = doubles(framework)
    same(framework.array(framework.compressed(layer, level="L0")(x)), framework.array(layer(x)))


@cases(MAPS, NORMS)
def test_a_layer_whose_session_was_closed_refuses_to_keep_anything(framework: Framework, case: Case):
    ours = framework.compressed(framework.plain_layer(case))
    ours._session.close()
    with pytest.raises(actnn.SessionError, match="Convert the model again"):
        ours(framework.tensor(input_of(case), gradient=True))


def types(framework: Framework, model: Model) -> list[type]:
    return [type(layer) for _, layer in framework.layers(model)]


def check_refused(framework: Framework, match: str, **options: object) -> None:
    """Raise unless a conversion is refused and leaves the model as it was."""
    network = small_network(framework)
    before = types(framework, network)
    with pytest.raises(actnn.ConfigError, match=match):
        framework.actnn.QModule(network, **options)
    assert types(framework, network) == before


@pytest.mark.parametrize("level", ["L9", "l2", "L7", 2])
def test_a_bad_level_leaves_the_model_as_it_was(framework: Framework, level):
    check_refused(framework, "level", level=level)


@pytest.mark.parametrize("seed", [-1, 1.5, "x", 2**64])
def test_a_bad_seed_leaves_the_model_as_it_was(framework: Framework, seed):
    check_refused(framework, "seed", level="L2", seed=seed)


@pytest.mark.parametrize("exact", ["stem", ["nowhere"], ["stem.9"], [3], [int]], ids=repr)
def test_a_bad_pattern_leaves_the_model_as_it_was(framework: Framework, exact):
    check_refused(framework, "exact", level="L2", exact=exact)


@pytest.mark.parametrize("listed", [True, False])
def test_a_type_that_is_no_list_or_is_not_there_leaves_the_model_as_it_was(framework: Framework, listed: bool):
    kind = type(framework.layer("LayerNorm", 3)) if listed else type(framework.layer("Linear", 3, 3))
    check_refused(framework, "exact", level="L2", exact=[kind] if listed else kind)


def test_a_layer_group_without_a_width_leaves_the_model_as_it_was(framework: Framework):
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [2, 8]
    layers = framework.layer("Linear", 3, 3), framework.made_by_hand("Linear", 3, 3, group=1)
    network = framework.sequential(*layers)
    before = types(framework, network)
    actnn.config.activation_compression_bits = [2]
    with pytest.raises(actnn.ConfigError, match="group=1"):
        framework.actnn.QModule(network)
    assert types(framework, network) == before


def test_a_model_that_was_converted_already_is_refused(framework: Framework):
    ours = framework.compressed(small_network(framework))
    with pytest.raises(actnn.ConfigError, match="restore"):
        framework.actnn.QModule(ours, level="L2")


def test_a_model_that_holds_a_converted_one_is_refused(framework: Framework):
    inner = framework.compressed(framework.layer("Linear", 3, 3))
    with pytest.raises(actnn.ConfigError, match="'1' was converted already"):
        framework.actnn.QModule(framework.sequential(framework.layer("Linear", 3, 3), inner), level="L2")


@pytest.mark.parametrize("thing", [None, 3, "model"], ids=repr)
def test_what_is_no_model_is_refused(framework: Framework, thing):
    expected = f"{framework.name}.nn.{framework.module_type.__name__}"
    with pytest.raises(actnn.UnsupportedError, match=f"expected a .*{expected}"):
        framework.actnn.QModule(thing, level="L2")


def test_a_type_of_layer_is_no_model(framework: Framework):
    with pytest.raises(actnn.UnsupportedError, match="expected a"):
        framework.actnn.QModule(type(framework.layer("Linear", 3, 3)), level="L2")
