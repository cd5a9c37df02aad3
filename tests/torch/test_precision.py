"""Half precision of torch's layers, and gradient scalers."""

from __future__ import annotations

import pytest
import torch
from layer_cases import KINDS, NORMS, Case
from torch import nn
from torch_layers import close, compressed, input_of, plain_layer, same, step

HALVES = [torch.bfloat16, torch.float16]

kinds = pytest.mark.parametrize("case", KINDS, ids=str)
halves = pytest.mark.parametrize("dtype", HALVES, ids=["bfloat16", "float16"])
# what a norm of gradients may be off: coding at 8 bits, and the rounding of the type itself
TOLERANCE = {torch.bfloat16: 0.02, torch.float16: 0.012}


def cast_step(model: nn.Module, x: torch.Tensor, dtype: torch.dtype):
    """Run one step in which torch chooses types."""
    with torch.autocast("cpu", dtype):
        return step(model, x)


def warm(*models: nn.Module, x: torch.Tensor) -> None:
    """Let every model see who reads what."""
    for model in models:
        step(model, x)


@kinds
@halves
def test_a_layer_of_half_precision_has_the_forward_of_the_plain_one(case: Case, dtype):
    layer, x = plain_layer(case).to(dtype), input_of(case).to(dtype)
    found, expected = step(compressed(layer), x), step(layer, x)
    if case in NORMS:
        close(found.output, expected.output, TOLERANCE[dtype])
    else:
        same(found.output, expected.output)


@kinds
@halves
def test_a_layer_of_half_precision_has_gradients_near_the_plain_ones(case: Case, dtype):
    layer, x = plain_layer(case).to(dtype), input_of(case).to(dtype)
    ours = compressed(layer)
    warm(ours, layer, x=x)
    found, expected = step(ours, x), step(layer, x)
    assert found.gradients.keys() == expected.gradients.keys()
    for name, gradient in expected.gradients.items():
        close(found.gradients[name], gradient, TOLERANCE[dtype], name)


@pytest.mark.parametrize("case", NORMS, ids=str)
@halves
def test_running_statistics_of_half_precision_follow_the_plain_ones(case: Case, dtype):
    layer, x = plain_layer(case).to(dtype), input_of(case).to(dtype)
    found, expected = step(compressed(layer), x), step(layer, x)
    for name, buffer in expected.buffers.items():
        close(found.buffers[name], buffer, TOLERANCE[dtype], name)


@pytest.mark.parametrize("case", NORMS, ids=str)
def test_a_float32_batch_norm_takes_bfloat16_input_as_the_plain_one_does(case: Case):
    layer, x = plain_layer(case), input_of(case).bfloat16()
    ours = compressed(layer)
    warm(ours, layer, x=x)
    found, expected = step(ours, x), step(layer, x)
    close(found.output, expected.output, 0.01)
    for name, gradient in expected.gradients.items():
        close(found.gradients[name], gradient, 0.02, name)


@halves
def test_a_gradient_scaler_sees_an_overflow_and_skips_the_step(dtype):
    model = compressed(nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 5)), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    x = torch.randn(8, 300)
    x[0, 0] = float("inf")
    with torch.autocast("cpu", dtype):
        loss = model(x).float().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() < 1024
    for parameter, old in zip(model.parameters(), before, strict=True):
        same(parameter.detach(), old)


def test_a_gradient_scaler_lets_a_sound_step_pass():
    model = compressed(nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 5)), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = model.get_submodule("0").weight.detach().clone()
    scaler.scale(model(torch.randn(8, 300)).sum()).backward()
    scaler.step(optimizer)
    assert not torch.equal(model.get_submodule("0").weight, before)


def test_large_float16_activations_do_not_overflow_their_scales():
    # a range of 80000, which float16 does not hold
    layer, x = nn.Linear(300, 4).half(), torch.full((8, 300), 40000.0).half()
    x[:, ::2] = -40000
    grad = torch.full((8, 4), 1e-4).half()
    found = step(compressed(layer, 2), x, grad)
    assert torch.isfinite(found.gradients["weight"]).all()
