"""The arena: gradients are the same bit by bit with codes in slabs, which hold no more than what lives."""

from __future__ import annotations

import gc
import pickle
import random
from copy import deepcopy

import pytest
import torch
from child_process import check_in_child
from patience import nothing_hangs  # noqa: F401
from planned_networks import NETWORKS, loss_of, pictures, residual_network, train
from steps import check_equal_gradients
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_framework import FRAMEWORK, same_tensors

import actnn
from actnn.measuring.memory import resident
from actnn.stores import slabs, store
from actnn.stores.slabs import SlabStatistics

MB = 2**20


@pytest.fixture(autouse=True)
def small_places(monkeypatch):
    """Let codes of small networks be worth a place, and slabs be small too."""
    monkeypatch.setattr(store, "LEAST_BYTES", 64)
    monkeypatch.setattr(slabs, "GROWTH", MB)


def with_arena(network: nn.Module, level: str = "L3", **settings: object) -> actnn.QModule:
    return FRAMEWORK.compressed(network, 2, level=level, arena=True, **settings)


def with_and_without(network: nn.Module, level: str = "L3") -> tuple[actnn.QModule, actnn.QModule]:
    """Return a network twice: with codes in slabs, and without."""
    return with_arena(network, level), FRAMEWORK.compressed(network, 2, level=level)


def statistics(model: actnn.QModule) -> SlabStatistics:
    return model._session.store.slabs.statistics()


def check_empty(model: actnn.QModule) -> None:
    gc.collect()
    assert statistics(model).taken_bytes == 0


@pytest.mark.parametrize("level", ["L2", "L3", "L3.1"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_without_an_arena(name, level):
    ours, theirs = (
        with_arena(NETWORKS[name](FRAMEWORK), level),
        FRAMEWORK.compressed(NETWORKS[name](FRAMEWORK), 2, level=level),
    )
    for number in range(4):
        # samples, and with them sizes of codes, change from step to step
        x = pictures(6 + number % 3, number)
        train(FRAMEWORK, ours, x), train(FRAMEWORK, theirs, x)
        check_equal_gradients(FRAMEWORK.gradients(ours), FRAMEWORK.gradients(theirs))
    assert statistics(ours).peak_bytes > 0
    check_empty(ours)


def test_codes_of_l5_lie_in_slabs_and_codes_of_l4_do_not():
    for level in ("L4", "L5"):
        model = FRAMEWORK.compressed(residual_network(FRAMEWORK), 2, level=level)
        assert model._session.policy.arena == (level == "L5")
        assert (model._session.store.slabs is not None) == (level == "L5")


def test_all_large_codes_lie_in_slabs(monkeypatch):
    monkeypatch.setattr(store, "LEAST_BYTES", 4096)
    model = with_arena(nn.Conv2d(3, 8, 3, padding=1), "L2")
    value = model(torch.randn(8, 3, 64, 64)).sum()
    kept = model.report().kept_bytes
    assert kept <= statistics(model).taken_bytes < kept + 4096
    value.backward()
    check_empty(model)


def test_a_retained_graph_reads_the_same_codes_twice():
    model, x = with_arena(residual_network(FRAMEWORK)), pictures()
    value = loss_of(FRAMEWORK, model, x)
    wanted = list(model.parameters())
    first = torch.autograd.grad(value, wanted, retain_graph=True)
    others = [loss_of(FRAMEWORK, model, pictures(8, seed)) for seed in range(3)]
    for again, before in zip(torch.autograd.grad(value, wanted), first, strict=True):
        same_tensors(again, before)
    del value, others
    check_empty(model)


def test_graphs_may_go_backward_in_any_order():
    ours, theirs = (
        with_arena(residual_network(FRAMEWORK)),
        FRAMEWORK.compressed(residual_network(FRAMEWORK), 2, level="L3"),
    )
    found = []
    for model in (ours, theirs):
        losses = [loss_of(FRAMEWORK, model, pictures(8, seed)) for seed in range(4)]
        for index in (2, 0, 3, 1):
            losses[index].backward()
            losses[index] = None
        found.append(FRAMEWORK.gradients(model))
    check_equal_gradients(*found)
    check_empty(ours)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_a_block_can_be_computed_anew(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = residual_network(FRAMEWORK)

        def forward(self, x):
            h = self.layers[:3](x)
            h = checkpoint(self.layers[3:5], h, use_reentrant=reentrant)
            return self.layers[5:](h)

    found = []
    for model in with_and_without(Checkpointed()):
        train(FRAMEWORK, model, pictures()), train(FRAMEWORK, model, pictures(8, 1))
        found.append(FRAMEWORK.gradients(model))
        if model._session.policy.arena:
            check_empty(model)
    check_equal_gradients(*found)


def test_a_forward_without_backward_leaves_nothing():
    model = with_arena(residual_network(FRAMEWORK))
    value = loss_of(FRAMEWORK, model, pictures())
    assert statistics(model).taken_bytes > 0
    del value
    check_empty(model)


def test_an_exception_between_forward_and_backward_leaves_nothing():
    model = with_arena(residual_network(FRAMEWORK))

    def work() -> None:
        value = loss_of(FRAMEWORK, model, pictures())
        raise ValueError(f"no use for {value}")

    with pytest.raises(ValueError, match="no use"):
        work()
    check_empty(model)
    train(FRAMEWORK, model, pictures())
    check_empty(model)


def test_evaluation_takes_no_place():
    model = with_arena(residual_network(FRAMEWORK))
    train(FRAMEWORK, model, pictures())
    before = statistics(model)
    model.eval()
    with torch.no_grad():
        model(FRAMEWORK.tensor(pictures()))
    assert statistics(model).taken_bytes == 0
    assert statistics(model).count <= before.count


@pytest.mark.parametrize("copied", [deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deep", "pickle"])
def test_a_copy_has_slabs_of_its_own(copied):
    model = with_arena(residual_network(FRAMEWORK))
    train(FRAMEWORK, model, pictures())
    other = copied(model)
    assert other._session.store.slabs is not model._session.store.slabs
    train(FRAMEWORK, model, pictures(8, 1)), train(FRAMEWORK, other, pictures(8, 1))
    check_equal_gradients(FRAMEWORK.gradients(other), FRAMEWORK.gradients(model))
    check_empty(other)


def test_a_restored_model_keeps_no_slab_and_its_graph_can_still_run():
    ours, theirs = (
        with_arena(residual_network(FRAMEWORK)),
        FRAMEWORK.compressed(residual_network(FRAMEWORK), 2, level="L3"),
    )
    values = [loss_of(FRAMEWORK, model, pictures()) for model in (ours, theirs)]
    restored = ours.restore()
    assert statistics(ours).count == 0
    for value in values:
        value.backward()
    check_equal_gradients(FRAMEWORK.gradients(restored), FRAMEWORK.gradients(theirs))
    check_empty(ours)


def test_a_child_process_trains_in_slabs_of_its_own():
    ours, theirs = (
        with_arena(residual_network(FRAMEWORK)),
        FRAMEWORK.compressed(residual_network(FRAMEWORK), 2, level="L3"),
    )
    values = [loss_of(FRAMEWORK, model, pictures()) for model in (ours, theirs)]

    def work() -> None:
        # the codes of its parent are there too
        values[0].backward()
        train(FRAMEWORK, ours, pictures(8, 1))
        assert statistics(ours).peak_bytes > 0

    check_in_child(work)
    for value in values:
        value.backward()
    check_equal_gradients(FRAMEWORK.gradients(ours), FRAMEWORK.gradients(theirs))


@pytest.mark.own_process
@pytest.mark.parametrize(("level", "count"), [("L3", 1000), ("L5", 300)])
def test_a_thousand_steps_of_changing_shapes_need_no_more_memory(level, count):
    torch.manual_seed(5)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    model = with_arena(nn.Sequential(*layers, nn.Linear(32, 4)), level)
    chance = random.Random(0)
    # twenty shapes in any order: torch itself remembers something of every shape of a convolution
    shapes = [(chance.randrange(1, 6), 3, chance.randrange(8, 25), chance.randrange(8, 25)) for _ in range(20)]

    def steps(count: int) -> tuple[int, int]:
        for number in range(count):
            value = loss_of(FRAMEWORK, model, torch.randn(chance.choice(shapes)))
            # now and then a step has no backward
            if number % 7:
                model.zero_grad()
                value.backward()
        del value
        check_empty(model)
        return resident("VmRSS"), resident("VmSize")

    before, after = steps(count // 4), steps(count - count // 4)
    assert after[0] - before[0] < 4 * MB
    assert after[1] - before[1] < 16 * MB
    assert statistics(model).count <= 2
