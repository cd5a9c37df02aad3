"""QModule: what conversion keeps (everything), what it leaves alone, and that restore() undoes it."""

from __future__ import annotations

import gc
from copy import deepcopy

import numpy as np
import pytest
from frameworks import Framework, Model, cases, numbers
from layer_cases import FUNCTIONAL, KINDS, Case
from networks import images, small_network
from steps import check_equal_gradients, close, same

import actnn


def convert(framework: Framework, model: Model, **options) -> Model:
    return framework.actnn.QModule(model, level="L2", **options)


def types(framework: Framework, model: Model) -> dict[str, str]:
    """Return the type of every layer but the wrapper, by path."""
    return {name: type(layer).__name__ for name, layer in framework.layers(model) if name}


def left_exact(model: Model) -> dict[str, str]:
    return {layer: reason for layer, _, reason in model.report().left_exact}


def twice(framework: Framework, kind: str, *arguments: object) -> Model:
    """Return a user's layer that is not what its base is."""
    base = type(framework.layer(kind, *arguments))

    class OwnLayer(base):
        def forward(self, x):
            return 2 * super().forward(x)

    return OwnLayer(*arguments)


@cases(KINDS, FUNCTIONAL)
def test_every_kind_is_converted(framework: Framework, case: Case):
    ours = convert(framework, framework.sequential(framework.plain_layer(case)))
    assert types(framework, ours) == {"0": f"Q{framework.type_name(case.kind)}"}


# defect 2: SyncBatchNorm is not converted
def test_sync_batch_norm_is_converted(framework: Framework):
    ours = convert(framework, framework.sequential(framework.layer("SyncBatchNorm", 3)))
    assert types(framework, ours) == {"0": "QSyncBatchNorm"}


# defect 1: pretrained models are re-initialised
def test_parameters_are_the_same_objects(framework: Framework):
    network = small_network(framework)
    before = dict(network.named_parameters())
    after = dict(convert(framework, network).named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is parameter for name, parameter in before.items())


def test_everything_in_the_state_lies_where_it_lay(framework: Framework):
    network = small_network(framework)
    framework.step(network, images())
    before = {name: value.data_ptr() for name, value in network.state_dict().items()}
    after = {name: value.data_ptr() for name, value in convert(framework, network).state_dict().items()}
    assert after == before


def test_an_optimizer_made_before_the_conversion_trains_the_model(framework: Framework):
    network = small_network(framework)
    advance = framework.optimizer(network, 0.1)
    ours = convert(framework, network)
    before = framework.state(ours)["head.weight"]
    ours(framework.tensor(images())).square().sum().backward()
    advance()
    assert not np.array_equal(framework.state(ours)["head.weight"], before)


def test_frozen_parameters_stay_frozen(framework: Framework):
    network = small_network(framework)
    framework.freeze(network.stem)
    before = {name for name, parameter in network.named_parameters() if framework.is_frozen(parameter)}
    ours = convert(framework, network)
    assert {name for name, each in ours.named_parameters() if framework.is_frozen(each)} == before
    learning = {name for name in before if name.endswith(("weight", "bias"))}
    assert learning == {"stem.0.weight", "stem.0.bias", "stem.1.weight", "stem.1.bias"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_dtype_of_parameters_stays(framework: Framework, dtype: str):
    network = framework.cast(small_network(framework), dtype)
    before = {name: framework.dtype_of(parameter) for name, parameter in network.named_parameters()}
    ours = convert(framework, network)
    assert {name: framework.dtype_of(parameter) for name, parameter in ours.named_parameters()} == before
    assert before["head.weight"] == dtype


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_every_layer_stays(framework: Framework, training: bool):
    network = framework.training(small_network(framework), training)
    framework.training(network.block.bn1, not training)
    ours = convert(framework, network)
    assert ours.training is training
    assert ours.block.bn1.training is not training


def test_hooks_of_layers_keep_working(framework: Framework):
    network, calls = small_network(framework), []
    framework.after_forward(network.head, lambda _: calls.append("after"))
    framework.step(convert(framework, network), images())
    assert calls == ["after"]


def test_hooks_of_the_model_itself_keep_working(framework: Framework):
    network, calls = small_network(framework), []
    framework.after_forward(network, lambda _: calls.append("model"))
    convert(framework, network)(framework.tensor(images()))
    assert calls == ["model"]


def test_attributes_that_users_gave_a_layer_stay(framework: Framework):
    network = small_network(framework)
    network.head.note = "mine"
    assert convert(framework, network).head.note == "mine"


def test_a_reference_to_a_layer_stays_valid(framework: Framework):
    network = small_network(framework)
    head = network.head
    assert convert(framework, network).head is head


def in_turn(model: Model, x):
    return model.b(model.a(x))


def test_layers_that_are_shared_stay_shared(framework: Framework):
    shared = framework.layer("Linear", 70, 70)
    ours = convert(framework, framework.wired(in_turn, a=shared, b=framework.sequential(shared)))
    assert ours.a is ours.b[0]


def test_a_shared_layer_has_the_gradient_of_both_uses(framework: Framework):
    shared = framework.layer("Linear", 150, 150)
    network = framework.initialised(framework.sequential(shared, framework.layer("ReLU"), shared))
    x = numbers((8, 150))
    found, expected = framework.step(framework.compressed(network), x), framework.step(network, x)
    close(found.gradients["0.weight"], expected.gradients["0.weight"], 0.01)


def tied(model: Model, x):
    return model.second(model.rectify(model.first(x)))


def test_tied_weights_stay_tied(framework: Framework):
    first, second = (framework.layer("Linear", 70, 70) for _ in range(2))
    network = framework.wired(tied, first=first, second=second, rectify=framework.layer("Tanh"))
    framework.initialised(network)
    second.weight = first.weight
    ours, x = framework.compressed(network), numbers((16, 70))
    assert ours.first.weight is ours.second.weight
    found, expected = framework.step(ours, x), framework.step(network, x)
    close(found.gradients["first.weight"], expected.gradients["first.weight"], 0.01)


def test_a_subclass_of_the_user_is_left_alone(framework: Framework):
    layer = twice(framework, "Conv2d", 3, 4, 3)
    kind = type(layer)
    convert(framework, framework.sequential(layer))
    assert type(layer) is kind


def test_a_subclass_of_the_user_is_served_by_the_functions_that_it_calls(framework: Framework):
    ours = convert(framework, framework.sequential(twice(framework, "Conv2d", 3, 4, 3)))
    framework.step(ours, numbers((2, 3, 9, 9)))
    assert "0" not in left_exact(ours)
    assert any(row.layer.startswith("0/conv2d") for row in ours.report().rows)


def test_a_subclass_of_the_user_computes_what_it_did(framework: Framework):
    network = framework.sequential(twice(framework, "Conv2d", 3, 4, 3), framework.layer("ReLU"))
    x = numbers((2, 3, 9, 9))
    found, expected = framework.step(framework.compressed(network), x), framework.step(network, x)
    same(found.output, expected.output)


def test_layers_without_a_twin_are_left_without_a_word(framework: Framework):
    layers = framework.layer("Linear", 70, 5), framework.layer("Tanh"), framework.layer("LayerNorm", 5)
    assert left_exact(convert(framework, framework.sequential(*layers))) == {}


def test_a_lone_layer_can_be_converted(framework: Framework):
    layer = framework.layer("Linear", 70, 5)
    convert(framework, layer)
    assert type(layer) is framework.actnn.QLinear


def test_layers_made_by_hand_join_the_model_and_keep_their_group(framework: Framework):
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [2, 8]
    by_hand = framework.made_by_hand("Linear", 150, 5, group=1)
    ours = framework.actnn.QModule(framework.sequential(by_hand))
    framework.step(ours, numbers((16, 150)))
    (row,) = ours.report().rows
    assert row.kept_bytes > 16 * 150


def test_the_printed_model_shows_compressed_layers(framework: Framework):
    ours = framework.compressed(small_network(framework))
    assert f"Q{framework.type_name('Conv2d')}(3, 8" in repr(ours)


# exact=


def kinds_of(framework: Framework, model: Model, *paths: str) -> list[str]:
    return [framework.kind_at(model, path) for path in paths]


def named(framework: Framework, *kinds: str) -> list[str]:
    """Return the names of types; Q marks compressed ones."""
    return [f"Q{framework.type_name(kind[1:])}" if kind[0] == "Q" else framework.type_name(kind) for kind in kinds]


def test_a_path_leaves_a_layer_exact(framework: Framework):
    ours = convert(framework, small_network(framework), exact=["block.conv1"])
    assert kinds_of(framework, ours, "block.conv1", "block.conv2") == named(framework, "Conv2d", "QConv2d")


@pytest.mark.parametrize("pattern", ["block", "block.*"], ids=["path", "wildcard"])
def test_the_path_of_a_block_leaves_all_its_layers_exact(framework: Framework, pattern: str):
    ours = convert(framework, small_network(framework), exact=[pattern])
    found = kinds_of(framework, ours, "block.conv1", "block.bn2", "stem.0")
    assert found == named(framework, "Conv2d", "BatchNorm2d", "QConv2d")


def test_a_type_leaves_all_layers_of_it_exact(framework: Framework):
    kind = type(framework.layer("BatchNorm2d", 3))
    ours = convert(framework, small_network(framework), exact=[kind])
    found = kinds_of(framework, ours, "block.bn1", "stem.1", "stem.0")
    assert found == named(framework, "BatchNorm2d", "BatchNorm2d", "QConv2d")


def test_paths_and_types_may_be_mixed(framework: Framework):
    kind = type(framework.layer("Linear", 3, 3))
    ours = convert(framework, small_network(framework), exact=["stem.*", kind])
    found = kinds_of(framework, ours, "stem.0", "head", "block.conv1")
    assert found == named(framework, "Conv2d", "Linear", "QConv2d")


def test_layers_left_exact_are_listed_with_the_pattern(framework: Framework):
    ours = convert(framework, small_network(framework), exact=["head"])
    assert "exact asks for it (head)" in left_exact(ours)["head"]


def test_layers_left_exact_have_exact_gradients(framework: Framework):
    network, x = small_network(framework), images()
    framework.prepare(1)
    ours = framework.actnn.QModule(deepcopy(network), exact=["head"])
    found, expected = (framework.step(model, x).gradients["head.weight"] for model in (ours, network))
    np.testing.assert_allclose(found, expected, rtol=1.3e-6, atol=1e-5)


def test_a_pattern_that_matches_nothing_is_refused_with_names_that_exist(framework: Framework):
    with pytest.raises(actnn.ConfigError, match=r"matches no layer.*stem"):
        convert(framework, small_network(framework), exact=["layer1.*"])


def test_everything_may_be_left_exact(framework: Framework):
    network, x = small_network(framework), images()
    ours = convert(framework, deepcopy(network), exact=["*"])
    check_equal_gradients(framework.step(ours, x).gradients, framework.step(network, x).gradients)


# restore()


def test_restore_gives_the_very_model_back(framework: Framework):
    network = small_network(framework)
    assert convert(framework, network).restore() is network


def test_restored_layers_are_of_their_plain_types(framework: Framework):
    network = small_network(framework)
    before = types(framework, network)
    convert(framework, network).restore()
    assert types(framework, network) == before


def test_restored_layers_have_no_leftovers(framework: Framework):
    network = small_network(framework)
    before = {name: set(vars(layer)) for name, layer in framework.layers(network)}
    ours = convert(framework, network)
    framework.step(ours, images())
    ours.restore()
    assert {name: set(vars(layer)) for name, layer in framework.layers(network)} == before


def test_a_restored_model_trains_as_the_plain_one_bit_for_bit(framework: Framework):
    network, x = small_network(framework), images()
    twin = deepcopy(network)
    convert(framework, network).restore()
    check_equal_gradients(framework.step(network, x).gradients, framework.step(twin, x).gradients)


def test_a_restored_model_can_be_converted_again(framework: Framework):
    network = small_network(framework)
    convert(framework, network).restore()
    assert f"Q{framework.type_name('Conv2d')}" in types(framework, convert(framework, network)).values()


def test_layers_made_by_hand_stay_compressed_after_restore(framework: Framework):
    actnn.set_optimization_level("L2")
    by_hand = framework.made_by_hand("Linear", 150, 5)
    framework.actnn.QModule(framework.sequential(by_hand)).restore()
    by_hand(framework.tensor(numbers((16, 150)))).sum().backward()
    assert type(by_hand) is framework.actnn.QLinear


def test_restoring_twice_does_no_harm(framework: Framework):
    network = small_network(framework)
    ours = convert(framework, network)
    ours.restore()
    assert ours.restore() is network


def test_a_graph_recorded_before_restore_can_still_run_backward(framework: Framework):
    ours = convert(framework, small_network(framework))
    loss = ours(framework.tensor(images())).square().sum()
    network = ours.restore()
    loss.backward()
    assert "head.weight" in framework.gradients(network)


def test_a_model_is_not_converted_twice_under_two_wrappers(framework: Framework):
    plain = small_network(framework)
    first = framework.actnn.QModule(plain)
    for again in (plain, framework.sequential(plain)):
        with pytest.raises(actnn.ConfigError, match=r"belongs to a model that was converted already.*restore\(\)"):
            framework.actnn.QModule(again)
    assert first.restore() is plain
    framework.actnn.QModule(framework.sequential(plain))


def test_a_model_whose_wrapper_is_gone_can_be_converted_anew(framework: Framework):
    plain = small_network(framework)
    types = [type(layer) for _, layer in framework.layers(plain)]
    framework.actnn.QModule(plain)
    gc.collect()
    framework.actnn.QModule(plain).restore()
    assert [type(layer) for _, layer in framework.layers(plain)] == types
