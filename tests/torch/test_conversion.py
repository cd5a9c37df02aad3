"""QModule: what conversion keeps (everything), what it leaves alone, and that restore() undoes it."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from layer_cases import KINDS, Case
from torch import nn
from torch.nn.utils import parametrizations
from torch_layers import compressed, images, plain_layer, same, small_network, step

import actnn


def convert(model: nn.Module, **options) -> actnn.QModule:
    return actnn.QModule(model, level="L2", **options)


def types(model: nn.Module) -> dict[str, str]:
    """Return the type of every module but the wrapper, by path."""
    return {name: type(module).__name__ for name, module in model.named_modules() if name}


def left_exact(model: actnn.QModule) -> dict[str, str]:
    return {layer: reason for layer, _, reason in model.report().left_exact}


class OwnConv(nn.Conv2d):
    """A user's layer that is not what its base is."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_every_kind_is_converted(case: Case):
    assert types(convert(nn.Sequential(plain_layer(case)))) == {"0": f"Q{case.kind}"}


# defect 2: nn.SyncBatchNorm is not converted
def test_sync_batch_norm_is_converted():
    assert types(convert(nn.Sequential(nn.SyncBatchNorm(3)))) == {"0": "QSyncBatchNorm"}


# defect 1: pretrained models are re-initialised
def test_parameters_are_the_same_objects():
    network = small_network()
    before = dict(network.named_parameters())
    after = dict(convert(network).named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is parameter for name, parameter in before.items())


def test_buffers_are_the_same_objects():
    network = small_network()
    step(network, images())
    before = dict(network.named_buffers())
    after = dict(convert(network).named_buffers())
    assert after.keys() == before.keys()
    assert all(after[name] is buffer for name, buffer in before.items())


def test_an_optimizer_made_before_the_conversion_trains_the_model():
    network = small_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    ours = convert(network)
    before = ours.head.weight.detach().clone()
    ours(images()).square().sum().backward()
    optimizer.step()
    assert not torch.equal(ours.head.weight, before)


def test_frozen_parameters_stay_frozen():
    network = small_network()
    network.stem.requires_grad_(False)
    wanted = {name for name, parameter in convert(network).named_parameters() if not parameter.requires_grad}
    assert wanted == {"stem.0.weight", "stem.0.bias", "stem.1.weight", "stem.1.bias"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_dtype_of_parameters_stays(dtype):
    assert {parameter.dtype for parameter in convert(small_network().to(dtype)).parameters()} == {dtype}


def test_the_device_of_parameters_stays():
    ours = convert(small_network().to("meta"))
    assert {parameter.device.type for parameter in ours.parameters()} == {"meta"}


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_every_module_stays(training: bool):
    network = small_network().train(training)
    network.block.bn1.train(not training)
    ours = convert(network)
    assert ours.training is training
    assert ours.block.bn1.training is not training


def test_hooks_keep_working():
    network, calls = small_network(), []
    network.head.register_forward_pre_hook(lambda *_: calls.append("before"))
    network.head.register_forward_hook(lambda *_: calls.append("after"))
    network.head.register_full_backward_hook(lambda *_: calls.append("backward"))
    step(convert(network), images())
    assert calls == ["before", "after", "backward"]


def test_hooks_of_the_model_itself_keep_working():
    network, calls = small_network(), []
    network.register_forward_hook(lambda *_: calls.append("model"))
    convert(network)(images())
    assert calls == ["model"]


def test_attributes_that_users_gave_a_layer_stay():
    network = small_network()
    network.head.note = "mine"
    assert convert(network).head.note == "mine"


def test_a_reference_to_a_layer_stays_valid():
    network = small_network()
    head = network.head
    assert convert(network).head is head


def test_modules_that_are_shared_stay_shared():
    shared = nn.Linear(70, 70)
    ours = convert(nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)}))
    assert ours["a"] is ours["b"][0]


def test_a_shared_module_has_the_gradient_of_both_uses():
    shared = nn.Linear(150, 150)
    network = nn.Sequential(shared, nn.ReLU(), shared)
    x = torch.randn(8, 150)
    found, expected = step(compressed(network), x), step(network, x)
    error = (found.gradients["0.weight"] - expected.gradients["0.weight"]).norm()
    assert error < 0.01 * expected.gradients["0.weight"].norm()


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(70, 70), nn.Linear(70, 70)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x).relu())

    network, x = Tied(), torch.randn(16, 70)
    ours = compressed(network)
    assert ours.first.weight is ours.second.weight
    found, expected = step(ours, x), step(network, x)
    error = (found.gradients["first.weight"] - expected.gradients["first.weight"]).norm()
    assert error < 0.01 * expected.gradients["first.weight"].norm()


def test_a_subclass_of_the_user_is_left_alone():
    layer = OwnConv(3, 4, 3)
    convert(nn.Sequential(layer))
    assert type(layer) is OwnConv


def test_a_subclass_of_the_user_is_listed_with_the_reason():
    ours = convert(nn.Sequential(OwnConv(3, 4, 3)))
    assert "subclass of Conv2d" in left_exact(ours)["0"]


def test_a_subclass_of_the_user_computes_what_it_did():
    network, x = nn.Sequential(OwnConv(3, 4, 3), nn.ReLU()), torch.randn(2, 3, 9, 9)
    same(step(compressed(network), x).output, step(network, x).output)


def test_a_parametrised_layer_is_left_alone_and_listed():
    ours = convert(nn.Sequential(parametrizations.weight_norm(nn.Linear(70, 5)), nn.ReLU()))
    assert "parametrised" in left_exact(ours)["0"]


def test_a_parametrised_layer_has_exact_gradients():
    network, x = nn.Sequential(parametrizations.weight_norm(nn.Linear(70, 5))), torch.randn(8, 70)
    found, expected = step(compressed(network, 1), x), step(network, x)
    for name, gradient in expected.gradients.items():
        same(found.gradients[name], gradient, name)


def test_a_layer_parametrised_after_conversion_works():
    network, x = nn.Sequential(nn.Linear(150, 5)), torch.randn(8, 150)
    ours = compressed(network)
    parametrizations.weight_norm(ours.get_submodule("0"))
    found = step(ours, x)
    assert all(torch.isfinite(gradient).all() for gradient in found.gradients.values())


def test_layers_without_a_twin_are_left_without_a_word():
    ours = convert(nn.Sequential(nn.Linear(70, 5), nn.Tanh(), nn.LayerNorm(5)))
    assert left_exact(ours) == {}


def test_a_lone_layer_can_be_converted():
    layer = nn.Linear(70, 5)
    convert(layer)
    assert type(layer) is actnn.QLinear


def test_layers_made_by_hand_join_the_model_and_keep_their_group():
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [2, 8]
    by_hand = actnn.QLinear(150, 5, group=1)
    ours = actnn.QModule(nn.Sequential(by_hand))
    step(ours, torch.randn(16, 150))
    (row,) = ours.report().rows
    assert row.kept_bytes > 16 * 150


def test_the_printed_model_shows_compressed_layers():
    assert "QConv2d(3, 8" in repr(compressed(small_network()))


# exact=


def kinds_of(model: nn.Module, *paths: str) -> list[str]:
    return [type(model.get_submodule(path)).__name__ for path in paths]


def test_a_path_leaves_a_layer_exact():
    ours = convert(small_network(), exact=["block.conv1"])
    assert kinds_of(ours, "block.conv1", "block.conv2") == ["Conv2d", "QConv2d"]


def test_the_path_of_a_block_leaves_all_its_layers_exact():
    ours = convert(small_network(), exact=["block"])
    assert kinds_of(ours, "block.conv1", "block.bn2", "stem.0") == ["Conv2d", "BatchNorm2d", "QConv2d"]


def test_a_wildcard_leaves_all_layers_that_match_exact():
    ours = convert(small_network(), exact=["block.*"])
    assert kinds_of(ours, "block.conv1", "block.bn2", "stem.0") == ["Conv2d", "BatchNorm2d", "QConv2d"]


def test_a_type_leaves_all_layers_of_it_exact():
    ours = convert(small_network(), exact=[nn.BatchNorm2d])
    assert kinds_of(ours, "block.bn1", "stem.1", "stem.0") == ["BatchNorm2d", "BatchNorm2d", "QConv2d"]


def test_paths_and_types_may_be_mixed():
    ours = convert(small_network(), exact=["stem.*", nn.Linear])
    assert kinds_of(ours, "stem.0", "head", "block.conv1") == ["Conv2d", "Linear", "QConv2d"]


def test_layers_left_exact_are_listed_with_the_pattern():
    assert "exact asks for it (head)" in left_exact(convert(small_network(), exact=["head"]))["head"]


def test_layers_left_exact_have_exact_gradients():
    network, x = small_network(), images()
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [1]
    ours = actnn.QModule(deepcopy(network), exact=["head"])
    torch.testing.assert_close(step(ours, x).gradients["head.weight"], step(network, x).gradients["head.weight"])


def test_a_pattern_that_matches_nothing_is_refused_with_names_that_exist():
    with pytest.raises(actnn.ConfigError, match=r"matches no layer.*stem"):
        convert(small_network(), exact=["layer1.*"])


def test_everything_may_be_left_exact():
    network, x = small_network(), images()
    found, expected = step(convert(deepcopy(network), exact=["*"]), x), step(network, x)
    for name, gradient in expected.gradients.items():
        same(found.gradients[name], gradient, name)


# restore()


def test_restore_gives_the_very_model_back():
    network = small_network()
    assert convert(network).restore() is network


def test_restored_layers_are_of_their_plain_types():
    network = small_network()
    before = types(network)
    convert(network).restore()
    assert types(network) == before


def test_restored_layers_have_no_leftovers():
    network = small_network()
    before = {name: set(vars(module)) for name, module in network.named_modules()}
    ours = convert(network)
    step(ours, images())
    ours.restore()
    assert {name: set(vars(module)) for name, module in network.named_modules()} == before


def test_a_restored_model_trains_as_the_plain_one_bit_for_bit():
    network, x = small_network(), images()
    twin = deepcopy(network)
    convert(network).restore()
    found, expected = step(network, x), step(twin, x)
    for name, gradient in expected.gradients.items():
        same(found.gradients[name], gradient, name)


def test_a_restored_model_can_be_converted_again():
    network = small_network()
    convert(network).restore()
    assert "QConv2d" in types(convert(network)).values()


def test_layers_made_by_hand_stay_compressed_after_restore():
    actnn.set_optimization_level("L2")
    by_hand = actnn.QLinear(150, 5)
    actnn.QModule(nn.Sequential(by_hand)).restore()
    by_hand(torch.randn(16, 150)).sum().backward()
    assert type(by_hand) is actnn.QLinear


def test_restoring_twice_does_no_harm():
    network = small_network()
    ours = convert(network)
    ours.restore()
    assert ours.restore() is network


def test_a_graph_recorded_before_restore_can_still_run_backward():
    ours = convert(small_network())
    loss = ours(images()).square().sum()
    network = ours.restore()
    loss.backward()
    assert network.head.weight.grad is not None
