"""L4 and L5: gradients are those of L3 bit by bit, while codes lie on disk, whatever users, graphs and disks do."""

from __future__ import annotations

import errno
import gc
import io
import os
import select
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from child_process import check_ended_well, in_child
from disk_stores import fails, open_files
from patience import PATIENCE, nothing_hangs, until  # noqa: F401
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_framework import FRAMEWORK, same_tensors

import actnn
from actnn.measuring.memory import resident
from actnn.stores import store
from actnn.stores.disk import engine, file
from actnn.torch.door.mode import Door

MB = 2**20


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    """Let next to nothing wait in memory, so that codes really go to disk and come back; and files stay small."""
    monkeypatch.setattr(store, "BUFFER_BYTES", 16 * 1024)
    monkeypatch.setattr(file, "GROWTH", MB)


class Chosen:
    """The level that a test is run at."""

    level = "L4"


@pytest.fixture(autouse=True, params=["L4", "L5"])
def both_levels(request, monkeypatch):
    """Run every test with codes in plain memory, and in slabs, before they are written and after they were read."""
    monkeypatch.setattr(Chosen, "level", request.param)


class Network(nn.Module):
    """Layers of every kind that keeps codes, each code large enough to leave memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.block = nn.Sequential(
            nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout(0.2)
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(32 * 16 * 16, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.pool(self.stem(x))))


def batch(number: int = 0, samples: int = 8) -> Tensor:
    """Return inputs whose samples differ in range."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn(samples, 3, 32, 32, generator=generator) * torch.logspace(-1, 0.5, samples).view(-1, 1, 1, 1)


def swapping(network: nn.Module, **settings: object) -> actnn.QModule:
    return FRAMEWORK.compressed(network, 2, level=Chosen.level, **settings)


def at_l3(network: nn.Module, **settings: object) -> actnn.QModule:
    return FRAMEWORK.compressed(network, 2, level="L3", **settings)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return model(x).float().square().mean()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def take_step(model: nn.Module, x: Tensor) -> None:
    """Compute the gradient of one batch and go along it a little."""
    model.zero_grad()
    loss(model, x).backward()
    move(model)


def move(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad


def train(model: nn.Module, steps: int = 4, step: Callable = take_step, first: int = 0) -> list[dict[str, Tensor]]:
    """Train on different batches; return the gradients of all steps."""
    found = []
    for number in range(first, first + steps):
        step(model, batch(number))
        found.append(gradients(model))
    return found


def check_same(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> None:
    """Raise unless all gradients of all steps are the same bit for bit."""
    assert len(found) == len(expected)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours.keys() == theirs.keys()
        assert ours, "no gradient was computed"
        for name, gradient in theirs.items():
            same_tensors(ours[name], gradient, f"{name} in step {number}")


def check_like_l3(network: nn.Module, step: Callable = take_step, steps: int = 4, **settings: object) -> None:
    """Raise unless training has the gradients of L3, from codes that came back from disk."""
    ours = swapping(network, **settings)
    check_same(train(ours, steps, step), train(at_l3(network, **settings), steps, step))
    assert statistics(ours).read_bytes > 0, "no code came back from disk"
    check_empty(ours)


def statistics(model: actnn.QModule):
    return model._session.store.statistics()


def check_empty(model: actnn.QModule) -> None:
    """Raise unless no code of a model is left, in its file or in memory."""
    gc.collect()
    until(lambda: statistics(model).file_bytes == statistics(model).memory_bytes == 0)
    assert statistics(model).unknown_releases == 0
    slabs = model._session.store.slabs
    assert (slabs is not None) == (model._session.policy.arena)
    if slabs is not None:
        until(lambda: slabs.statistics().taken_bytes == 0)


def on_disk(model: actnn.QModule) -> None:
    """Wait until nothing waits to be written."""
    until(lambda: statistics(model).memory_bytes == statistics(model).kept_bytes)


def thread_of(model: actnn.QModule) -> threading.Thread:
    """Return the thread that writes a model's codes."""
    return model._session.store._store._engine._thread


def check_ended(thread: threading.Thread) -> None:
    """Raise unless a thread ends by itself."""
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_gradients_are_those_of_l3_with_channels_last():
    def step(model: nn.Module, x: Tensor) -> None:
        take_step(model, x.contiguous(memory_format=torch.channels_last))

    check_like_l3(Network().to(memory_format=torch.channels_last), step)


def test_gradients_are_those_of_l3_under_autocast():
    def step(model: nn.Module, x: Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(model, x)
        model.zero_grad()
        value.backward()
        move(model)

    check_like_l3(Network(), step)


def test_gradients_are_those_of_l3_with_widths_that_samples_remember():
    def step(model: nn.Module, x: Tensor) -> None:
        model.set_samples(torch.arange(8))
        take_step(model, x)

    check_like_l3(Network(), step, use_gradient=True)


def with_budget(level: str, memory: int) -> actnn.QModule:
    """Return the network with a layer that is never compressed, and keeps more than all codes take."""
    network = Network()
    network.stem.append(nn.Tanh())
    return actnn.QModule(network, level=level, memory=memory)


def bytes_of_tickets() -> int:
    """Return what is left in memory of codes that went to disk, which counts as kept by others."""
    found, expected = (with_budget(level, 2 * MB) for level in (Chosen.level, "L3"))
    for model in (found, expected):
        train(model, 1)
    return found.report().other_bytes - expected.report().other_bytes


def test_a_memory_budget_knows_what_else_is_kept():
    assert 0 < bytes_of_tickets() < 200


@pytest.mark.parametrize("memory", [700_000, 800_000])
def test_gradients_are_those_of_l3_with_a_memory_budget(memory):
    ours, theirs = with_budget(Chosen.level, memory + bytes_of_tickets()), with_budget("L3", memory)
    check_same(train(ours, 5), train(theirs, 5))
    assert statistics(ours).read_bytes > 0
    check_empty(ours)


def layers_by_hand(swap: bool) -> nn.Module:
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [2, 8]
    actnn.config.swap, actnn.config.arena = swap, swap and Chosen.level == "L5"
    # layers made by hand draw different noise each: begin anew
    object.__setattr__(actnn.config, "_streams", 0)
    torch.manual_seed(5)
    layers = (
        actnn.QConv2d(3, 16, 3, padding=1),
        actnn.QBatchNorm2d(16),
        actnn.QReLU(),
        actnn.QConv2d(16, 16, 3, padding=1, group=1),
        actnn.QMaxPool2d(2),
        nn.Flatten(),
        actnn.QLinear(16 * 16 * 16, 6, group=1),
    )
    return nn.Sequential(*layers)


def test_layers_made_by_hand_swap_too():
    ours = layers_by_hand(swap=True)
    check_same(train(ours), train(layers_by_hand(swap=False)))
    swaps = [layer.site.session.store for layer in ours if hasattr(layer, "site")]
    assert swaps[0].statistics().written_bytes > 0
    gc.collect()
    for each in swaps:
        until(lambda: each.statistics().file_bytes == 0)  # noqa: B023


def test_one_layer_alone_gives_the_gradient_of_l3():
    check_like_l3(nn.Conv2d(3, 64, 3), steps=2)


def test_a_default_device_does_not_carry_tickets_away():
    def step(model: nn.Module, x: Tensor) -> None:
        model.zero_grad()
        value = model(x)
        with torch.device("meta"):
            value = model(x)
        value.square().mean().backward()

    network = Network()
    network.block[3] = nn.Identity()
    check_like_l3(network, step, steps=2)


def test_a_retained_graph_gives_the_same_gradient_twice():
    def step(model: nn.Module, x: Tensor) -> None:
        value, wanted = loss(model, x), list(model.parameters())
        model.zero_grad()
        first = torch.autograd.grad(value, wanted, retain_graph=True)
        value.backward()
        for parameter, gradient in zip(wanted, first, strict=True):
            same_tensors(parameter.grad, gradient)

    check_like_l3(Network(), step, steps=2)


def test_two_models_whose_graphs_alternate_keep_apart():
    ours, others = [swapping(Network(), share_codes=False) for _ in "ab"], at_l3(Network(), share_codes=False)
    expected = train(others, 3)
    for number in range(3):
        losses = [loss(model, batch(number)) for model in ours]
        for model, value in zip(ours, losses, strict=True):
            model.zero_grad()
            value.backward()
        for model in ours:
            check_same([gradients(model)], [expected[number]])
            move(model)


def test_the_backwards_of_two_graphs_may_alternate():
    def step(model: nn.Module, x: Tensor) -> None:
        values, parameters = [loss(model, x), loss(model, 2 * x)], list(model.parameters())
        for parameter in (parameters[-1], parameters[3], parameters[0]):
            parts = [torch.autograd.grad(value, [parameter], retain_graph=True)[0] for value in values]
            parameter.grad = parts[0] + 2 * parts[1]

    check_like_l3(Network(), step, steps=2)


def test_models_train_in_several_threads():
    models = [swapping(nn.Sequential(*Network().stem)) for _ in range(3)]
    expected = train(at_l3(nn.Sequential(*Network().stem)))
    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(train, models):
            check_same(found, expected)


def test_a_part_of_the_gradients_can_be_asked_for():
    def step(model: nn.Module, x: Tensor) -> None:
        model.zero_grad()
        wanted = model.block[0].weight
        (wanted.grad,) = torch.autograd.grad(loss(model, x), [wanted])

    check_like_l3(Network(), step, steps=3)


class Checkpointed(Network):
    """The network with its block computed anew in backward."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, self.pool(self.stem(x)), use_reentrant=True))


def test_a_block_can_be_computed_anew_reentrantly():
    check_like_l3(Checkpointed())


def through_a_file(tensor: Tensor) -> Tensor:
    kept = io.BytesIO()
    torch.save(torch.from_numpy(tensor.detach().numpy()), kept)
    kept.seek(0)
    return torch.load(kept)


def hooks(pack: Callable[[Tensor], Tensor]) -> torch.autograd.graph.saved_tensors_hooks:
    return torch.autograd.graph.saved_tensors_hooks(pack, pack)


HOOKS = {
    "unchanged": lambda: hooks(lambda tensor: tensor),
    "detached": lambda: hooks(lambda tensor: tensor.detach()),
    "copied": lambda: hooks(lambda tensor: tensor.clone()),
    "on the cpu": torch.autograd.graph.save_on_cpu,
    "on the cpu, copied": lambda: torch.autograd.graph.save_on_cpu(pin_memory=True),
}


@pytest.mark.parametrize("around", HOOKS)
def test_hooks_may_keep_what_is_saved_in_their_own_way(around):
    def step(model: nn.Module, x: Tensor) -> None:
        with HOOKS[around]():
            value = loss(model, x)
        model.zero_grad()
        value.backward()
        move(model)

    check_like_l3(Network(), step)


@pytest.mark.parametrize("around", [None, "copied"])
def test_converted_layers_run_with_the_door_closed_unless_hooks_may_copy_tickets(around, monkeypatch):
    seen = []
    see = Door.__torch_function__
    monkeypatch.setattr(Door, "__torch_function__", lambda self, *rest: (seen.append(rest[0]), see(self, *rest))[1])

    def calls(model: nn.Module) -> int:
        with HOOKS[around]() if around else nullcontext():
            for _ in range(5):
                seen.clear()
                take_step(model, batch())
        return len(seen)

    assert (calls(swapping(Network())) > calls(at_l3(Network()))) is (around is not None)


def test_hooks_that_lose_what_stands_for_a_code_get_a_clear_error():
    ours = swapping(Network())
    with torch.autograd.graph.saved_tensors_hooks(through_a_file, lambda tensor: tensor):
        value = loss(ours, batch())
    with pytest.raises(actnn.SwapError, match="no code"):
        value.backward()


def evaluate_with_grad(model: nn.Module) -> None:
    model.eval()
    loss(model, batch())
    model.train()


def forget_the_loss(model: nn.Module) -> None:
    value = loss(model, batch())
    on_disk(model)
    del value


def fail_in_between(model: nn.Module) -> None:
    def work() -> None:
        value = loss(model, batch())
        raise ValueError(f"no use for {value}")

    with pytest.raises(ValueError, match="no use"):
        work()


def fail_within_forward(model: nn.Module) -> None:
    with pytest.raises(RuntimeError):
        model.head(model.block(model.stem(batch())))


def backward_of_a_part(model: nn.Module) -> None:
    h = model.stem(batch())
    torch.autograd.grad(h.sum() + model.block(model.pool(h)).sum(), [model.block[0].weight])


@pytest.mark.parametrize(
    "leave", [evaluate_with_grad, forget_the_loss, fail_in_between, fail_within_forward, backward_of_a_part]
)
def test_a_forward_without_its_backward_leaves_nothing(leave):
    ours, theirs = swapping(Network()), at_l3(Network())
    for model in (ours, theirs):
        train(model, 1)
    for model in (ours, theirs):
        if model is ours or leave is not forget_the_loss:
            leave(model)
        else:
            loss(model, batch())
    check_empty(ours)
    check_same(train(ours, 2, first=1), train(theirs, 2, first=1))
    check_empty(ours)


def test_a_graph_keeps_its_codes_while_the_model_is_gone():
    ours, theirs = swapping(Network()), at_l3(Network())
    parameters = list(ours.parameters())
    values = [loss(model, batch()) for model in (ours, theirs)]
    expected = torch.autograd.grad(values[1], list(theirs.parameters()))
    thread = thread_of(ours)
    del ours
    gc.collect()
    for found, gradient in zip(torch.autograd.grad(values[0], parameters), expected, strict=True):
        same_tensors(found, gradient)
    assert thread.is_alive()
    del values
    gc.collect()
    check_ended(thread)


def test_a_deleted_model_leaves_no_thread_and_no_file(tmp_path):
    ours = swapping(Network(), swap_dir=tmp_path)
    train(ours, 2)
    thread = thread_of(ours)
    assert thread.is_alive()
    assert open_files(tmp_path)
    del ours
    gc.collect()
    check_ended(thread)
    assert not open_files(tmp_path)


def test_a_restored_model_is_plain_and_leaves_no_thread_and_no_file(tmp_path):
    network = Network()
    ours = swapping(network, swap_dir=tmp_path)
    train(ours, 2)
    thread = thread_of(ours)
    model = ours.restore()
    assert [type(layer) for layer in model.modules()] == [type(layer) for layer in network.modules()]
    assert not thread.is_alive()
    assert not open_files(tmp_path)
    take_step(model, batch())


def test_a_graph_of_a_restored_model_has_a_clear_error():
    ours = swapping(Network())
    value = loss(ours, batch())
    model = ours.restore()
    with pytest.raises(actnn.SwapError, match=r"closed. Convert the model again"):
        value.backward()
    del value
    gc.collect()
    take_step(model, batch())


def test_a_restored_model_can_be_converted_again():
    network = Network()
    model = swapping(network).restore()
    actnn.set_optimization_level(Chosen.level)
    check_same(train(actnn.QModule(model)), train(at_l3(network)))


def by_pickle(model: actnn.QModule) -> actnn.QModule:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [deepcopy, by_pickle])
def test_a_copy_has_a_store_of_its_own(copied):
    ours, theirs = swapping(Network()), at_l3(Network())
    expected = train(theirs, 4)
    train(ours, 2)
    value = loss(deepcopy(ours), batch(2))
    copy = copied(ours)
    assert copy._session.store is not ours._session.store
    check_same(train(copy, 2, first=2), expected[2:])
    copy.restore()
    check_same(train(ours, 2, first=2), expected[2:])
    value.backward()


def check_kept_in_memory(network: nn.Module, match: str, **settings: object) -> None:
    """Raise unless codes that cannot be written give the gradients of L3, after one warning."""
    ours = swapping(network, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = train(ours)
    told = [warning for warning in caught if issubclass(warning.category, UserWarning)]
    assert len(told) == 1, [str(warning.message) for warning in told]
    assert match in str(told[0].message)
    assert told[0].filename == __file__, "it points at no line of the user"
    check_same(found, train(at_l3(network)))
    check_empty(ours)


@pytest.mark.parametrize("name", ["posix_fallocate", "pwrite"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_takes_nothing_costs_memory_and_no_gradient(monkeypatch, name, number):
    fails(monkeypatch, name, number)
    check_kept_in_memory(Network(), os.strerror(number))


def test_a_file_that_may_not_grow_costs_memory_and_no_gradient():
    check_kept_in_memory(Network(), "limit of 20000 bytes", swap_bytes=20_000)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_death_of_the_thread_costs_memory_and_no_gradient(monkeypatch):
    calls = []

    def die(data):
        calls.append(data.size)
        if len(calls) > 3:
            raise RuntimeError("a mistake in the thread")
        return file.checksum(data)

    monkeypatch.setattr(engine, "checksum", die)
    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    check_kept_in_memory(Network(), "a mistake in the thread")


def flip_a_bit(real: Callable) -> Callable:
    def call(descriptor, parts, start):
        done = real(descriptor, parts, start)
        parts[0][0] ^= 1
        return done

    return call


def read_nothing(real: Callable) -> Callable:
    return lambda descriptor, parts, start: 0


@pytest.mark.parametrize(
    ("damage", "match"), [(flip_a_bit, "not those that were written"), (read_nothing, "too early")]
)
def test_bytes_that_are_not_what_was_written_are_an_error_and_no_gradient(monkeypatch, damage, match):
    ours = swapping(Network())
    train(ours, 1)
    value = loss(ours, batch(1))
    on_disk(ours)
    with monkeypatch.context() as patched:
        patched.setattr(file.os, "preadv", damage(os.preadv))
        with pytest.raises(actnn.SwapError, match=match):
            value.backward()
    del value
    check_empty(ours)
    take_step(ours, batch(2))


def test_a_forked_child_trains_by_itself_and_its_parent_goes_on():
    ours, theirs = swapping(Network()), at_l3(Network())
    train(ours, 1), train(theirs, 1)
    alone, expected = deepcopy(theirs), train(theirs, 2, first=1)
    values = [loss(ours, batch(1))]
    on_disk(ours)

    def work() -> None:
        with pytest.raises(actnn.SwapError, match="parent"):
            values[0].backward()
        check_same(train(ours, 1, first=2), train_after_a_forward(alone))
        assert statistics(ours).read_bytes > 0

    child = in_child(work)
    ours.zero_grad()
    values.pop().backward()
    check_same([gradients(ours)], expected[:1])
    move(ours)
    check_same(train(ours, 1, first=2), expected[1:])
    check_empty(ours)
    check_ended_well(child)


def train_after_a_forward(model: nn.Module) -> list[dict[str, Tensor]]:
    """Train a step after a forward whose backward never runs."""
    loss(model, batch(1))
    return train(model, 1, first=2)


def test_nothing_is_left_of_a_process_that_was_killed(tmp_path):
    ours = swapping(Network(), swap_dir=tmp_path)
    reading, writing = os.pipe()

    def work() -> None:
        train(ours, 1)
        value = loss(ours, batch())
        on_disk(ours)
        assert statistics(ours).file_bytes > 0
        os.write(writing, b"!")
        signal.pause()
        del value

    child = in_child(work)
    os.close(writing)
    try:
        assert select.select([reading], [], [], PATIENCE)[0]
        assert os.read(reading, 1) == b"!"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
    assert os.listdir(tmp_path) == []


@pytest.mark.own_process
def test_hundreds_of_steps_need_no_more_of_anything():
    torch.manual_seed(5)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    ours, x = swapping(nn.Sequential(*layers, nn.Linear(32, 4))), batch()

    def steps(count: int) -> tuple[int, int, int]:
        for _ in range(count):
            take_step(ours, x)
        check_empty(ours)
        return statistics(ours).file_size, len(gc.get_objects()), resident("VmRSS")

    before, after = steps(50), steps(150)
    assert statistics(ours).written_bytes > 0
    assert after[0] == before[0]
    assert after[1] - before[1] < 100
    assert after[2] - before[2] < 2 * MB


def test_layers_of_every_kind_swap_what_they_keep():
    ours = swapping(Network(), share_codes=False)
    train(ours, 2)
    rows = ours.report().rows
    assert {row.kind for row in rows} == {"QConv2d", "QBatchNorm2d", "QReLU", "QMaxPool2d", "QDropout", "QLinear"}
    for row in rows:
        # a BatchNorm keeps its statistics in memory
        assert 0 <= row.kept_bytes - row.swapped_bytes < 500, row
        assert row.swapped_bytes > 0, row
