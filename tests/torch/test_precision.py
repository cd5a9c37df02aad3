"""Half precision of torch's layers, and gradient scalers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from frameworks import Array, input_of
from layer_cases import KINDS, NORMS, Case
from steps import Step, check_close_gradients, check_finite, close, same
from torch import nn
from torch_framework import FRAMEWORK, same_tensors

kinds = pytest.mark.parametrize("case", KINDS, ids=str)
halves = pytest.mark.parametrize("dtype", FRAMEWORK.halves)
# what a norm of gradients may be off: coding at 8 bits, and the rounding of the type itself
TOLERANCE = {"bfloat16": 0.02, "float16": 0.012}


def steps(*models: nn.Module, x: Array, dtype: str, warm: bool = True) -> list[Step]:
    """Return a step of each model; with ``warm`` the second, when every layer has seen who reads what."""
    for model in models if warm else ():
        FRAMEWORK.step(model, x, dtype=dtype)
    return [FRAMEWORK.step(model, x, dtype=dtype) for model in models]


def layer_and_twin(case: Case, dtype: str) -> tuple[nn.Module, nn.Module]:
    """Return a layer of half precision, compressed and plain."""
    layer = FRAMEWORK.cast(FRAMEWORK.plain_layer(case), dtype)
    return FRAMEWORK.compressed(layer), layer


@kinds
@halves
def test_a_layer_of_half_precision_has_the_forward_of_the_plain_one(case: Case, dtype: str):
    found, expected = steps(*layer_and_twin(case, dtype), x=input_of(case), dtype=dtype, warm=False)
    assert found.dtypes == expected.dtypes
    if case in NORMS:
        close(found.output, expected.output, TOLERANCE[dtype])
    else:
        same(found.output, expected.output)


@kinds
@halves
def test_a_layer_of_half_precision_has_gradients_near_the_plain_ones(case: Case, dtype: str):
    found, expected = steps(*layer_and_twin(case, dtype), x=input_of(case), dtype=dtype)
    assert found.dtypes == expected.dtypes
    check_close_gradients(found.gradients, expected.gradients, TOLERANCE[dtype])


@pytest.mark.parametrize("case", NORMS, ids=str)
@halves
def test_running_statistics_of_half_precision_follow_the_plain_ones(case: Case, dtype: str):
    found, expected = steps(*layer_and_twin(case, dtype), x=input_of(case), dtype=dtype, warm=False)
    check_close_gradients(found.buffers, expected.buffers, TOLERANCE[dtype])


@pytest.mark.parametrize("case", NORMS, ids=str)
def test_a_float32_batch_norm_takes_bfloat16_input_as_the_plain_one_does(case: Case):
    found, expected = steps(*layer_and_twin(case, "float32"), x=input_of(case), dtype="bfloat16")
    assert found.dtypes == expected.dtypes
    close(found.output, expected.output, 0.01)
    check_close_gradients(found.gradients, expected.gradients, 0.02)


@halves
def test_a_gradient_scaler_sees_an_overflow_and_skips_the_step(dtype):
    model = FRAMEWORK.compressed(nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 5)), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    x = torch.randn(8, 300)
    x[0, 0] = float("inf")
    with FRAMEWORK.autocast(dtype):
        loss = model(x).float().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() < 1024
    for parameter, old in zip(model.parameters(), before, strict=True):
        same_tensors(parameter, old)


def test_a_gradient_scaler_lets_a_sound_step_pass():
    model = FRAMEWORK.compressed(nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 5)), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = model.get_submodule("0").weight.detach().clone()
    scaler.scale(model(torch.randn(8, 300)).sum()).backward()
    scaler.step(optimizer)
    assert not torch.equal(model.get_submodule("0").weight, before)


def test_large_float16_activations_do_not_overflow_their_scales():
    # a range of 80000, which float16 does not hold
    layer, x = nn.Linear(300, 4).half(), np.full((8, 300), 40000.0, np.float32)
    x[:, ::2] = -40000
    found = FRAMEWORK.step(FRAMEWORK.compressed(layer, 2), x, np.full((8, 4), 1e-4, np.float32), dtype="float16")
    check_finite(found.gradients)
