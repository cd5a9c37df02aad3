"""Models that two processes train together, in every way that torch has: the gradient is that of one process."""

from __future__ import annotations

import pytest
import torch
from parallel_training import CASES, MODELS, batch, difference, exact_gradients, results_of

import actnn


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the processes computed."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    return results_of(tmp_path_factory.mktemp("processes"), CASES)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=" ".join(case), marks=pytest.mark.works_with(case[0])) for case in CASES]
)
def test_the_gradient_at_8_bits_is_within_a_per_cent_of_that_of_one_process(results, case):
    assert difference(results[case]["gradients"], exact_gradients(case[1])) < 0.01


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_codes_are_kept(results, case):
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [8]
    alone = actnn.QModule(MODELS[case[1]][0]())
    alone(batch(case[1])).sum().backward()
    # half of the batch in each process; with tensor parallelism some codes are of the whole one
    share = 0.9 if case[0] == "tensor parallel" else 0.6
    assert 0 < results[case]["kept"] < share * alone.report().kept_bytes


def test_a_layer_that_takes_no_distributed_tensor_says_what_to_do(results):
    assert "cannot encode a distributed torch.float32 tensor at '0.norm'" in results["refusal"]
    assert "exact=['0.norm']" in results["refusal"]
