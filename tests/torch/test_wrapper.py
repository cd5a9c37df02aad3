"""QModule as a module: state, copies, files, attributes, and life inside other modules."""

from __future__ import annotations

import io
import pickle
from copy import copy, deepcopy

import pytest
import torch
from torch import nn
from torch_layers import compressed, images, same, small_network, step

import actnn


def check_same_state(found: dict, expected: dict) -> None:
    """Raise unless two states have the same names and values."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        same(found[name], value, name)


def saved_and_loaded(thing):
    """Return what comes back of a file."""
    memory = io.BytesIO()
    torch.save(thing, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=False)


# defect 10: state_dict keys are cut by string surgery
def test_the_state_has_the_keys_of_the_plain_model():
    network = small_network()
    check_same_state(compressed(network).state_dict(), network.state_dict())


def test_a_plain_state_can_be_loaded():
    network = small_network()
    step(network, images())
    ours = compressed(small_network())
    ours.load_state_dict(network.state_dict())
    check_same_state(ours.state_dict(), network.state_dict())


def test_our_state_can_be_loaded_into_the_plain_model():
    ours = compressed(small_network())
    step(ours, images())
    network = small_network()
    network.load_state_dict(ours.state_dict())
    check_same_state(network.state_dict(), ours.state_dict())


def test_a_state_with_a_wrong_name_is_refused_by_name():
    with pytest.raises(RuntimeError, match="nonsense"):
        compressed(small_network()).load_state_dict({"nonsense": torch.zeros(1)})


def test_a_state_takes_a_prefix():
    names = compressed(small_network()).state_dict(prefix="model.")
    assert all(name.startswith("model.") for name in names)


def test_a_converted_model_inside_another_has_the_keys_of_the_plain_one():
    network = small_network()
    plain = nn.Sequential(network, nn.Linear(5, 5))
    ours = nn.Sequential(compressed(network), plain[1])
    check_same_state(ours.state_dict(), plain.state_dict())


def test_a_plain_state_can_be_loaded_into_a_model_that_holds_a_converted_one():
    plain = nn.Sequential(small_network())
    step(plain, images())
    ours = nn.Sequential(compressed(small_network()))
    ours.load_state_dict(plain.state_dict())
    check_same_state(ours.state_dict(), plain.state_dict())


def test_names_of_parameters_buffers_and_modules_are_the_plain_ones():
    network = small_network()
    ours = compressed(network)
    for names in ("named_parameters", "named_buffers", "named_modules", "named_children"):
        assert [name for name, _ in getattr(ours, names)()] == [name for name, _ in getattr(network, names)()]


def test_a_deep_copy_trains_like_the_original():
    ours = compressed(small_network(), 2)
    step(ours, images())
    twin = deepcopy(ours)
    found, expected = step(twin, images()), step(ours, images())
    for name, gradient in expected.gradients.items():
        same(found.gradients[name], gradient, name)


def test_a_deep_copy_shares_nothing_with_the_original():
    ours = compressed(small_network(), 2)
    twin = deepcopy(ours)
    with torch.no_grad():
        twin.head.weight.zero_()
    twin.eval()
    assert ours.head.weight.abs().sum() > 0
    assert ours.training


def test_the_report_of_a_deep_copy_is_its_own():
    ours = compressed(small_network(), 2)
    twin = deepcopy(ours)
    step(twin, images())
    assert ours.report().kept_bytes == 0


def test_restoring_a_deep_copy_leaves_the_original_converted():
    ours = compressed(small_network(), 2)
    deepcopy(ours).restore()
    step(ours, images())
    assert ours.report().kept_bytes > 0


def test_a_deep_copy_of_the_converted_inner_model_works():
    ours = compressed(small_network(), 2)
    step(ours, images())
    inner = deepcopy(ours.restore())
    assert type(inner.head) is nn.Linear


@pytest.mark.parametrize(
    "way", [lambda model: pickle.loads(pickle.dumps(model)), saved_and_loaded], ids=["pickle", "torch.save"]
)
def test_a_model_from_a_file_trains_like_the_original(way):
    ours = compressed(small_network(), 2)
    step(ours, images())
    twin = way(ours)
    found, expected = step(twin, images()), step(ours, images())
    for name, gradient in expected.gradients.items():
        same(found.gradients[name], gradient, name)


def test_a_model_from_a_file_can_be_restored():
    network = saved_and_loaded(compressed(small_network())).restore()
    assert type(network.head) is nn.Linear


def test_a_state_from_a_file_of_weights_only_can_be_loaded():
    ours, memory = compressed(small_network()), io.BytesIO()
    torch.save(ours.state_dict(), memory)
    memory.seek(0)
    ours.load_state_dict(torch.load(memory, weights_only=True))


def test_a_shallow_copy_reaches_the_same_parameters():
    ours = compressed(small_network())
    assert copy(ours).head.weight is ours.head.weight


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_model_can_be_cast(dtype):
    ours = compressed(small_network()).to(dtype)
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    assert ours(images().to(dtype)).dtype == dtype


def test_a_cast_model_trains():
    ours = compressed(small_network(), 2).bfloat16()
    found = step(ours, images().bfloat16())
    assert all(torch.isfinite(gradient).all() for gradient in found.gradients.values())


def test_apply_reaches_every_layer():
    seen = []
    compressed(small_network()).apply(lambda module: seen.append(type(module).__name__))
    assert "QConv2d" in seen


def test_zero_grad_and_requires_grad_reach_the_parameters():
    ours = compressed(small_network())
    step(ours, images())
    ours.zero_grad()
    ours.requires_grad_(False)
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in ours.parameters())


class WithExtras(nn.Module):
    """A model with the things that users give their models."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(70, 5)
        self.classes = ["a", "b"]
        self.temperature = 2.0

    def forward(self, x, scale=1.0):
        return self.linear(x) * scale / self.temperature

    def predict(self, x):
        return self.forward(x).argmax(-1)

    @property
    def size(self) -> int:
        return 5


def with_extras() -> actnn.QModule:
    return compressed(WithExtras())


def test_attributes_of_the_model_can_be_read():
    assert with_extras().classes == ["a", "b"]


def test_properties_of_the_model_can_be_read():
    assert with_extras().size == 5


def test_methods_of_the_model_can_be_called():
    assert with_extras().predict(torch.randn(3, 70)).shape == (3,)


def test_layers_of_the_model_can_be_reached():
    assert type(with_extras().linear) is actnn.QLinear


def test_attributes_that_are_set_reach_the_model():
    ours, x = with_extras(), torch.randn(3, 70)
    before = ours(x)
    ours.temperature = 4.0
    torch.testing.assert_close(ours(x), before / 2)


def test_a_new_attribute_is_found_in_the_restored_model():
    ours = with_extras()
    ours.note = "mine"
    assert ours.restore().note == "mine"


def test_attributes_can_be_deleted():
    ours = with_extras()
    del ours.classes
    assert not hasattr(ours, "classes")


def test_a_missing_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = with_extras().nothing_like_it


def test_a_layer_can_be_replaced_through_the_wrapper():
    ours = with_extras()
    ours.linear = nn.Linear(70, 7)
    assert ours(torch.randn(3, 70)).shape == (3, 7)
    assert ours.state_dict()["linear.weight"].shape == (7, 70)


def test_a_parameter_and_a_buffer_can_be_added_through_the_wrapper():
    ours = with_extras()
    ours.register_buffer("extra", torch.zeros(2))
    ours.bonus = nn.Parameter(torch.zeros(3))
    assert {"extra", "bonus"} <= set(ours.restore().state_dict())


def test_positional_and_named_arguments_reach_the_model():
    ours, x = with_extras(), torch.randn(3, 70)
    torch.testing.assert_close(ours(x, scale=3.0), 3 * ours(x))


def test_train_and_eval_return_the_wrapper():
    ours = with_extras()
    assert ours.eval() is ours
    assert ours.train() is ours


def test_train_and_eval_reach_every_layer():
    ours = compressed(small_network()).eval()
    assert not any(module.training for module in ours.modules())


def test_setting_the_flag_reaches_the_model():
    ours = with_extras()
    ours.training = False
    assert ours.restore().training is False


def test_a_model_that_holds_a_converted_one_switches_its_mode():
    ours = with_extras()
    nn.Sequential(ours).eval()
    assert not ours.linear.training


def test_a_wrapped_sequential_can_be_indexed_and_iterated():
    ours = compressed(nn.Sequential(nn.Linear(70, 5), nn.ReLU()))
    assert type(ours[0]) is actnn.QLinear
    assert [type(layer) for layer in ours] == [actnn.QLinear, actnn.QReLU]
    assert len(ours) == 2


def test_a_converted_model_is_a_module():
    assert isinstance(with_extras(), nn.Module)


def test_dir_lists_what_the_model_offers():
    assert {"predict", "linear", "report", "restore"} <= set(dir(with_extras()))


def test_a_wrapped_model_can_be_called_through_its_own_forward():
    ours, x = with_extras(), torch.randn(3, 70)
    torch.testing.assert_close(ours.forward(x), ours(x))
