"""Level swap: activations leave memory as they are, and gradients are those of plain training bit by bit."""

from __future__ import annotations

import errno
import gc
import os
import warnings
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from patience import nothing_hangs, until  # noqa: F401
from planned_networks import NETWORKS, loss_of, pictures
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_framework import FRAMEWORK, same_tensors

import actnn
from actnn.measuring.memory import resident
from actnn.stores import store
from actnn.stores.disk import file
from actnn.stores.store import LEAST_BYTES

MB = 2**20
WIDTH = 1024


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    """Let next to nothing wait in memory, so that tensors really go to disk and come back; and files stay small."""
    monkeypatch.setattr(store, "BUFFER_BYTES", 16 * 1024)
    monkeypatch.setattr(file, "GROWTH", MB)


class Computation(nn.Module):
    """A function of an input and of one weight, both as large as is worth leaving memory."""

    def __init__(self, compute: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.compute = compute
        self.weight = nn.Parameter(torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x, self.weight)


def swapped(model: nn.Module, **settings: object) -> actnn.QModule:
    for name, value in settings.items():
        setattr(actnn.config, name, value)
    return actnn.QModule(deepcopy(model), level="swap")


def statistics(model: actnn.QModule):
    return model._session.store.statistics()


def check_empty(model: actnn.QModule) -> None:
    gc.collect()
    until(lambda: statistics(model).file_bytes == statistics(model).memory_bytes == 0)


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the gradients of a step on a copy of ``x``, with its own among them where it can have one."""
    x = x.clone()
    if x.is_floating_point() or x.is_complex():
        x.requires_grad_()
    torch.manual_seed(3)
    model.zero_grad()
    y = model(x)
    (y.abs() if y.is_complex() else y).float().sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    return found if x.grad is None else found | {"input": x.grad}


def check_like_plain(model: nn.Module, x: Tensor, leaves: bool = True) -> actnn.QModule:
    """Raise unless gradients at level swap are the plain ones, and tensors left memory if they are to."""
    ours = swapped(model)
    for _ in range(2):
        expected, found = gradients(model, x), gradients(ours, x)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            same_tensors(found[name], gradient, name)
    # handed over: a small one may be back before it was written
    assert (ours.report().swapped_bytes > 0) == leaves
    check_empty(ours)
    return ours


def overwritten(x: Tensor, weight: Tensor) -> Tensor:
    h = (x * weight).add_(1).mul_(2).relu_()
    return F.dropout((h * x).add_(1), 0.3, inplace=True).exp_() * x


def saved_twice(x: Tensor, weight: Tensor) -> Tensor:
    h = (x * weight).tanh()
    return h * h + h.exp() * h.sin()


def views(x: Tensor, weight: Tensor) -> Tensor:
    h = (x * weight).view(4, -1)
    left, right = h[:, : WIDTH // 2], h[:, WIDTH // 2 :].flip(1)
    crossed = left.T.contiguous().T * h[::2].repeat(2, 1)[:, : WIDTH // 2] + h.unfold(1, WIDTH // 2, 1)[:, 0].sin()
    return crossed * crossed[:, ::2].repeat_interleave(2, 1) * right[:, : WIDTH // 2].exp()


def expanded(x: Tensor, weight: Tensor) -> Tensor:
    h = weight[:1].sin().expand(8, WIDTH)
    return h * x * h.exp()


def integers(x: Tensor, weight: Tensor) -> Tensor:
    order = (x * weight).argsort(1)
    return weight.gather(1, order) * torch.where(x > 0, x, weight) * weight[:, order[0]]


def conjugated(x: Tensor, weight: Tensor) -> Tensor:
    h = x * weight
    return h * h.conj() * h + h.conj().imag * h.imag


COMPUTATIONS = {
    "overwritten in place": overwritten,
    "saved twice": saved_twice,
    "views": views,
    "expanded": expanded,
    "integers and masks": integers,
    "dropout": lambda x, weight: F.dropout(x * weight, 0.5) * x,
    "nothing": lambda x, weight: weight + x,
    "scalars": lambda x, weight: (x * weight).norm() * weight.sum().sqrt().nan_to_num() * weight,
}


@pytest.mark.parametrize("name", COMPUTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gradients_are_those_of_plain_training(name, dtype):
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(2)).to(dtype)
    check_like_plain(Computation(COMPUTATIONS[name], dtype), x, leaves=name != "nothing")


def test_a_conjugated_tensor_is_not_taken_for_the_one_it_shares_memory_with():
    x = torch.randn(8, WIDTH, dtype=torch.complex64, generator=torch.Generator().manual_seed(2))
    check_like_plain(Computation(conjugated, torch.complex64), x)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_networks_are_those_of_plain_training(name):
    network = NETWORKS[name](FRAMEWORK)
    ours = swapped(network)
    for seed in range(3):
        for model in (network, ours):
            model.zero_grad()
            loss_of(FRAMEWORK, model, pictures(16, seed)).backward()
        for found, expected in zip(ours.parameters(), network.parameters(), strict=True):
            same_tensors(found.grad, expected.grad)
    assert statistics(ours).read_bytes > 0
    check_empty(ours)


def test_gradients_with_channels_last_are_those_of_plain_training():
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.Tanh())
    network.to(memory_format=torch.channels_last)
    check_like_plain(network, FRAMEWORK.tensor(pictures(8)).contiguous(memory_format=torch.channels_last))


def test_what_comes_back_lies_as_it_was_saved():
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(ctx.saved_tensors[0])
            return grad * 2

    ours = swapped(Computation(lambda x, weight: Look.apply(x) * weight.sum()))
    x = torch.randn(2, 8, 20, 20).contiguous(memory_format=torch.channels_last)
    ours(x.clone(memory_format=torch.preserve_format).requires_grad_()).sum().backward()
    same_tensors(seen[0], x)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_gradients_of_an_embedding_are_those_of_plain_training():
    layers = nn.Embedding(50, 64), nn.Flatten(), nn.Linear(64 * 128, 6), nn.LogSoftmax(1)
    check_like_plain(nn.Sequential(*layers), torch.randint(0, 50, (32, 128)))


def test_gradients_under_autocast_are_those_of_plain_training():
    network = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, WIDTH))
    ours, x = swapped(network), torch.randn(32, WIDTH)
    for model in (network, ours):
        with torch.autocast("cpu", torch.bfloat16):
            value = model(x).square().mean()
        value.backward()
    for found, expected in zip(ours.parameters(), network.parameters(), strict=True):
        same_tensors(found.grad, expected.grad)


def test_parameters_and_buffers_are_never_swapped():
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH, momentum=0.0))
    ours, x = swapped(network), torch.randn(2, WIDTH)
    value = ours(x).sum()
    # the input of either layer, and what a BatchNorm computed
    assert ours.report().kept_bytes <= 2 * x.nbytes + 2 * 4 * WIDTH
    value.backward()


@pytest.mark.parametrize("mode", ["evaluation", "no_grad", "inference"])
def test_nothing_is_put_where_no_backward_follows(mode):
    ours = swapped(Computation(saved_twice))
    x = torch.randn(8, WIDTH)
    if mode == "evaluation":
        ours.eval()(x)
    else:
        with torch.no_grad() if mode == "no_grad" else torch.inference_mode():
            ours(x)
    assert ours._session.store._store._engine._thread is None


def test_a_tensor_overwritten_after_it_was_saved_gives_the_gradient_of_what_was_saved():
    def compute(x: Tensor, weight: Tensor) -> Tensor:
        h = (x * weight).exp()
        y = h * weight
        with torch.no_grad():
            h.zero_()
        return y

    plain = Computation(lambda x, weight: (x * weight).exp() * weight)
    x = torch.randn(8, WIDTH)
    found, expected = gradients(swapped(Computation(compute)), x), gradients(plain, x)
    for name, gradient in expected.items():
        same_tensors(found[name], gradient, name)


def overwrite_a_small_one(x: Tensor, weight: Tensor) -> Tensor:
    h = weight[0, :8].exp()
    y = h * h.sin()
    with torch.no_grad():
        h.zero_()
    return y


def overwrite_the_weight(x: Tensor, weight: Tensor) -> Tensor:
    y = x * weight
    with torch.no_grad():
        weight.mul_(2)
    return y


@pytest.mark.parametrize("compute", [overwrite_a_small_one, overwrite_the_weight])
def test_what_stays_in_memory_may_not_be_overwritten(compute):
    plain = Computation(compute)
    ours, x = swapped(plain), torch.randn(8, WIDTH)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(plain, x)
    with pytest.raises(actnn.SessionError, match="changed in place"):
        gradients(ours, x)


def test_small_tensors_may_be_changed_in_place_before_they_are_saved():
    def compute(x: Tensor, weight: Tensor) -> Tensor:
        h = weight[0, :8] * 2
        return h.add_(1).mul_(3).exp_() * x[0, :8]

    check_like_plain(Computation(compute), torch.randn(8, WIDTH), leaves=False)


def test_an_expanded_tensor_is_not_written_out():
    ours = swapped(Computation(lambda x, weight: x * weight[:1].sin().expand(8, WIDTH)))
    ours(torch.randn(8, WIDTH)).sum().backward()
    # x is saved, and one row
    assert ours.report().kept_bytes <= (8 + 1) * WIDTH * 4


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_a_block_can_be_computed_anew(reentrant):
    def compute(x: Tensor, weight: Tensor) -> Tensor:
        h = checkpoint(saved_twice, x, weight, use_reentrant=reentrant)
        return checkpoint(saved_twice, h.sin(), weight, use_reentrant=reentrant) * x

    check_like_plain(Computation(compute), torch.randn(8, WIDTH))


def test_a_retained_graph_and_graphs_in_another_order_have_the_plain_gradients():
    plain = Computation(saved_twice)
    ours, batches = swapped(plain), [torch.randn(8, WIDTH) for _ in range(3)]
    found = []
    for model in (plain, ours):
        losses = [model(x).sum() for x in batches]
        model.zero_grad()
        losses[0].backward(retain_graph=True)
        for index in (1, 0, 2):
            losses[index].backward()
        found.append(model.weight.grad)
    del losses
    same_tensors(*found)
    check_empty(ours)


def test_the_report_tells_what_went_to_disk_and_no_more():
    ours = swapped(Computation(saved_twice))
    ours(torch.randn(8, WIDTH)).sum().backward()
    report = ours.report()
    assert report.kept_bytes == report.exact_bytes == report.swapped_bytes > 0
    assert [row.kind for row in report.rows] == ["saved tensors"]


def test_a_tensor_that_two_operations_save_goes_once():
    ours = swapped(Computation(lambda x, weight: (h := x * weight) * h.sin()))
    value = ours(torch.randn(8, WIDTH)).sum()
    # x, h and sin(h), each once; the weight never
    assert ours.report().kept_bytes == 3 * 8 * WIDTH * 4
    value.backward()


def test_a_forward_without_its_backward_leaves_nothing():
    ours = swapped(Computation(saved_twice))
    ours(torch.randn(8, WIDTH))
    ours(torch.randn(8, WIDTH)).sum().backward()
    ours(torch.randn(8, WIDTH))
    # the tags of a step go with the tensors they belong to
    check_empty(ours)


@pytest.mark.parametrize(("name", "number"), [("posix_fallocate", errno.ENOSPC), ("pwrite", errno.EIO)])
def test_a_disk_that_takes_nothing_costs_memory_and_no_gradient(monkeypatch, name, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(file.os, name, fail)
    plain = Computation(saved_twice)
    ours, x = swapped(plain), torch.randn(8, WIDTH)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [gradients(ours, x) for _ in range(3)]
    assert [str(warning.message).count("keeps codes in memory") for warning in caught] == [1]
    for each in found:
        same_tensors(each["weight"], gradients(plain, x)["weight"])
    check_empty(ours)


def test_bytes_that_are_not_what_was_written_are_an_error_and_no_gradient(monkeypatch):
    ours = swapped(Computation(saved_twice))
    value = ours(torch.randn(8, WIDTH)).sum()
    until(lambda: statistics(ours).memory_bytes == 0)
    monkeypatch.setattr(file.os, "preadv", lambda *_: 0)
    with pytest.raises(actnn.SwapError, match="too early"):
        value.backward()


def test_a_restored_model_swaps_nothing_through_its_wrapper_either():
    ours = swapped(Computation(saved_twice))
    gradients(ours, torch.randn(8, WIDTH))
    plain = ours.restore()
    x = torch.randn(8, WIDTH)
    same_tensors(gradients(ours, x)["weight"], gradients(plain, x)["weight"])


@pytest.mark.own_process
def test_hundreds_of_steps_need_no_more_of_anything():
    ours = swapped(Computation(saved_twice))

    def steps(count: int) -> tuple[int, int, int]:
        for number in range(count):
            gradients(ours, torch.randn(8, WIDTH) * (1 + number % 3))
        check_empty(ours)
        return statistics(ours).file_size, len(gc.get_objects()), resident("VmRSS")

    before, after = steps(50), steps(200)
    assert after[0] == before[0]
    assert after[1] - before[1] < 100
    assert after[2] - before[2] < 4 * MB


@pytest.mark.parametrize(("elements", "leaves"), [(LEAST_BYTES // 4 - 1, False), (LEAST_BYTES // 4, True)])
def test_only_what_is_worth_a_place_leaves(elements, leaves):
    x = torch.randn(elements)
    check_like_plain(Computation(lambda x, weight: x.sin() * weight.view(-1)[: len(x)].sum()), x, leaves)
