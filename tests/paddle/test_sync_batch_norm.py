"""QSyncBatchNorm in two real processes equals BatchNorm on the joined batch."""

from __future__ import annotations

import numpy as np
import pytest
from paddle import distributed as dist
from paddle import nn, to_tensor
from paddle_processes import FIRST, joined_batch, model, part, train, trained

each = pytest.mark.parametrize("batches", FIRST)
ranks = pytest.mark.parametrize("rank", [0, 1])
# far more than they need
SECONDS = 120


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What both processes computed."""
    folder = tmp_path_factory.mktemp("processes")
    # it holds what the processes begin with
    context = dist.spawn(train, args=(str(folder),), nprocs=2, join=False, backend="gloo")
    for process in context.processes:
        process.join(SECONDS)
    waiting = [process for process in context.processes if process.is_alive()]
    for process in waiting:
        process.kill()
    assert not waiting, f"{len(waiting)} processes still wait for each other after {SECONDS} s"
    cases = [(case, rank) for case in (*FIRST, "resumed") for rank in range(2)]
    return {(case, rank): dict(np.load(folder / f"{case}-{rank}.npz")) for case, rank in cases}


@pytest.fixture(scope="module")
def expected():
    """What the plain BatchNorm gives on the joined batch."""
    return trained(model(nn.BatchNorm2D), *joined_batch())


def near(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    """Raise unless two arrays differ by no more than a share of their norm."""
    assert np.linalg.norm(found - wanted) <= tolerance * np.linalg.norm(wanted)


@each
@ranks
def test_the_output_is_that_of_the_joined_batch(results, expected, batches, rank):
    near(results[batches, rank]["output"], part(expected["output"], batches, rank), 1e-5)


@each
@ranks
@pytest.mark.parametrize("statistic", ["mean", "variance"])
def test_running_statistics_are_those_of_the_joined_batch(results, expected, batches, rank, statistic):
    near(results[batches, rank][statistic], expected[statistic], 1e-5)


@each
@ranks
def test_the_gradient_of_the_input_is_that_of_the_joined_batch(results, expected, batches, rank):
    near(results[batches, rank]["input"], part(expected["input"], batches, rank), 0.02)


@each
@pytest.mark.parametrize("parameter", ["weight", "bias"])
def test_the_gradients_of_the_processes_add_up_to_that_of_the_joined_batch(results, expected, batches, parameter):
    near(results[batches, 0][parameter] + results[batches, 1][parameter], expected[parameter], 0.02)


@each
@ranks
def test_a_code_is_kept_and_not_the_input(results, batches, rank):
    numbers = part(joined_batch()[0], batches, rank).size
    assert 0 < results[batches, rank]["kept"] < 1.6 * numbers


@each
def test_evaluation_uses_the_joint_statistics(results, batches):
    plain = model(nn.BatchNorm2D)
    for name in ("mean", "variance"):
        getattr(plain[0], f"_{name}").set_value(results[batches, 0][name])
    plain.eval()
    near(results[batches, 0]["evaluated"], plain(to_tensor(joined_batch()[0])).numpy(), 1e-5)


@ranks
def test_a_run_of_two_processes_goes_on_from_a_checkpoint_bit_for_bit(results, rank):
    found = results["resumed", rank]
    assert np.array_equal(found["whole"], found["parts"])
    assert np.array_equal(found["whole"], results["resumed", 1 - rank]["whole"])
