"""QModule as a torch module: files that torch writes, prefixes, and what torch's methods return."""

from __future__ import annotations

import io
import pickle

import pytest
import torch
from networks import images, small_network
from steps import check_equal_gradients, close
from torch import nn
from torch_framework import FRAMEWORK, close_tensors, same_tensors

import actnn


def saved_and_loaded(thing):
    """Return what comes back of a file."""
    memory = io.BytesIO()
    torch.save(thing, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=False)


def test_a_state_with_a_wrong_name_is_refused_by_name():
    with pytest.raises(RuntimeError, match="nonsense"):
        FRAMEWORK.compressed(small_network(FRAMEWORK)).load_state_dict({"nonsense": torch.zeros(1)})


def test_a_state_takes_a_prefix():
    names = FRAMEWORK.compressed(small_network(FRAMEWORK)).state_dict(prefix="model.")
    assert all(name.startswith("model.") for name in names)


@pytest.mark.parametrize(
    "way", [lambda model: pickle.loads(pickle.dumps(model)), saved_and_loaded], ids=["pickle", "torch.save"]
)
def test_a_network_from_a_file_trains_like_the_original(way):
    ours = FRAMEWORK.compressed(small_network(FRAMEWORK), 2)
    FRAMEWORK.step(ours, images())
    twin = way(ours)
    found, expected = FRAMEWORK.step(twin, images()), FRAMEWORK.step(ours, images())
    check_equal_gradients(found.gradients, expected.gradients)


def test_a_model_that_torch_saved_can_be_restored():
    network = saved_and_loaded(FRAMEWORK.compressed(small_network(FRAMEWORK))).restore()
    assert type(network.head) is nn.Linear


def test_a_state_from_a_file_of_weights_only_can_be_loaded():
    ours, memory = FRAMEWORK.compressed(small_network(FRAMEWORK)), io.BytesIO()
    torch.save(ours.state_dict(), memory)
    memory.seek(0)
    before = FRAMEWORK.state(ours)
    FRAMEWORK.step(ours, images())
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    ours.load_state_dict(torch.load(memory, weights_only=True))
    check_equal_gradients(FRAMEWORK.state(ours), before)


def test_train_and_eval_return_the_wrapper():
    ours = FRAMEWORK.compressed(small_network(FRAMEWORK))
    assert ours.eval() is ours
    assert ours.train() is ours


def test_a_forward_may_be_put_around_that_of_the_wrapper():
    ours, calls = FRAMEWORK.compressed(nn.Sequential(nn.Linear(64, 64))), []
    inner = ours.forward
    ours.forward = lambda x: (calls.append("around"), inner(x))[1]
    FRAMEWORK.step(ours, torch.randn(8, 64))
    assert calls == ["around"]
    del ours.forward
    FRAMEWORK.step(ours, torch.randn(8, 64))
    assert calls == ["around"]


def test_the_class_of_the_wrapper_may_be_derived_from():
    ours = FRAMEWORK.compressed(nn.Sequential(nn.Linear(64, 64)))

    class Sharded(type(ours)):
        """What fully_shard makes of a module's class."""

    ours.__class__ = Sharded
    assert type(ours) is Sharded
    FRAMEWORK.step(ours, torch.randn(8, 64))
    assert ours.report().kept_bytes > 0


@pytest.mark.parametrize("level", ["L0", "L2", "L3"])
@pytest.mark.parametrize("way", ["function", "method"])
def test_a_compiled_model_trains_as_one_that_is_not(level, way):
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 5))
    ours, theirs = FRAMEWORK.compressed(plain, level=level), FRAMEWORK.compressed(plain, level=level)
    called = ours
    if way == "function":
        called = torch.compile(ours, backend="eager")
    else:
        ours.compile(backend="eager")
    for _ in range(3):
        x = FRAMEWORK.tensor(images())
        called(x).sum().backward()
        theirs(x).sum().backward()
    for found, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        close_tensors(found.grad, expected.grad, 1e-5)
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
    same_tensors(ours[0].weight.data, weight)
    assert seen == ["saved", "loaded"]


def test_a_batch_norm_without_a_number_of_batches_trains_as_the_plain_one():
    plain = nn.BatchNorm2d(3)
    plain.num_batches_tracked = None
    found, expected = (FRAMEWORK.step(model, images()) for model in (FRAMEWORK.compressed(plain), plain))
    close(found.buffers["running_mean"], expected.buffers["running_mean"], 1e-5)
