"""QSyncBatchNorm in two real processes equals BatchNorm on the joined batch; also a model under DDP."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from steps import check_close_gradients, close
from torch import nn
from torch_framework import FRAMEWORK, close_tensors, same_tensors
from two_processes import BATCHES, joined_batch, layers, norm, part, train

import actnn
from actnn.torch.layers.batch_norm import QSyncBatchNorm
from actnn.torch.tensors import TorchArrays

each = pytest.mark.parametrize("batches", BATCHES)
layer = pytest.mark.parametrize("layer", ["alone", "followed"])
ranks = pytest.mark.parametrize("rank", [0, 1])


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What both processes computed."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(train, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def expected(layer: str, batches: str) -> dict[str, torch.Tensor]:
    """Return what the plain BatchNorm gives on the joined batch."""
    model = norm() if layer == "alone" else nn.Sequential(norm(), nn.ReLU())
    whole, gradient = joined_batch(batches)
    for _ in range(2):
        found = FRAMEWORK.step(model, whole, gradient)
    named = {"output": found.output, **found.gradients, **found.buffers}
    return {name.rpartition(".")[2]: torch.from_numpy(np.asarray(value)) for name, value in named.items()}


@each
@layer
@ranks
def test_the_output_is_that_of_the_joined_batch(results, batches, layer, rank):
    joined = expected(layer, batches)["output"]
    close_tensors(results[rank][layer, batches]["output"], part(joined, batches, rank), 1e-5)


@each
@layer
@ranks
@pytest.mark.parametrize("statistic", ["running_mean", "running_var", "num_batches_tracked"])
def test_running_statistics_are_those_of_the_joined_batch(results, batches, layer, rank, statistic):
    close_tensors(results[rank][layer, batches][statistic], expected(layer, batches)[statistic], 1e-5)


@each
@layer
@ranks
def test_the_gradient_of_the_input_is_that_of_the_joined_batch(results, batches, layer, rank):
    close_tensors(results[rank][layer, batches]["input"], part(expected(layer, batches)["input"], batches, rank), 0.01)


@each
@layer
@pytest.mark.parametrize("parameter", ["weight", "bias"])
def test_the_gradients_of_the_processes_add_up_to_that_of_the_joined_batch(results, batches, layer, parameter):
    total = sum(result[layer, batches][parameter] for result in results)
    close_tensors(total, expected(layer, batches)[parameter], 0.01)


@each
@layer
@ranks
def test_a_code_is_kept_and_not_the_input(results, batches, layer, rank):
    numbers = part(joined_batch(batches)[0], batches, rank).numel()
    assert results[rank][layer, batches]["kept"] < 1.2 * numbers


def test_evaluation_needs_no_other_process(results):
    plain = layers()["alone"].eval()
    same_tensors(results[0]["evaluation"], plain(joined_batch("equal")[0]).detach())


def test_processes_under_ddp_agree_on_the_gradient(results):
    same_tensors(results[0]["distributed"]["gradient"], results[1]["distributed"]["gradient"])


def test_a_model_under_ddp_has_the_keys_of_the_plain_one(results):
    assert "0.weight" in results[0]["distributed"]["keys"]


@pytest.mark.parametrize("made", ["early", "late", "by hand"])
def test_processes_draw_different_noise_whenever_their_group_was_made(results, made):
    assert not torch.equal(results[0]["noise"][made], results[1]["noise"][made])


@layer
def test_one_process_alone_works_as_a_plain_batch_norm(layer):
    model = FRAMEWORK.compressed(layers()[layer])
    whole, gradient = joined_batch("equal")
    for _ in range(2):
        found = FRAMEWORK.step(model, whole, gradient)
    wanted = expected(layer, "equal")
    close(found.output, wanted["output"].numpy(), 1e-5)
    close(found.gradients["input"], wanted["input"].numpy(), 0.01)


def test_a_layer_made_by_hand_is_a_plain_batch_norm_without_processes():
    actnn.set_optimization_level("L2")
    made, plain = actnn.QSyncBatchNorm(6), nn.BatchNorm2d(6)
    x, _ = joined_batch("equal")
    found, expected = (FRAMEWORK.step(model, x).gradients for model in (made, plain))
    # at the four bits of this level
    check_close_gradients(found, expected, 0.1)


class Together:
    """Two processes, of which the other one has values that are known: what torch's process groups would do."""

    def __init__(self, statistics: torch.Tensor, sums: torch.Tensor) -> None:
        self._statistics, self._sums = statistics, sums

    def gathered(self, values: torch.Tensor) -> torch.Tensor:
        return torch.stack([values, self._statistics])

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        return values + self._sums


def trained_beside(on_host: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Train a SyncBatchNorm on 6 samples beside a process that has 3, where the host can read their number or not."""
    monkeypatch.setenv("ACTNN_BACKEND", "reference")
    torch.manual_seed(0)
    other = torch.randn(3, 4, 5, 5)
    counted = torch.full((1, 4), 75.0)
    flat = other.transpose(0, 1).flatten(1)
    parts = (flat.mean(1), flat.var(1, unbiased=False), flat.amin(1), flat.amax(1))
    together = Together(torch.cat([torch.stack(parts), counted]), torch.randn(2, 4))
    monkeypatch.setattr(QSyncBatchNorm, "processes", lambda self: together)
    monkeypatch.setattr(TorchArrays, "on_host", lambda self, x: on_host)
    actnn.set_optimization_level("L2")
    # layers made by hand draw other noise one after another
    object.__setattr__(actnn.config, "_streams", 0)
    layer = QSyncBatchNorm(4)
    x = torch.randn(6, 4, 5, 5, requires_grad=True)
    y = layer(x)
    y.backward(torch.randn(6, 4, 5, 5))
    names = ("running_mean", "running_var")
    return {"output": y.detach(), "input": x.grad, **{name: getattr(layer, name) for name in names}}


def test_an_accelerator_need_not_tell_the_host_how_large_the_joined_batch_is(monkeypatch):
    with monkeypatch.context() as patched:
        expected = trained_beside(True, patched)
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "__int__", lambda self: pytest.fail("the host reads the count"))
        found = trained_beside(False, patched)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)
