"""Memory of accelerators, with stand-ins for one: codes that wait on the host, and caches that are trimmed."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch
from planned_networks import NETWORKS, pictures, train
from steps import check_equal_gradients
from torch import nn
from torch_framework import FRAMEWORK

import actnn
from actnn.stores import store
from actnn.stores.offload import Offload
from actnn.torch import memory
from actnn.torch.moves import TorchMoves
from actnn.torch.tensors import ARRAYS, TorchArrays

CPU = torch.device("cpu")


def content(seed: int, size: int = 5000) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_a_buffer_goes_out_and_back():
    moves, buffer = TorchMoves(CPU), content(0)
    host, event = moves.out(buffer)
    moves.finish(event)
    assert moves.arrived(event)
    again, event = moves.back(host)
    moves.wait(again, event)
    assert torch.equal(again, buffer)
    assert len({tensor.data_ptr() for tensor in (buffer, host, again)}) == 3


def test_an_offload_by_torch_returns_what_was_put():
    offload = Offload(bound=20_000)
    numbers = [offload.put(ARRAYS, content(seed)) for seed in range(20)]
    for seed, number in reversed(list(enumerate(numbers))):
        assert torch.equal(offload.get(number), content(seed))
    assert offload.statistics().back_bytes > 0


def test_a_device_without_streams_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace())
    with pytest.raises(actnn.UnsupportedError, match="no streams"):
        TorchMoves(CPU)


@pytest.fixture
def as_accelerator(monkeypatch):
    """Let tensors of the host count as those of an accelerator."""
    monkeypatch.setattr(TorchArrays, "on_host", lambda self, x: False)
    monkeypatch.setattr(store, "LEAST_BYTES", 64)
    monkeypatch.setattr(store, "BUFFER_BYTES", 4096)


@pytest.mark.usefixtures("as_accelerator")
@pytest.mark.parametrize("level", ["L4", "L5"])
@pytest.mark.parametrize("name", ["residual", "linear"])
def test_codes_of_an_accelerator_wait_on_the_host_and_give_the_gradients_of_l3(name, level):
    ours, theirs = (FRAMEWORK.compressed(NETWORKS[name](FRAMEWORK), 2, level=each) for each in (level, "L3"))
    for number in range(3):
        for model in (ours, theirs):
            train(FRAMEWORK, model, pictures(4, number))
        check_equal_gradients(FRAMEWORK.gradients(ours), FRAMEWORK.gradients(theirs))
    gc.collect()
    moved = ours._session.store.offload_statistics()
    assert moved.back_bytes > 0
    assert moved.host_bytes == 0
    assert ours._session.store.statistics().written_bytes == 0
    assert ours.report().swapped_bytes > 0


@pytest.mark.usefixtures("as_accelerator")
def test_a_graph_of_a_restored_model_has_a_clear_error():
    model = FRAMEWORK.compressed(NETWORKS["linear"](FRAMEWORK), 2, level="L4")
    value = model(FRAMEWORK.tensor(pictures(4))).sum()
    model.restore()
    with pytest.raises(actnn.SwapError, match=r"closed. Convert the model again"):
        value.backward()


@pytest.mark.usefixtures("as_accelerator")
def test_activations_of_an_accelerator_are_swapped_to_the_host():
    network = NETWORKS["linear"](FRAMEWORK)
    ours = actnn.QModule(network, level="swap")
    found = train(FRAMEWORK, ours, pictures(16)), FRAMEWORK.gradients(ours)
    train(FRAMEWORK, ours.restore().train() and actnn.QModule(network, level="L0"), pictures(16))
    check_equal_gradients(found[1], FRAMEWORK.gradients(network))
    assert found[0].swapped_bytes > 0


class Cache:
    """The part of a device's module that tells of its cache."""

    def __init__(self, reserved: int, used: int) -> None:
        self.reserved, self.used, self.emptied = reserved, used, 0

    def memory_reserved(self, device: torch.device) -> int:
        return self.reserved

    def memory_allocated(self, device: torch.device) -> int:
        return self.used

    def empty_cache(self) -> None:
        self.emptied += 1


@pytest.fixture
def cached(monkeypatch):
    """Let the host have a cache, as an accelerator has."""

    def install(module: object) -> object:
        monkeypatch.setattr(memory, "WITHOUT_CACHE", ())
        monkeypatch.setattr(memory.torch, "get_device_module", lambda device: module)
        return module

    return install


@pytest.mark.parametrize(
    ("reserved", "used", "emptied"), [(100, 79, 1), (100, 80, 0), (100, 100, 0), (100, 0, 1), (0, 0, 0)]
)
def test_a_cache_is_emptied_where_more_than_a_share_of_it_is_not_in_use(cached, reserved, used, emptied):
    cache = cached(Cache(reserved, used))
    memory.trim_caches(nn.Linear(2, 2), 0.2)
    assert cache.emptied == emptied


def test_a_device_that_has_no_cache_is_left_alone(cached):
    cached(SimpleNamespace())
    memory.trim_caches(nn.Linear(2, 2), 0.0)


def test_the_host_has_no_cache_to_empty(monkeypatch):
    monkeypatch.setattr(memory.torch, "get_device_module", lambda device: pytest.fail("the host was asked"))
    memory.trim_caches(nn.Linear(2, 2), 0.0)


@pytest.mark.parametrize(("level", "emptied"), [("L2", 0), ("L3.1", 1), ("L5", 1)])
def test_a_forward_of_the_whole_model_trims_where_its_level_says_so(cached, level, emptied):
    cache = cached(Cache(100, 0))
    actnn.QModule(nn.Linear(2, 2), level=level)(torch.randn(1, 2))
    assert cache.emptied == emptied
