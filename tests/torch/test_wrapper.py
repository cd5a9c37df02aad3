"""QModule as a torch module: files that torch writes, prefixes, and what torch's methods return."""

from __future__ import annotations

import io
import pickle

import pytest
import torch
from torch import nn
from torch_layers import close, compressed, images, same, small_network, step

import actnn


def saved_and_loaded(thing):
    """Return what comes back of a file."""
    memory = io.BytesIO()
    torch.save(thing, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=False)


def test_a_state_with_a_wrong_name_is_refused_by_name():
    with pytest.raises(RuntimeError, match="nonsense"):
        compressed(small_network()).load_state_dict({"nonsense": torch.zeros(1)})


def test_a_state_takes_a_prefix():
    names = compressed(small_network()).state_dict(prefix="model.")
    assert all(name.startswith("model.") for name in names)


@pytest.mark.parametrize(
    "way", [lambda model: pickle.loads(pickle.dumps(model)), saved_and_loaded], ids=["pickle", "torch.save"]
)
def test_a_network_from_a_file_trains_like_the_original(way):
    ours = compressed(small_network(), 2)
    step(ours, images())
    twin = way(ours)
    found, expected = step(twin, images()), step(ours, images())
    for name, gradient in expected.gradients.items():
        same(found.gradients[name], gradient, name)


def test_a_model_that_torch_saved_can_be_restored():
    network = saved_and_loaded(compressed(small_network())).restore()
    assert type(network.head) is nn.Linear


def test_a_state_from_a_file_of_weights_only_can_be_loaded():
    ours, memory = compressed(small_network()), io.BytesIO()
    torch.save(ours.state_dict(), memory)
    memory.seek(0)
    ours.load_state_dict(torch.load(memory, weights_only=True))


def test_modules_are_named_as_in_the_plain_model():
    network = small_network()
    assert [name for name, _ in compressed(network).named_modules()] == [name for name, _ in network.named_modules()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_parameters_can_be_cast(dtype):
    assert {parameter.dtype for parameter in compressed(small_network()).to(dtype).parameters()} == {dtype}


def test_train_and_eval_return_the_wrapper():
    ours = compressed(small_network())
    assert ours.eval() is ours
    assert ours.train() is ours


def test_a_forward_may_be_put_around_that_of_the_wrapper():
    ours, calls = compressed(nn.Sequential(nn.Linear(64, 64))), []
    inner = ours.forward
    ours.forward = lambda x: (calls.append("around"), inner(x))[1]
    step(ours, torch.randn(8, 64))
    assert calls == ["around"]
    del ours.forward
    step(ours, torch.randn(8, 64))
    assert calls == ["around"]


def test_the_class_of_the_wrapper_may_be_derived_from():
    ours = compressed(nn.Sequential(nn.Linear(64, 64)))

    class Sharded(type(ours)):
        """What fully_shard makes of a module's class."""

    ours.__class__ = Sharded
    assert type(ours) is Sharded
    step(ours, torch.randn(8, 64))
    assert ours.report().kept_bytes > 0


@pytest.mark.parametrize("level", ["L0", "L2", "L3"])
@pytest.mark.parametrize("way", ["function", "method"])
def test_a_compiled_model_trains_as_one_that_is_not(level, way):
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 5))
    ours, theirs = compressed(plain, level=level), compressed(plain, level=level)
    called = ours
    if way == "function":
        called = torch.compile(ours, backend="eager")
    else:
        ours.compile(backend="eager")
    for _ in range(3):
        x = images()
        called(x).sum().backward()
        theirs(x).sum().backward()
    for found, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(found.grad, expected.grad, 1e-5)
    assert ours.report().kept_bytes == theirs.report().kept_bytes


class WithExtraState(nn.Sequential):
    """A model with state of its own, and a name from before."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4))
        self.extra = 5
        self.register_load_state_dict_pre_hook(self.renamed)

    @staticmethod
    def renamed(module, state, prefix, *_):
        if prefix + "old" in state:
            state[prefix + "0.weight"] = state.pop(prefix + "old")

    def get_extra_state(self) -> int:
        return self.extra

    def set_extra_state(self, state: int) -> None:
        self.extra = state


def test_extra_state_and_hooks_on_state_work_inside_another_model():
    ours, seen = actnn.QModule(WithExtraState()), []
    ours.register_state_dict_post_hook(lambda module, state, prefix, metadata: seen.append("saved"))
    ours.register_load_state_dict_post_hook(lambda module, keys: seen.append("loaded"))
    holder = nn.ModuleDict({"inner": ours})
    state = holder.state_dict()
    weight = state.pop("inner.0.weight") + 1
    state["inner._extra_state"], state["inner.old"] = 7, weight
    holder.load_state_dict(state)
    assert ours.extra == 7
    same(ours[0].weight.data, weight)
    assert seen == ["saved", "loaded"]


def test_a_batch_norm_without_a_number_of_batches_trains_as_the_plain_one():
    plain = nn.BatchNorm2d(3)
    plain.num_batches_tracked = None
    found, expected = step(compressed(plain), images()), step(plain, images())
    close(found.buffers["running_mean"], expected.buffers["running_mean"], 1e-5)


def test_the_report_tells_what_is_not_compressed():
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.LayerNorm(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(torch.relu(self.conv(x)))

    ours = compressed(Functional())
    step(ours, images())
    text = str(ours.report())
    assert "what other layers and functions keep is not counted here" in text
    assert "not compressed, and not in the table: 1 LayerNorm" in text


@pytest.mark.parametrize(("level", "layers"), [("L0", [nn.Conv2d(3, 8, 3)]), ("L3", [nn.LayerNorm(16), nn.GELU()])])
def test_the_report_tells_that_nothing_is_compressed(level, layers):
    ours = compressed(nn.Sequential(*layers), level=level)
    step(ours, images())
    assert "no layer of this model is compressed" in str(ours.report())
